"""Tells additive from subtractive zeros in every 5120-byte tile, not only in a sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit.container.bits import bf16_to_f32
from onebit.container.codecs.tiles import tile_records
from onebit.container.detect import SURE, tile_runs
from onebit.container.kinds import TensorKind
from onebit.container.view import TensorView

_KINDS = (TensorKind.Q4_1, TensorKind.Q4_0, TensorKind.Q4NX)
"""What the second plane of a tile can be; 0 in `_verdicts` is none of them."""
_LIVE = 32
"""Groups with a scale that a tile must have to tell anything."""


@dataclass(frozen=True)
class ZeroScan:
    """What the second planes of a tensor's tiles are.

    Attributes:
        tiles: Tiles with enough groups to tell.
        shares: Share of them that look like each kind.
        other: First tile that looks like another kind than the tensor is read as, and which;
            None without any.
    """

    tiles: int
    shares: dict[TensorKind, float]
    other: tuple[int, TensorKind] | None


def scan_zeros(view: TensorView) -> ZeroScan:
    """Look at the second plane of every tile of a q4_1, q4_0 or q4nx tensor."""
    counts = np.zeros(len(_KINDS) + 1, np.int64)
    here = _KINDS.index(view.kind) + 1
    other, done, live = None, 0, 0
    for run in tile_runs(view):
        verdicts, told = _verdicts(run)
        wrong = np.flatnonzero((verdicts != 0) & (verdicts != here))
        if other is None and wrong.size:
            other = done + int(wrong[0]), _KINDS[int(verdicts[wrong[0]]) - 1]
        counts += np.bincount(verdicts[told], minlength=len(counts))
        live, done = live + int(told.sum()), done + len(verdicts)
    shares = {kind: float(counts[i + 1] / max(1, live)) for i, kind in enumerate(_KINDS)}
    return ZeroScan(live, shares, other)


def _verdicts(tiles: TensorView) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return, for each tile, 1 + its place in `_KINDS` or 0, and whether it can tell."""
    records = tile_records(tiles).reshape(-1)
    live = ((records["d"] & 0x7FFF) != 0).reshape(len(records), -1)
    groups = live.sum(axis=1)
    d, m = (bf16_to_f32(records[field]).reshape(len(records), -1) for field in ("d", "m"))
    with np.errstate(all="ignore"):
        ratio = m / d
        marks = (
            (ratio >= -15.5) & (ratio <= 0.5) & (m != 0),  # as -(least value) / d of a group is
            m == 0,
            (m >= 2) & (m <= 15),  # as zero points are, and no group of weights
        )
    told = groups >= _LIVE
    found = np.zeros(len(records), np.intp)
    for place, mark in enumerate(marks):
        share = (mark & live).sum(axis=1) / np.maximum(groups, 1)
        found[told & (share >= SURE)] = place + 1
    return found, told
