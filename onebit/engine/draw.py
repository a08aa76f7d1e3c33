"""Choosing from a row of logits: the best k, and a draw by temperature, top_k, top_p, min_p.

All functions take one row, [vocab] float32, and never change it. Work per row is a few passes
over the vocabulary: the best k come from a bound by block maxima, not from a sort.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Ids = NDArray[np.intp]

_MASK = (1 << 64) - 1
_BLOCK = 64
_SUM_BLOCK = 512


def uniform(seed: int, choice: int, position: int) -> float:
    """Return a number in [0, 1) that depends on its arguments alone.

    SplitMix64's output function (Steele, Lea, Flood 2014) over the mixed arguments.
    """
    state = _mix((seed & _MASK) ^ _mix(choice + 1))
    return (_mix(state ^ _mix(position + 0x632BE59BD9B4E019)) >> 11) / (1 << 53)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def best(row: Row, k: int) -> Ids:
    """Return the ids of the k largest logits, largest first, ties in order of id."""
    size = row.size
    k = min(k, size)
    if k == 1:
        return np.array([row.argmax()], dtype=np.intp)
    block = min(_BLOCK, size // (2 * k))
    if block > 1:
        columns = size // block
        # Any k of the block maxima bound the k-th largest element from below.
        maxima = row[: block * columns].reshape(block, columns).max(axis=0)
        bound = np.partition(maxima, columns - k)[columns - k]
        candidates = np.flatnonzero(row >= bound)
    else:
        candidates = np.arange(size, dtype=np.intp)
    order = np.argsort(-row[candidates], kind="stable")[:k]
    return candidates[order]


def log_sum_exp(row: Row) -> float:
    """Return log(sum(exp(row))); summed in blocks, so it does not depend on other rows."""
    top = row.max()
    return float(top) + math.log(float(np.exp(row - top).sum()))


def draw(
    row: Row, temperature: float, top_k: int, top_p: float, min_p: float, number: float
) -> int:
    """Return a token drawn from softmax(row / temperature), cut by top_k, top_p and min_p.

    Each cut works on what the one before it left, renormalised. Candidates stand in order of
    id and `number`, in [0, 1), picks one by its place in their cumulated probability.

    Args:
        row: Logits, at least one of them finite and none NaN or +inf.
        temperature: Above 0.
        top_k: Keep the k most likely; 0 keeps all.
        top_p: Keep the fewest most likely that reach this sum of probabilities, in (0, 1].
        min_p: Keep those at least this fraction as likely as the likeliest, in [0, 1].
        number: Uniform random number.
    """
    if 0 < top_k < row.size:
        ids = best(row, top_k)
        weights = _weights(row[ids], temperature)
        if top_p < 1.0:
            ids, weights = _nucleus(ids, weights, top_p * float(weights.sum()))
    elif top_p < 1.0:
        ids, weights = _nucleus_of_all(row, temperature, top_p)
    else:
        weights = _weights(row, temperature)
        if min_p > 0.0:
            ids = np.flatnonzero(weights >= min_p)
            return int(ids[_place(weights[ids], number)])
        return _place(weights, number)
    if min_p > 0.0:
        kept = weights >= min_p
        ids, weights = ids[kept], weights[kept]
    order = np.argsort(ids)
    return int(ids[order[_place(weights[order], number)]])


def _weights(logits: Row, temperature: float) -> Row:
    """Return probabilities relative to the likeliest token, which has 1."""
    with np.errstate(over="ignore"):  # a tiny temperature gives -inf, and that is right
        scaled: Row = (logits - logits.max()) * np.float32(min(1.0 / temperature, 1e30))
    return np.exp(scaled)


def _nucleus(ids: Ids, weights: Row, mass: float) -> tuple[Ids, Row]:
    """Cut candidates, likeliest first, to the fewest whose weights reach `mass`."""
    cumulated = np.cumsum(weights, dtype=np.float64)
    count = min(int(np.searchsorted(cumulated, mass)) + 1, ids.size)
    return ids[:count], weights[:count]


def _nucleus_of_all(row: Row, temperature: float, top_p: float) -> tuple[Ids, Row]:
    """Find the nucleus among all tokens, looking at few of them if few suffice."""
    all_weights = _weights(row, temperature)
    mass = top_p * float(all_weights.sum(dtype=np.float64))
    count = 256
    while count < row.size // 2:
        ids = best(row, count)
        weights = all_weights[ids]
        if float(weights.sum(dtype=np.float64)) >= mass:
            return _nucleus(ids, weights, mass)
        count *= 8
    ids = best(row, row.size)
    return _nucleus(ids, all_weights[ids], mass)


def _place(weights: Row, number: float) -> int:
    """Return the index at which the cumulated weights pass `number` of their sum."""
    sums = np.cumsum(
        np.add.reduceat(weights, np.arange(0, weights.size, _SUM_BLOCK)), dtype=np.float64
    )
    target = number * sums[-1]
    block = min(int(np.searchsorted(sums, target, side="right")), sums.size - 1)
    start = block * _SUM_BLOCK
    inner = np.cumsum(weights[start : start + _SUM_BLOCK], dtype=np.float64)
    before = sums[block - 1] if block else 0.0
    index = int(np.searchsorted(inner, target - before, side="right"))
    if index < inner.size:
        return start + index
    # Rounding may put the target on the block's very end: its last token with any weight.
    return start + int(np.flatnonzero(weights[start : start + _SUM_BLOCK])[-1])
