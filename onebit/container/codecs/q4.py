"""4-bit tiles with one scale and one zero per 32 columns: q4_1, q4_0, q4nx and q4_1_x64.

q4_1, q4_1_x64   w = d * q + m           q 0..15; one rounding (the product is exact)
q4_0             w = d * q               q -8..7, stored in two's complement; m plane all zero
q4nx             w = d * (q - z)         q 0..15; the m plane holds z
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit.container.bits import bf16_to_f32, f32_to_bf16, f32_to_bf16_down, f32_to_bf16_up
from onebit.container.codecs.groups import grouped
from onebit.container.codecs.tiles import (
    Planes,
    TileRows,
    bf16_metas,
    empty_tiles,
    put_codes4,
    put_metas,
)
from onebit.container.kinds import TensorKind

_SIGN_BIT = np.uint8(8)


def read_planes(kind: TensorKind, rows: TileRows) -> Planes:
    """Return the planes of `rows`, columns padded as stored."""
    d, codes = bf16_metas(rows, "d"), rows.codes4()
    match kind:
        case TensorKind.Q4_0:
            signed = (codes ^ _SIGN_BIT).view(np.int8)
            signed -= np.int8(8)
            return Planes(d, signed)
        case TensorKind.Q4NX:
            return Planes(d, codes, z=bf16_metas(rows, "m"))
        case _:
            return Planes(d, codes, m=bf16_metas(rows, "m"))


def pack(kind: TensorKind, planes: Planes) -> NDArray[np.uint8]:
    """Return the tile bytes of a matrix; codes are kept verbatim, d and m rounded to bfloat16.

    Args:
        kind: Q4_1, Q4_1_X64 (d, m, codes 0..15), Q4NX (d, z, codes 0..15) or Q4_0 (d, codes -8..7).
        planes: Planes of the logical rows and columns; padding is added here, as zeros.

    Returns:
        uint8 [tiles * tile bytes].
    """
    rows, cols = planes.codes.shape
    tiles = empty_tiles(kind, rows, cols)
    put_metas(tiles, "d", f32_to_bf16(planes.d))
    zero = planes.z if kind is TensorKind.Q4NX else planes.m
    if (zero is None) != (kind is TensorKind.Q4_0):
        raise ValueError(f"{kind} planes have the wrong zero")
    if zero is not None:
        put_metas(tiles, "m", f32_to_bf16(zero))
    low, high = (-8, 7) if kind is TensorKind.Q4_0 else (0, 15)
    if planes.codes.min(initial=0) < low or planes.codes.max(initial=0) > high:
        raise ValueError(f"{kind} codes must lie in {low}..{high}")
    put_codes4(tiles, planes.codes.view(np.uint8) & np.uint8(15))
    return tiles.view(np.uint8).reshape(-1)


def quantize(weights: NDArray[np.float32]) -> Planes:
    """Quantise finite float32 [rows, cols] to q4_1 planes.

    m is the group's least value rounded down to bfloat16, d = (greatest - m) / 15 rounded up, so
    that the codes cover the whole group; q = rint((w - m) / d). A constant group has d = 0 and m
    its value to the nearest bfloat16. Only real columns count towards a ragged last group.
    """
    groups, real = grouped(weights)
    low = groups.min(axis=2, initial=np.inf, where=real)
    high = groups.max(axis=2, initial=-np.inf, where=real)
    constant = low == high
    m = bf16_to_f32(np.where(constant, f32_to_bf16(low), f32_to_bf16_down(low)))
    span = np.where(constant, np.float32(0), high - m)
    d = bf16_to_f32(f32_to_bf16_up(span / np.float32(15)))
    step = np.where(d > 0, d, np.float32(1))
    codes = np.rint((groups - m[:, :, None]) / step[:, :, None])
    codes = np.where((d > 0)[:, :, None], np.clip(codes, 0, 15), 0).astype(np.uint8)
    return Planes(d, codes.reshape(len(weights), -1)[:, : weights.shape[1]], m=m)


def quantize_q4_0(weights: NDArray[np.float32]) -> Planes:
    """Quantise finite float32 [rows, cols] to signed q4_0 planes.

    d = (value of the greatest magnitude) / -8 rounded to bfloat16, so that it takes code -8;
    q = clip(rint(w / d), -8, 7). This is the rule of GGML's Q4_0.
    """
    groups, real = grouped(weights)
    magnitudes = np.where(real, np.abs(groups), np.float32(-1))
    peak = np.take_along_axis(groups, magnitudes.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    d = bf16_to_f32(f32_to_bf16(peak / np.float32(-8)))
    step = np.where(d != 0, d, np.float32(1))
    codes = np.clip(np.rint(groups / step[:, :, None]), -8, 7).astype(np.int8)
    codes[d == 0] = 0
    return Planes(d, codes.reshape(len(weights), -1)[:, : weights.shape[1]])


def offset_from_signed(d: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the m plane that turns unsigned Q4_0 codes 0..15 into q4_1: m = -8 * d, exact."""
    return np.float32(-8) * d
