"""16-bit floats: exact both ways (field case N03)."""

from __future__ import annotations

import numpy as np
import pytest

from onebit.container.bits import (
    bf16_to_f32,
    f16_to_f32,
    f32_to_bf16,
    f32_to_bf16_down,
    f32_to_bf16_up,
)

ALL_BITS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def f32(*bits: int) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x3F808000, 0x3F80),  # a tie goes to the even neighbour below
        (0x3F818000, 0x3F82),  # a tie goes to the even neighbour above
        (0x3F808001, 0x3F81),
        (0x3F807FFF, 0x3F80),
        (0x7F7FFFFF, 0x7F80),  # beyond the largest bfloat16: infinity
        (0x00000001, 0x0000),
        (0x00008001, 0x0001),  # subnormals round too
        (0x80000000, 0x8000),
        (0x7F800000, 0x7F80),
        (0xFF800000, 0xFF80),
        (0x7F800001, 0x7FC0),  # NaN whose payload would be cut off stays NaN
        (0xFFFFFFFF, 0xFFFF),
    ],
)
def test_nearest_even(bits: int, expected: int) -> None:
    assert f32_to_bf16(f32(bits))[0] == expected


def test_bf16_round_trip_of_every_bit_pattern() -> None:
    back = f32_to_bf16(bf16_to_f32(ALL_BITS))
    nan = np.isnan(bf16_to_f32(ALL_BITS))
    assert np.array_equal(back[~nan], ALL_BITS[~nan])
    assert np.array_equal(back[nan], ALL_BITS[nan] | 0x40)


def test_directed_rounding_brackets_the_value() -> None:
    values = np.random.default_rng(1).normal(size=10_000).astype(np.float32)
    low, high = bf16_to_f32(f32_to_bf16_down(values)), bf16_to_f32(f32_to_bf16_up(values))
    assert (low <= values).all()
    assert (values <= high).all()
    steps = f32_to_bf16_up(values).astype(int) - f32_to_bf16_down(values).astype(int)
    assert set(np.abs(steps)) == {1}
    exact = bf16_to_f32(ALL_BITS[:0x7F80])
    assert np.array_equal(f32_to_bf16_up(exact), f32_to_bf16_down(exact))
    assert np.isnan(bf16_to_f32(f32_to_bf16_up(f32(0x7F800001)))).all()


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x0000, 0.0),
        (0x0001, 2.0**-24),
        (0x03FF, 1023 * 2.0**-24),
        (0x0400, 2.0**-14),
        (0x7BFF, 65504.0),
        (0x8001, -(2.0**-24)),
        (0x7C00, np.inf),
    ],
)
def test_half_is_exact(bits: int, expected: float) -> None:
    assert f16_to_f32(np.array([bits], np.uint16))[0] == expected


def test_half_nan_stays_nan() -> None:
    assert np.isnan(f16_to_f32(np.array([0x7E00], np.uint16))[0])
