"""Rotary position embedding, half-split pairs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from onebit.plan.model import RopeScaling, RopeTable

Array = NDArray[np.float32]


def inverse_frequencies(table: RopeTable, context: int) -> NDArray[np.float64]:
    """Return the dim / 2 inverse frequencies of a rope table, scaling applied.

    Args:
        table: The recipe.
        context: Context in use, tokens: longrope takes its long factors when it is beyond the
            original context. One choice for a program's life keeps a token's KV the same.

    Sources: Su et al., "RoFormer", 2021; the scaling kinds as in Hugging Face's
    `modeling_rope_utils`.
    """
    base: NDArray[np.float64] = table.theta ** (
        -np.arange(0, table.dim, 2, dtype=np.float64) / table.dim
    )
    scaling = table.scaling
    if scaling.kind == "linear":
        return base / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(base, scaling)
    if scaling.kind == "longrope":
        long = context > scaling.original_context > 0
        factors = np.asarray(scaling.long_factor if long else scaling.short_factor, np.float64)
        return base / factors
    if scaling.kind == "yarn":
        return _yarn(base, table)
    return base


def _llama3(inverse: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    wavelength = 2 * math.pi / inverse
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (scaling.original_context / wavelength - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)
    mixed: NDArray[np.float64] = (1 - smooth) * inverse / scaling.factor + smooth * inverse
    return mixed


def _yarn(inverse: NDArray[np.float64], table: RopeTable) -> NDArray[np.float64]:
    scaling, dim = table.scaling, table.dim

    def dimension(rotations: float) -> float:
        turns = scaling.original_context / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(table.theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), dim - 1)
    span = max(high - low, 0.001)
    ramp = np.clip((np.arange(dim // 2) - low) / span, 0, 1)
    return inverse / scaling.factor * ramp + inverse * (1 - ramp)


def cos_sin(table: RopeTable, positions: NDArray[np.int32], context: int) -> tuple[Array, Array]:
    """Return cos and sin, each [rows, dim / 2] float32, the attention factor included.

    Angles are computed in float64 and rounded once.
    """
    angles = positions.astype(np.float64)[:, None] * inverse_frequencies(table, context)[None, :]
    factor = table.scaling.attention_factor
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(
        np.float32
    )


def rope(x: Array, cos: Array, sin: Array, head_dim: int) -> Array:
    """Return x with pairs (i, i + dim / 2) of every head rotated; the rest of a head passes.

    Args:
        x: [rows, heads * head_dim] float32.
        cos: [rows, dim / 2] float32, see `cos_sin`.
        sin: [rows, dim / 2] float32.
        head_dim: Width of a head; dim <= head_dim.
    """
    rows, width = x.shape
    heads = x.reshape(rows, width // head_dim, head_dim)
    half = cos.shape[1]
    first, second = heads[:, :, :half], heads[:, :, half : 2 * half]
    c, s = cos[:, None, :], sin[:, None, :]
    out = heads.copy()
    out[:, :, :half] = first * c - second * s
    out[:, :, half : 2 * half] = second * c + first * s
    return out.reshape(rows, width)
