"""The int8 arithmetic, by its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit.devices.npu.packing import (
    dequantise,
    multiply_exact,
    quantise_columns,
    quantise_rows,
)


def roundf(x: float) -> int:
    """C's roundf: to the nearest, halves away from zero."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def test_halves_are_rounded_away_from_zero() -> None:
    """amax 127 makes the codes the values themselves."""
    below = float(np.nextafter(np.float32(0.5), np.float32(0)))
    values = [127.0, 0.5, -0.5, 1.5, 2.5, -2.5, below, -below, 126.5, -126.5, 0.0, -0.0]
    codes, scale = quantise_columns(np.array([values], np.float32))
    assert scale.tolist() == [1.0]
    assert codes[0].tolist() == [127, 1, -1, 2, 3, -3, 0, 0, 127, -127, 0, 0]


LARGE = float(np.float32(3e38))


@given(
    st.lists(st.floats(-LARGE, LARGE, width=32, allow_nan=False), min_size=1, max_size=40).filter(
        lambda v: max(map(abs, v)) > 1e-10
    )
)
def test_codes_follow_their_definition(values: list[float]) -> None:
    row = np.array([values], np.float32)
    codes, scale = quantise_columns(row)
    amax = np.abs(row).max()
    assert scale[0] == amax / np.float32(127)
    factor = np.float32(1) if amax < 1e36 else np.float32(2**-16)
    quotients = (row * factor) * np.float32(127) / (amax * factor)
    assert codes[0].tolist() == [roundf(float(q)) for q in quotients[0]]
    rows, row_scale = quantise_rows(row)
    assert rows.tolist() == codes.tolist()
    assert row_scale[0] == scale[0]


def test_weights_that_are_no_numbers_become_zero() -> None:
    values = np.array([[np.nan, np.inf, -np.inf, 2.0], [1e-13, -1e-13, 0, 0]], np.float32)
    codes, scale = quantise_columns(values)
    assert codes.tolist() == [[0, 0, 0, 127], [0, 0, 0, 0]]
    assert scale.tolist() == pytest.approx([2 / 127, 1 / 127], rel=1e-6)


def test_activations_that_are_no_numbers_show_in_the_result() -> None:
    x = np.array([[1, 2], [np.nan, 1], [np.inf, 1], [0, 0]], np.float32)
    codes, scale = quantise_rows(x)
    assert codes.tolist() == [[64, 127], [0, 0], [0, 0], [0, 0]]
    assert np.isnan(scale).tolist() == [False, True, True, False]
    assert scale[3] == 1
    y = dequantise(multiply_exact(codes, codes), scale, np.ones(4, np.float32))
    assert np.isnan(y).all(axis=1).tolist() == [False, True, True, False]


@pytest.mark.parametrize("k", [1, 256, 1024, 1025, 5000])
def test_products_are_exact_at_the_extremes(k: int) -> None:
    rng = np.random.default_rng(k)
    a = rng.integers(-127, 128, (3, k), np.int8)
    b = rng.integers(-127, 128, (4, k), np.int8)
    a[0], b[0] = 127, -127
    expected = a.astype(np.int64) @ b.astype(np.int64).T
    assert (multiply_exact(a, b) == expected).all()
    assert expected[0, 0] == -127 * 127 * k
