"""Q4_K tiles: two-level scales. w = S[r] * s * q + M[r] * z per row r and 32 columns.

S and M are bfloat16 per row of the tile (256 columns), s and z are uint8 per group, q is 0..15.
S * s and its product with q are exact in float32, as is M * z, so a value rounds once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit.container.bits import bf16_to_f32, f32_to_bf16, f32_to_bf16_up
from onebit.container.codecs import q4
from onebit.container.codecs.groups import grouped
from onebit.container.codecs.tiles import (
    Planes,
    TileRows,
    empty_tiles,
    put_codes4,
    put_metas,
    put_per_row,
)
from onebit.container.kinds import TensorKind

TILE_GROUPS = 8
"""Groups of 32 columns that share S and M."""
_STEPS = 4
"""bfloat16 values tried for S and M, from the least that covers the greatest group on."""


@dataclass(frozen=True, eq=False)
class KPlanes:
    """The stored parts of Q4_K rows.

    Attributes:
        S: float32 [rows, blocks], scale of scales, exact bfloat16 values.
        M: float32 [rows, blocks], scale of zeros, already negated (normally <= 0).
        s: uint8 [rows, groups].
        z: uint8 [rows, groups].
        codes: uint8 [rows, cols], 0..15.
    """

    S: NDArray[np.float32]
    M: NDArray[np.float32]
    s: NDArray[np.uint8]
    z: NDArray[np.uint8]
    codes: NDArray[np.uint8]

    def flat(self) -> Planes:
        """Return d = S * s and m = M * z, both exact, with the codes."""
        return Planes(_times(self.S, self.s), self.codes, m=_times(self.M, self.z))


def read_k_planes(rows: TileRows) -> KPlanes:
    """Return the stored parts of `rows`, columns padded as stored."""
    return KPlanes(
        S=bf16_to_f32(rows.per_row("S")),
        M=bf16_to_f32(rows.per_row("M")),
        s=rows.metas("s"),
        z=rows.metas("z"),
        codes=rows.codes4(),
    )


def read_planes(rows: TileRows) -> Planes:
    """Return d = S * s, m = M * z and the codes of `rows`, columns padded as stored."""
    return read_k_planes(rows).flat()


def pack(planes: KPlanes) -> NDArray[np.uint8]:
    """Return the tile bytes of a matrix; uint8 parts verbatim, S and M rounded to bfloat16."""
    rows, cols = planes.codes.shape
    if planes.codes.max(initial=0) > 15:
        raise ValueError("q4_k codes must lie in 0..15")
    tiles = empty_tiles(TensorKind.Q4_K, rows, cols)
    put_metas(tiles, "s", planes.s)
    put_metas(tiles, "z", planes.z)
    put_per_row(tiles, "S", f32_to_bf16(planes.S))
    put_per_row(tiles, "M", f32_to_bf16(planes.M))
    put_codes4(tiles, planes.codes)
    return tiles.view(np.uint8).reshape(-1)


def fit(
    scales: NDArray[np.float32], zeros: NDArray[np.float32], codes: NDArray[np.uint8]
) -> KPlanes:
    """Fit two levels to group scales and zeros; the codes are kept verbatim.

    Args:
        scales: float32 [rows, groups], d >= 0 of w = d * q + m.
        zeros: float32 [rows, groups], m of one sign per row and 256 columns (GGML: m <= 0).
        codes: uint8 [rows, cols].
    """
    S, s = fit_two_levels(scales)
    M, z = fit_two_levels(zeros)
    return KPlanes(S, M, s, z, codes)


def fit_two_levels(
    targets: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Approximate each value by P * p, P bfloat16 per row and 8 groups, p in 0..255.

    P starts at max|t| / 255 rounded up to bfloat16; of it and the next three bfloat16 values the
    one with the least squared error is kept, the lowest on a tie. P has the sign of the greatest
    value; values of the other sign become 0.

    Args:
        targets: float32 [rows, groups].

    Returns:
        P as float32 [rows, ceil(groups / 8)] and p as uint8 [rows, groups].
    """
    rows, groups = targets.shape
    blocks = -(-groups // TILE_GROUPS)
    full = np.zeros((rows, blocks * TILE_GROUPS), np.float32)
    full[:, :groups] = targets
    t = full.reshape(rows, blocks, TILE_GROUPS)
    peak = np.take_along_axis(t, np.abs(t).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    sign = np.where(peak < 0, np.float32(-1), np.float32(1))
    first = f32_to_bf16_up(np.abs(peak) / np.float32(255))
    best_P = np.zeros_like(peak)
    best_p = np.zeros(t.shape, np.uint8)
    best_error = np.full(peak.shape, np.inf)
    for step in range(_STEPS):
        P = sign * bf16_to_f32(first + np.uint16(step))
        ratio = t / np.where(peak != 0, P, np.float32(1))[:, :, None]
        p = np.clip(np.rint(ratio), 0, 255).astype(np.uint8)
        error = np.square(P[:, :, None].astype(np.float64) * p - t).sum(axis=2)
        better = (error < best_error) & (peak != 0)
        best_P = np.where(better, P, best_P)
        best_p = np.where(better[:, :, None], p, best_p)
        best_error = np.where(better, error, best_error)
    return best_P, best_p.reshape(rows, -1)[:, :groups]


def quantize(weights: NDArray[np.float32]) -> KPlanes:
    """Quantise finite float32 [rows, cols]: groups with zeros <= 0, two levels, codes refitted.

    Groups of positive values alone take the zero 0, because M has one sign for 256 columns.
    """
    groups, _ = grouped(weights)
    low = np.minimum(groups.min(axis=2), np.float32(0))
    high = np.maximum(groups.max(axis=2), low)
    fitted = fit((high - low) / np.float32(15), low, np.zeros((0, 0), np.uint8))
    d, m = _times(fitted.S, fitted.s), _times(fitted.M, fitted.z)
    step = np.where(d > 0, d, np.float32(1))
    codes = np.clip(np.rint((groups - m[:, :, None]) / step[:, :, None]), 0, 15).astype(np.uint8)
    codes[d == 0] = 0
    codes = codes.reshape(len(weights), -1)[:, : weights.shape[1]]
    return KPlanes(fitted.S, fitted.M, fitted.s, fitted.z, codes)


def to_q4_1(planes: KPlanes) -> NDArray[np.uint8]:
    """Return q4_1 tile bytes with the same codes; d and m round to bfloat16."""
    return q4.pack(TensorKind.Q4_1, planes.flat())


def _times(high: NDArray[np.float32], low: NDArray[np.uint8]) -> NDArray[np.float32]:
    spread = np.repeat(high, TILE_GROUPS, axis=1)[:, : low.shape[1]]
    with np.errstate(all="ignore"):
        return spread * low.astype(np.float32)
