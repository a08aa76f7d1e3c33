"""Row ops of every instruction set against their reference, taken in float64."""

from __future__ import annotations

import numpy as np
import pytest

from onebit.devices.cpu import instruction_sets
from onebit.ops.glu import gelu
from onebit.ops.rms_norm import rms_norm
from onebit.ops.rope import rope
from onebit.ops.softcap import softcap

native = pytest.importorskip("onebit.devices._native")

EPS = np.finfo(np.float32).eps
WIDTHS = (1, 2, 15, 16, 17, 63, 64, 576, 1000)


@pytest.fixture(params=instruction_sets())
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


def normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """Largest distance in units of the last place of `want`; equal infinities count as 0."""
    rounded = want.astype(np.float32)
    unequal = got != rounded
    spacing = np.spacing(np.abs(np.where(np.isinf(rounded), 1, rounded)).astype(np.float32))
    distance = np.abs(np.where(unequal, got - want, 0.0)) / spacing.astype(np.float64)
    return float(np.max(distance))


def test_exp_is_within_little_more_than_one_ulp(isa: str) -> None:
    x = np.concatenate(
        [np.linspace(-103.9, 88.7, 200_001), normal(0, 100_000), [0.0, -0.0, 1.0]]
    ).astype(np.float32)
    got = x.copy()
    native.exp(isa, got)
    assert ulps(got, np.exp(x.astype(np.float64))) <= 1.1


def test_exp_at_its_ends(isa: str) -> None:
    x = np.array([-np.inf, -1e30, -104.0, 88.8, 1e30, np.inf, np.nan], np.float32)
    native.exp(isa, x)
    assert np.array_equal(x, np.array([0, 0, 0, np.inf, np.inf, np.inf, np.nan]), equal_nan=True)


def test_tanh_is_within_four_ulps(isa: str) -> None:
    x = np.concatenate(
        [np.linspace(-12, 12, 200_001), normal(1, 100_000, scale=0.1), [1e-30, -1e30, 1e30]]
    ).astype(np.float32)
    got = x.copy()
    native.tanh(isa, got)
    assert ulps(got, np.tanh(x.astype(np.float64))) <= 4.0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("groups", "offset"), [(1, 0.0), (5, 1.0)])
def test_rms_norm(isa: str, width: int, groups: int, offset: float) -> None:
    x, weight = normal(width, groups * width, scale=3.0), normal(width + 1, width)
    out = np.empty_like(x)
    native.rms_norm(isa, x, weight, offset, 1e-5, out)
    want = rms_norm(x[None], weight, 1e-5, groups, offset)[0]
    assert np.abs(out - want).max() <= 4 * EPS * np.abs(want).max()


@pytest.mark.parametrize(
    ("dim", "half", "heads"), [(64, 32, 3), (128, 64, 2), (80, 16, 4), (6, 3, 1)]
)
def test_rope(isa: str, dim: int, half: int, heads: int) -> None:
    x, angles = normal(dim, heads * dim), normal(half, half)
    cos, sin = np.cos(angles), np.sin(angles)
    got = x.copy()
    native.rope(isa, got, cos, sin, dim)
    assert np.abs(got - rope(x[None], cos[None], sin[None], dim)[0]).max() <= 2 * EPS * 4
    passed = got.reshape(heads, dim)[:, 2 * half :]
    assert np.array_equal(passed, x.reshape(heads, dim)[:, 2 * half :])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("act", ["silu", "gelu_tanh", "gelu"])
def test_glu(isa: str, width: int, act: str) -> None:
    gate, up = normal(width, width, scale=6.0), normal(width + 1, width)
    out = np.empty_like(gate)
    native.glu(isa, act, gate, up, out)
    x = gate.astype(np.float64)
    exact = {
        "silu": lambda: x / (1 + np.exp(-x)),
        "gelu_tanh": lambda: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "gelu": lambda: gelu(gate).astype(np.float64),
    }[act]()
    bound = 4 * EPS * np.abs(exact * up) + 2e-6 * (act != "silu") * np.abs(up)
    assert np.all(np.abs(out - exact * up) <= bound)


def test_silu_at_its_ends(isa: str) -> None:
    gate = np.array([-np.inf, -1e4, -90.0, 0.0, 90.0, np.inf], np.float32)
    out = np.empty_like(gate)
    native.glu(isa, "silu", gate, np.ones_like(gate), out)
    assert np.isnan(out[0])  # -inf * 0, as the formula has it
    assert np.array_equal(out[[1, 3, 4, 5]], [0, 0, 90, np.inf])
    assert abs(out[2]) < 1e-36


@pytest.mark.parametrize("width", WIDTHS)
def test_add_and_softcap(isa: str, width: int) -> None:
    a, b = normal(width, width), normal(width + 1, width, scale=40.0)
    out = np.empty_like(a)
    native.add(isa, a, b, 0.25, out)
    assert np.array_equal(out, a + np.float32(0.25) * b)
    capped = b.copy()
    native.softcap(isa, capped, 30.0)
    assert np.abs(capped - softcap(b, 30.0)).max() <= 8 * EPS * 30.0


def test_read_bandwidth_is_a_rate() -> None:
    data = np.zeros(1 << 22, np.uint8)
    rate = native.read_bandwidth([data], 2, 2, instruction_sets()[-1])
    assert 1e8 < rate < 1e13
