"""8-bit tiles with one scale per 32 columns: q8_a, q8_b and q8_in_q4. w = d * q, exact."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit.container.bits import bf16_to_f32, f32_to_bf16
from onebit.container.codecs.groups import grouped
from onebit.container.codecs.tiles import (
    Planes,
    TileRows,
    bf16_metas,
    empty_tiles,
    put_codes8,
    put_metas,
)
from onebit.container.kinds import TensorKind


def read_planes(rows: TileRows) -> Planes:
    """Return the planes of `rows`, columns padded as stored; codes are int8."""
    return Planes(bf16_metas(rows, "d"), rows.codes8())


def pack(kind: TensorKind, planes: Planes) -> NDArray[np.uint8]:
    """Return the tile bytes of a matrix; codes are kept verbatim, d is rounded to bfloat16.

    Args:
        kind: Q8_A, Q8_B or Q8_IN_Q4.
        planes: d [rows, ceil(cols / 32)] and int8 codes [rows, cols]; padding is added here.

    Returns:
        uint8 [tiles * tile bytes].
    """
    rows, cols = planes.codes.shape
    if planes.codes.dtype != np.int8 or planes.m is not None or planes.z is not None:
        raise ValueError(f"{kind} planes are int8 codes and scales alone")
    tiles = empty_tiles(kind, rows, cols)
    d = f32_to_bf16(planes.d)
    put_metas(tiles, "d", d)
    if kind is TensorKind.Q8_IN_Q4:
        put_metas(tiles, "d_copy", d)
    put_codes8(tiles, planes.codes.view(np.int8))
    return tiles.view(np.uint8).reshape(-1)


def quantize(weights: NDArray[np.float32]) -> Planes:
    """Quantise finite float32: d = amax / 127 to bfloat16, q = clip(rint(w / d), +-127)."""
    groups, _ = grouped(weights)
    d = bf16_to_f32(f32_to_bf16(np.abs(groups).max(axis=2) / np.float32(127)))
    step = np.where(d > 0, d, np.float32(1))
    codes = np.clip(np.rint(groups / step[:, :, None]), -127, 127).astype(np.int8)
    codes[d == 0] = 0
    return Planes(d, codes.reshape(len(weights), -1)[:, : weights.shape[1]])
