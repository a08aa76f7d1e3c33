"""Linear layers, in the exact arithmetic of the native kernels: the oracle of each of them.

The order of sums and the rounding are those of kernels/host/linear.h. `_fma` rounds a product and
a sum once in float64 and once in float32; a true fma differs from it in the last place once in
some 2^29 operations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit.container import TensorView, decode, planes
from onebit.container.codecs.tiles import Planes
from onebit.container.kinds import GROUP_COLS, TILE_COLS

Array = NDArray[np.float32]

_SMALL = np.float32(2.0**-100)
"""A block of activations below this counts as zero."""


def linear(x: Array, view: TensorView, numerics: str) -> Array:
    """Return x W^T, [rows, out_features] float32.

    Args:
        x: [rows, in_features] float32, finite.
        view: The weight.
        numerics: `f32`, `i16` or `i8`; kinds without tiles are always computed as `f32`.
    """
    if not view.kind.is_tiled:
        return _dense(x, decode(view))
    if numerics == "f32":
        return _tiled_f32(x, decode(view))
    return _integer(x, planes(view), numerics)


def _fma(a: NDArray[np.generic], b: NDArray[np.generic], c: Array) -> Array:
    wide: NDArray[np.float64] = np.multiply(a, b, dtype=np.float64) + c
    return wide.astype(np.float32)


def _dense(x: Array, w: Array) -> Array:
    """Sixteen sums by column modulo 16, folded in halves."""
    rows, cols = x.shape
    missing = -cols % 16
    x, w = np.pad(x, ((0, 0), (0, missing))), np.pad(w, ((0, 0), (0, missing)))
    sums = np.zeros((rows, len(w), 16), np.float32)
    for start in range(0, cols + missing, 16):
        part = slice(start, start + 16)
        sums = _fma(x[:, None, part], w[None, :, part], sums)
    for half in (8, 4, 2, 1):
        sums = sums[..., :half] + sums[..., half : 2 * half]
    return np.ascontiguousarray(sums[..., 0])


def _tiled_f32(x: Array, w: Array) -> Array:
    """Per tile two sums by column parity; tiles added in order."""
    total = np.zeros((len(x), len(w)), np.float32)
    for first in range(0, x.shape[1], TILE_COLS):
        sums = [np.zeros_like(total), np.zeros_like(total)]
        for c in range(first, min(first + TILE_COLS, x.shape[1])):
            sums[c % 2] = _fma(x[:, c, None], w[None, :, c], sums[c % 2])
        total = total + (sums[0] + sums[1])
    return total


def quantise(x: Array, numerics: str) -> tuple[NDArray[np.int64], Array]:
    """Return integer activations [rows, blocks, columns of a block] and scales [rows, blocks].

    A block is a tile's 256 columns for `i16`, a group of 32 for `i8`; columns beyond the end are
    zeros.
    """
    block, top = (TILE_COLS, 32767) if numerics == "i16" else (GROUP_COLS, 127)
    rows, cols = x.shape
    parts = np.pad(x, ((0, 0), (0, -cols % block))).reshape(rows, -1, block)
    peak = np.abs(parts).max(axis=2)
    live = peak >= _SMALL
    inverse = np.where(live, np.float32(top) / np.where(live, peak, np.float32(1)), np.float32(0))
    scale = np.where(live, peak / np.float32(top), np.float32(0)).astype(np.float32)
    return np.rint(parts * inverse[:, :, None]).astype(np.int64), scale


def _integer(x: Array, weight: Planes, numerics: str) -> Array:
    """Exact integer sums per group of 32 columns, then float32 in group order."""
    whole, scale = quantise(x, numerics)
    groups = -(-x.shape[1] // GROUP_COLS)
    q = whole.reshape(len(x), -1, GROUP_COLS)[:, :groups]
    missing = ((0, 0), (0, groups * GROUP_COLS - weight.codes.shape[1]))
    codes = np.pad(weight.codes.astype(np.int64), missing).reshape(-1, groups, GROUP_COLS)
    zero = weight.m
    if weight.z is not None:
        zero = -(weight.d * weight.z)
    total = np.zeros((len(x), len(codes)), np.float32)
    partial = np.zeros_like(total)
    for g in range(groups):
        dot = (q[:, g] @ codes[:, g].T).astype(np.float32)
        both = q[:, g].sum(axis=1).astype(np.float32)[:, None]
        if numerics == "i8":
            total = _fma(weight.d[None, :, g], dot * scale[:, g, None], total)
            if zero is not None:
                total = _fma(zero[None, :, g], both * scale[:, g, None], total)
            continue
        partial = _fma(weight.d[None, :, g], dot, partial)
        if zero is not None:
            partial = _fma(zero[None, :, g], both, partial)
        if (g + 1) % (TILE_COLS // GROUP_COLS) == 0 or g + 1 == groups:
            total = _fma(scale[:, g * GROUP_COLS // TILE_COLS, None], partial, total)
            partial = np.zeros_like(total)
    return total
