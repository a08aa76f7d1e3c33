"""Exact conversions between float32 and the 16-bit floats of containers and GGUF files.

All functions take and give arrays of any shape; bits are uint16 in machine order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SIGN = np.uint32(0x8000_0000)
_QUIET = np.uint32(0x0040)


def bf16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 value of bfloat16 `bits`; exact, NaN payloads kept."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 value of IEEE half `bits`; exact, subnormals are not flushed."""
    return bits.astype(np.uint16, copy=False).view(np.float16).astype(np.float32)


def f32_to_bf16(values: ArrayLike) -> NDArray[np.uint16]:
    """Round float32 to bfloat16 bits: nearest, ties to even; NaN stays NaN, overflow is Inf."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    top = bits >> np.uint32(16)
    # Adding 0x7FFF plus the lowest kept bit carries into the kept half exactly when IEEE
    # round-to-nearest-even does.
    rounded = (bits + np.uint32(0x7FFF) + (top & np.uint32(1))) >> np.uint32(16)
    nan = (bits & ~_SIGN) > np.uint32(0x7F80_0000)
    return np.where(nan, top | _QUIET, rounded).astype(np.uint16)


def f32_to_bf16_down(values: ArrayLike) -> NDArray[np.uint16]:
    """Round float32 towards minus infinity to bfloat16 bits; NaN stays NaN."""
    return _directed(np.asarray(values, dtype=np.float32), away_if_negative=True)


def f32_to_bf16_up(values: ArrayLike) -> NDArray[np.uint16]:
    """Round float32 towards plus infinity to bfloat16 bits; NaN stays NaN."""
    return _directed(np.asarray(values, dtype=np.float32), away_if_negative=False)


def round_to_bf16(values: ArrayLike) -> NDArray[np.float32]:
    """Round float32 to the nearest bfloat16 value, as float32."""
    return bf16_to_f32(f32_to_bf16(values))


def _directed(values: NDArray[np.float32], *, away_if_negative: bool) -> NDArray[np.uint16]:
    bits = values.view(np.uint32)
    top = bits >> np.uint32(16)
    magnitude = bits & ~_SIGN
    inexact = (bits & np.uint32(0xFFFF)) != 0
    negative = (bits & _SIGN) != 0
    away = inexact & (negative == away_if_negative) & (magnitude < np.uint32(0x7F80_0000))
    nan = magnitude > np.uint32(0x7F80_0000)
    return np.where(nan, top | _QUIET, top + away).astype(np.uint16)
