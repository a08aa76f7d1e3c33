"""Choosing from a row of logits: the best k, and a draw by temperature, top_k, top_p, min_p.

A row is [vocab] float32 and never changed. Work is a few vectorised passes over it: the best k
come from a bound by block maxima, not from a sort, and temporaries live in one workspace.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Ids = NDArray[np.intp]

_MASK = (1 << 64) - 1
_BLOCK = 64
_MIN_COLUMNS = 512


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


class Workspace:
    """Temporaries of [vocab], so that rows need no fresh memory. For one thread."""

    def __init__(self, vocab: int) -> None:
        self.weights: Row = np.empty(vocab, np.float32)
        self.adjusted: Row = np.empty(vocab, np.float32)


class Peaks:
    """A row whose largest elements are found quickly, by way of the maxima of its columns.

    Element r * columns + c belongs to column c; what is left over past the last full row of
    columns stands alone.

    Attributes:
        row: The row.
        top: Its largest element; NaN if there is any.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self.top = np.float32(row.max())
        self._block = min(_BLOCK, max(1, row.size // _MIN_COLUMNS))
        self._columns = row.size // self._block

    @cached_property
    def _maxima(self) -> Row:
        body = self._block * self._columns
        columns = self.row[:body].reshape(self._block, self._columns)
        return np.concatenate([np.maximum.reduce(columns, axis=0), self.row[body:]])

    def above(self, bound: np.float32) -> Ids:
        """Return the ids of all elements >= bound, in order."""
        columns = self._columns
        hot = np.flatnonzero(self._maxima >= bound)
        if hot.size * 2 > columns:
            return np.flatnonzero(self.row >= bound)
        cut = int(np.searchsorted(hot, columns))
        steps = np.arange(self._block, dtype=np.intp) * columns
        body = (steps[:, None] + hot[:cut]).reshape(-1)
        ids: Ids = np.concatenate([body, hot[cut:] + (self._block - 1) * columns])
        found: Ids = ids[self.row[ids] >= bound]
        return found

    def best(self, k: int) -> Ids:
        """Return the ids of the k largest elements, largest first, ties in order of id."""
        count = self._maxima.size
        if k < count:
            # Any k of the maxima bound the k-th largest element from below.
            ids = self.above(np.partition(self._maxima, count - k)[count - k])
        else:
            ids = np.arange(self.row.size, dtype=np.intp)
        return ids[np.argsort(-self.row[ids], kind="stable")[:k]]


def log_sum_exp(peaks: Peaks, workspace: Workspace) -> float:
    """Return log(sum(exp(row)))."""
    weights = np.subtract(peaks.row, peaks.top, out=workspace.weights)
    np.exp(weights, out=weights)
    return float(peaks.top) + math.log(_sum(weights))


def draw(
    peaks: Peaks,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    number: float,
    workspace: Workspace,
) -> int:
    """Return a token drawn from softmax(row / temperature), cut by top_k, top_p and min_p.

    Each cut works on what the one before it left, renormalised. The candidates stand in order of
    id and `number` picks one by its place in their cumulated probability.

    Args:
        peaks: Logits; the largest is finite.
        temperature: Above 0.
        top_k: Keep the k most likely; 0 keeps all.
        top_p: Keep the fewest most likely that reach this sum of probabilities, in (0, 1].
        min_p: Keep those at least this fraction as likely as the likeliest, in [0, 1].
        number: Uniform random number in [0, 1).
        workspace: Temporaries.
    """
    row, scale = peaks.row, np.float32(min(1.0 / temperature, 1e30))
    if 0 < top_k < row.size:
        ids = np.sort(peaks.best(top_k))
        weights = _weights(row[ids], peaks.top, scale, np.empty(ids.size, np.float32))
        if top_p < 1.0:
            kept = _nucleus(weights, top_p * _sum(weights))
            ids, weights = ids[kept], weights[kept]
    elif top_p < 1.0:
        weights = _weights(row, peaks.top, scale, workspace.weights)
        ids = _nucleus_candidates(peaks, weights, scale, top_p)
        kept = _nucleus(weights[ids], top_p * _sum(weights))
        ids, weights = ids[kept], weights[ids[kept]]
    elif min_p > 0.0:
        ids = peaks.above(peaks.top + np.float32(temperature * math.log(min_p) - 1e-3))
        weights = _weights(row[ids], peaks.top, scale, np.empty(ids.size, np.float32))
    else:
        return _place(_weights(row, peaks.top, scale, workspace.weights), number)
    if min_p > 0.0:
        likely = weights >= np.float32(min_p)
        ids, weights = ids[likely], weights[likely]
    return int(ids[_place(weights, number)])


def _weights(logits: Row, top: np.float32, scale: np.float32, out: Row) -> Row:
    """Return probabilities relative to the likeliest token, which has 1."""
    np.subtract(logits, top, out=out)
    with np.errstate(over="ignore"):  # a tiny temperature gives -inf, and that is right
        np.multiply(out, scale, out=out)
    return np.exp(out, out=out)


def _nucleus_candidates(peaks: Peaks, weights: Row, scale: np.float32, top_p: float) -> Ids:
    """Return ids, in order, that hold the nucleus: all those above some weight."""
    total = _sum(weights)
    # What lies below (1 - top_p) * total / size cannot sum to more than 1 - top_p of the total.
    for share in (64, 4096, weights.size):
        least = (1.0 - top_p) * total / share
        if least < 1.0:
            ids = peaks.above(peaks.top + np.float32(math.log(least) / float(scale)))
            if _sum(weights[ids]) >= top_p * total:
                return ids
    return np.flatnonzero(weights > 0.0)


def _nucleus(weights: Row, mass: float) -> NDArray[np.intp]:
    """Return the indexes, in order, of the fewest largest weights that reach `mass`.

    Of equal weights the first ones are taken.
    """
    order = np.argsort(-weights, kind="stable")
    cumulated = np.cumsum(weights[order], dtype=np.float64)
    return np.sort(order[: int(np.searchsorted(cumulated, mass)) + 1])


def _sum(weights: Row) -> float:
    """Return the sum; partial sums of 64 float32, then float64."""
    columns = weights.size // _BLOCK
    body = columns * _BLOCK
    partial = np.add.reduce(weights[:body].reshape(_BLOCK, columns), axis=0)
    return float(partial.sum(dtype=np.float64)) + float(weights[body:].sum(dtype=np.float64))


def _place(weights: Row, number: float) -> int:
    """Return the index at which the cumulated weights pass `number` of their sum."""
    starts = np.arange(0, weights.size, 512)
    sums = np.cumsum(np.add.reduceat(weights, starts), dtype=np.float64)
    target = number * sums[-1]
    block = min(int(np.searchsorted(sums, target, side="right")), sums.size - 1)
    start = block * 512
    inner = np.cumsum(weights[start : start + 512], dtype=np.float64)
    before = sums[block - 1] if block else 0.0
    index = int(np.searchsorted(inner, target - before, side="right"))
    if index < inner.size:
        return start + index
    # Rounding may put the target on the block's very end: its last token with any weight.
    return start + int(np.flatnonzero(weights[start : start + 512])[-1])
