"""The arithmetic around an int8 GEMM: how weights and activations become int8, and come back.

Weights have one scale per output column, activations one per row:

    code = round_half_away(value * 127 / amax), clamped to +-127;  scale = amax / 127
    y[m, n] = C[m, n] * row_scale[m] * column_scale[n]

Everything is float32; C is exact.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Codes = NDArray[np.int8]

LEVELS: Final = 127
TINY: Final = np.float32(1e-12)
"""A column whose largest value is below this is all zeros."""
_HALF: Final = np.nextafter(np.float32(0.5), np.float32(0))
"""Added before truncating. One ulp below a half: x + 0.5 itself would round 0.49999997 up."""
_HUGE: Final = np.float32(1e36)
"""Above this, times 127 could overflow; a power of two takes it down without rounding."""


def quantise_columns(weights: Array) -> tuple[Codes, Array]:
    """Return int8 codes [n, k] and scales [n] of n output columns, each given as a row.

    NaN and infinite weights become 0 and do not count for the scale.
    """
    finite = np.isfinite(weights)
    if not finite.all():
        weights = np.where(finite, weights, np.float32(0))
    amax: Array = np.abs(weights).max(axis=1, initial=np.float32(0))
    amax[amax < TINY] = 1
    scales: Array = amax / np.float32(LEVELS)
    return _codes(weights, amax), scales


def quantise_rows(x: Array) -> tuple[Codes, Array]:
    """Return int8 codes [m, k] and scales [m] of activation rows.

    A row with a NaN or infinite value gets the scale NaN: the failure shows in its logits instead
    of turning into plausible numbers.
    """
    amax: Array = np.abs(x).max(axis=1, initial=np.float32(0))
    broken = ~np.isfinite(amax)
    if broken.any():
        x = np.where(broken[:, None], np.float32(0), x)
        amax[broken] = 0
    amax[amax == 0] = LEVELS  # the scale of an empty row is 1
    scales: Array = amax / np.float32(LEVELS)
    codes = _codes(x, amax)
    scales[broken] = np.nan
    return codes, scales


def dequantise(c: NDArray[np.int32], row_scale: Array, column_scale: Array) -> Array:
    """Return C [m, n] times its row and column scales, float32."""
    y: Array = c.astype(np.float32)
    y *= row_scale[:, None]
    y *= column_scale
    return y


def multiply_exact(a: Codes, b: Codes) -> NDArray[np.int32]:
    """Return A [m, k] times B [n, k] transposed, exact.

    Float32 GEMMs over at most 1024 columns at a time: every partial sum is an integer below 2^24,
    so no order of summation rounds.
    """
    m, k = a.shape
    total = np.zeros((m, b.shape[0]), np.int32)
    for start in range(0, k, 1024):
        stop = start + 1024
        product = a[:, start:stop].astype(np.float32) @ b[:, start:stop].astype(np.float32).T
        total += product.astype(np.int32)
    return total


def _codes(values: Array, amax: Array) -> Codes:
    """Return round_half_away(values * 127 / amax), clamped, for rows of `values`."""
    huge = amax > _HUGE
    if huge.any():
        down: Array = np.where(huge, np.float32(2**-16), np.float32(1)).astype(np.float32)
        values = values * down[:, None]
        amax = amax * down
    scaled = values * np.float32(LEVELS)
    np.divide(scaled, amax[:, None], out=scaled)
    np.add(scaled, np.copysign(_HALF, scaled), out=scaled)
    np.clip(scaled, -LEVELS, LEVELS, out=scaled)
    return scaled.astype(np.int8)  # truncates towards zero
