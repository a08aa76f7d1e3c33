"""Causal grouped-query attention of one sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def attention(
    q: Array,
    k: Array,
    v: Array,
    first_position: int,
    *,
    heads: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Array:
    """Return softmax(scale * q k^T) v for rows at consecutive positions of one sequence.

    Args:
        q: [rows, heads * head_dim] float32; row i stands at position `first_position` + i.
        k: [positions, kv_heads, head_dim] float32, positions 0 .. first_position + rows - 1.
        v: Like `k`.
        first_position: Position of the first row.
        heads: Query heads; head h reads KV head h // (heads / kv_heads).
        scale: Multiplies the scores.
        window: 0, or the number of positions a row sees, itself included.
        softcap: 0, or cap * tanh(score / cap) on scaled scores.

    Returns:
        [rows, heads * head_dim] float32.
    """
    rows = q.shape[0]
    positions, kv_heads, head_dim = k.shape
    group = heads // kv_heads
    queries = q.reshape(rows, kv_heads, group, head_dim)
    scores = np.einsum("rkgd,pkd->kgrp", queries, k, optimize=True) * np.float32(scale)
    if softcap:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    row_positions = np.arange(first_position, first_position + rows)[:, None]
    key_positions = np.arange(positions)[None, :]
    hidden = key_positions > row_positions
    if window:
        hidden |= key_positions <= row_positions - window
    scores = np.where(hidden, np.float32(-np.inf), scores)
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    out = np.einsum("kgrp,pkd->rkgd", weights, v, optimize=True)
    return np.ascontiguousarray(out.reshape(rows, heads * head_dim))
