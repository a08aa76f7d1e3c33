"""Linear kernels of every instruction set against the NumPy oracle of the same arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.container import TensorKind, TensorView, decode, decode_rows
from onebit.container.codecs import plain, q4, q4_k, q8
from onebit.devices.cpu import instruction_sets
from onebit.ops.linear import linear, quantise

native = pytest.importorskip("onebit.devices._native")

KINDS = [k for k in TensorKind if k is not TensorKind.INT8]
NUMERICS = ("f32", "i16", "i8")
ROUNDINGS = 4
"""Last places, of the greatest term of a sum, by which the oracle's own fma may differ."""


def weight(kind: TensorKind, rows: int, cols: int, seed: int) -> TensorView:
    """Return a random weight; its bytes lie at an odd address."""
    draw = np.random.default_rng(seed)
    values = (draw.standard_normal((rows, cols)) * cols**-0.5).astype(np.float32)
    scale = None
    match kind:
        case TensorKind.BF16 | TensorKind.F32 | TensorKind.F16:
            data = plain.pack(kind, values)
        case TensorKind.INT8:
            table, scale = plain.quantize_int8(values)
            data = table
        case TensorKind.Q4_K:
            data = q4_k.pack(q4_k.quantize(values))
        case TensorKind.Q8_A | TensorKind.Q8_B | TensorKind.Q8_IN_Q4:
            data = q8.pack(kind, q8.quantize(values))
        case TensorKind.Q4_0:
            data = q4.pack(kind, q4.quantize_q4_0(values))
        case TensorKind.Q4NX:
            parts = q4.quantize(values)
            zero = np.where(parts.d > 0, -parts.m / np.where(parts.d > 0, parts.d, 1), 0)
            data = q4.pack(kind, q4.Planes(parts.d, parts.codes, z=zero.astype(np.float32)))
        case _:
            data = q4.pack(kind, q4.quantize(values))
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    odd = np.empty(raw.size + 1, np.uint8)
    odd[1:] = raw
    return TensorView("w", kind, (rows, cols), odd[1:], scale)


def run(view: TensorView, x: np.ndarray, numerics: str, isa: str) -> np.ndarray:
    out = np.full((len(x), view.rows), np.nan, np.float32)
    native.linear(
        isa,
        numerics,
        view.kind.value,
        view.data,
        view.scale,
        view.rows,
        view.cols,
        x,
        None,
        1.0,
        out,
    )
    return out


def activations(rows: int, cols: int, seed: int) -> np.ndarray:
    """Return activations of which one column is an outlier."""
    x = np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)
    x[:, seed % cols] *= 30
    return x


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("kind", [*KINDS, TensorKind.INT8])
def test_every_kind_equals_the_oracle_on_every_instruction_set(
    kind: TensorKind, numerics: str
) -> None:
    for rows, cols, count in ((33, 288, 1), (40, 576, 3), (64, 544, 9)):
        view, x = weight(kind, rows, cols, 3), activations(count, cols, 4)
        expected = linear(x, view, numerics)
        largest = np.abs(x).max() * np.abs(decode(view)).max() * cols**0.5
        first: np.ndarray | None = None
        for isa in instruction_sets():
            got = run(view, x, numerics, isa)
            limit = ROUNDINGS * np.finfo(np.float32).eps * largest
            np.testing.assert_allclose(got, expected, rtol=0, atol=limit, err_msg=isa)
            first = got if first is None else first
            np.testing.assert_array_equal(got, first, err_msg=f"{isa} differs from the first")


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([TensorKind.Q4_1, TensorKind.Q8_A, TensorKind.Q8_B, TensorKind.Q4_K]),
    numerics=st.sampled_from(NUMERICS),
    rows=st.integers(1, 100),
    groups=st.integers(1, 20),
    count=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_random_shapes_and_rows_do_not_depend_on_their_neighbours(
    kind: TensorKind, numerics: str, rows: int, groups: int, count: int, seed: int
) -> None:
    view, x = weight(kind, rows, 32 * groups, seed), activations(count, 32 * groups, seed)
    best = instruction_sets()[-1]
    together = run(view, x, numerics, best)
    portable = run(view, x, numerics, instruction_sets()[0])
    np.testing.assert_array_equal(together, portable)
    at = seed % count
    alone = run(view, np.ascontiguousarray(x[at : at + 1]), numerics, best)
    np.testing.assert_array_equal(alone[0], together[at])


@pytest.mark.parametrize("numerics", ["i16", "i8"])
@pytest.mark.parametrize(
    ("kind", "code"), [(TensorKind.Q4_1, 15), (TensorKind.Q4_0, -8), (TensorKind.Q8_A, -128)]
)
def test_codes_and_activations_at_their_ends_do_not_overflow(
    kind: TensorKind, code: int, numerics: str
) -> None:
    rows, cols = 32, 256
    codes = np.full((rows, cols), code, np.int8 if code < 0 else np.uint8)
    ones = np.ones((rows, cols // 32), np.float32)
    zeros = np.zeros_like(ones) if kind is TensorKind.Q4_1 else None
    pack = q8.pack if kind is TensorKind.Q8_A else q4.pack
    raw = pack(kind, q4.Planes(ones, codes, m=zeros)).reshape(-1)
    view = TensorView("w", kind, (rows, cols), raw, None)
    x = np.ones((9, cols), np.float32)
    x[1::2] = -1
    expected = np.repeat(x[:, :1] * np.float32(code * cols), rows, axis=1)
    for isa in instruction_sets():
        np.testing.assert_allclose(run(view, x, numerics, isa), expected, rtol=1e-6, err_msg=isa)
        np.testing.assert_allclose(
            run(view, x[1:2], numerics, isa), expected[1:2], rtol=1e-6, err_msg=isa
        )


def test_how_close_each_arithmetic_is_to_float32() -> None:
    view, x = weight(TensorKind.Q4_1, 128, 1536, 1), activations(16, 1536, 2)
    exact = x.astype(np.float64) @ decode(view).astype(np.float64).T
    best = instruction_sets()[-1]
    errors = {
        n: float(np.linalg.norm(run(view, x, n, best) - exact) / np.linalg.norm(exact))
        for n in NUMERICS
    }
    assert errors["f32"] < 1e-6
    assert errors["i16"] < 2e-4  # one column is an outlier, which coarsens its block
    assert 1e-3 < errors["i8"] < 2e-2


def test_quantised_activations_by_hand() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :3] = [1.0, -0.5, 0.25]
    whole, scale = quantise(x, "i16")
    assert whole[0, 0, :3].tolist() == [32767, -16384, 8192]
    assert scale[0, 0] == np.float32(1) / np.float32(32767)
    whole, scale = quantise(x, "i8")
    assert whole[0, 0, :3].tolist() == [127, -64, 32]
    assert scale[0].tolist() == [np.float32(1) / np.float32(127), 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("numerics", ["i16", "i8"])
def test_a_row_that_is_not_finite_spoils_itself_alone(numerics: str, bad: float) -> None:
    view, x = weight(TensorKind.Q4_1, 40, 576, 5), activations(3, 576, 6)
    clean = run(view, x, numerics, instruction_sets()[-1])
    x[1, 100] = bad
    for isa in instruction_sets():
        got = run(view, x, numerics, isa)
        assert np.isnan(got[1]).all()
        np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("kind", list(TensorKind))
def test_embedding_rows(kind: TensorKind) -> None:
    view = weight(kind, 70, 288, 8)
    tokens = np.array([0, 69, 33, 33, 1], np.int32)
    out = np.empty((5, 288), np.float32)
    native.embed(kind.value, view.data, view.scale, 70, 288, tokens, 2.0, out)
    np.testing.assert_array_equal(out, decode_rows(view, tokens) * np.float32(2))


def test_bias_and_factor() -> None:
    view, x = weight(TensorKind.Q8_A, 40, 256, 9), activations(2, 256, 10)
    bias = np.random.default_rng(1).standard_normal(40).astype(np.float32)
    out = np.empty((2, 40), np.float32)
    isa = instruction_sets()[-1]
    native.linear(isa, "f32", "q8_a", view.data, None, 40, 256, x, bias, 0.5, out)
    expected = (run(view, x, "f32", isa) + bias) * np.float32(0.5)
    np.testing.assert_array_equal(out, expected)
