"""Telling encodings apart by the bytes alone: statistics of a sample of a tensor's tiles.

Each function returns evidence with its numbers; what to make of them is the caller's choice.
Sums and moments cannot see a permutation, so layouts are told by the codes: a quantiser that
scales every group to its extremes leaves a mark in each group, and a wrong reading mixes groups.
Samples are read through `TensorView.reader`, and are the same for the same tensor size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from onebit.container.bits import bf16_to_f32
from onebit.container.codecs.tiles import tile_records
from onebit.container.decode import decode, stored_planes
from onebit.container.kinds import GROUP_COLS, TILE_ROWS, TensorKind
from onebit.container.view import TensorView

SAMPLE_TILES = 32
"""8192 groups: enough for shares within a percent or two, and 211 tensors in a quarter second."""
_SPREAD = 0x9E3779B1  # odd, near 2^32 / golden ratio: multiples of it spread evenly
SURE = 0.9
"""A share from which on nearly all groups have a mark."""
MARGIN = 0.05
"""How far apart the shares of two readings must be to choose between them."""


@dataclass(frozen=True)
class ZeroEvidence:
    """What the second plane of 5120-byte tiles holds; over groups with d != 0.

    Attributes:
        groups: Groups looked at.
        zero_share: Share whose second plane is all zero bits.
        copied_share: Share of tiles whose second plane repeats the first byte by byte.
        in_range_share: Share with a value in 0..15, as zero points are.
        median: Median of the second plane.
        ratio_median: Median of second plane / d: in [-15, 0] for additive zeros.
        verdict: `signed` (q4_0), `additive` (q4_1), `subtractive` (q4nx), `copied` (8-bit codes
            cut to 4 bits: lost) or `unknown`.
    """

    groups: int
    zero_share: float
    copied_share: float
    in_range_share: float
    median: float
    ratio_median: float
    verdict: Literal["signed", "additive", "subtractive", "copied", "unknown"]


@dataclass(frozen=True)
class CodeEvidence:
    """How groups with d != 0 use their codes.

    Attributes:
        groups: Groups looked at.
        both_ends: Share that holds both the least and the greatest 4-bit code: near 1 for a
            min/max quantiser read rightly, 0.54..0.66 when codes are read in a wrong order.
        lowest: Share that holds the least code: 1 for codes that came from GGML's Q4_0.
        full_range: Share with a code of magnitude 127 or more; 8-bit kinds.
    """

    groups: int
    both_ends: float
    lowest: float
    full_range: float


@dataclass(frozen=True)
class LayoutEvidence:
    """Which code layout 8704-byte tiles have.

    Attributes:
        groups: Groups with d != 0 looked at.
        share_a: Share of them that reach magnitude 127 when read as layout A.
        share_b: The same for layout B. The right one is near 1, the wrong one near 0.75.
        verdict: `Q8_A`, `Q8_B`, or None when the codes do not tell. All-zero tensors are A.
    """

    groups: int
    share_a: float
    share_b: float
    verdict: TensorKind | None


@dataclass(frozen=True)
class TieEvidence:
    """How an output head compares with the embedding.

    Attributes:
        rows: Rows compared.
        cosine: Median cosine of row pairs: about 0.997 for a tied 4-bit head, 0 when untied or
            wrongly read.
        std_ratio: std(embedding) / std(head): about 1, or sqrt(hidden) for an embedding that is
            stored multiplied by it.
    """

    rows: int
    cosine: float
    std_ratio: float


def sample_tiles(view: TensorView, count: int = SAMPLE_TILES) -> TensorView:
    """Return up to `count` tiles, spread over the tensor, as a view one tile wide."""
    total = view.grid[0] * view.grid[1]
    spread = np.arange(count, dtype=np.uint64) * np.uint64(_SPREAD) % np.uint64(total)
    size = view.kind.tile_bytes
    picks = np.unique(spread) if total > count else np.arange(total, dtype=np.uint64)
    parts = [view.read(int(tile) * size, (int(tile) + 1) * size) for tile in picks]
    return _one_tile_wide(view, np.concatenate(parts))


def tile_runs(view: TensorView, count: int = 2048) -> Iterator[TensorView]:
    """Yield all tiles in order, `count` at a time, each run as a view one tile wide.

    With the same `count` every function here looks at all of a run: a full scan in bounded memory.
    """
    size = view.kind.tile_bytes
    for begin in range(0, view.data.size, count * size):
        yield _one_tile_wide(view, view.read(begin, min(begin + count * size, view.data.size)))


def zero_convention(view: TensorView, count: int = SAMPLE_TILES) -> ZeroEvidence:
    """Tell what the second plane of 5120-byte tiles means, from a sample."""
    tiles = tile_records(sample_tiles(view, count)).reshape(-1)
    live = (tiles["d"] & 0x7FFF) != 0
    live_tiles = live.any(axis=(1, 2))
    groups = int(live.sum())
    if not groups:
        return ZeroEvidence(0, 0.0, 0.0, 0.0, 0.0, 0.0, "unknown")
    copied = (tiles["d"] == tiles["m"]).all(axis=(1, 2))[live_tiles].mean()
    d, m = bf16_to_f32(tiles["d"][live]), bf16_to_f32(tiles["m"][live])
    with np.errstate(all="ignore"):
        ratio = np.median(m / d)
    in_range = ((m >= 0) & (m <= 15)).mean()
    zero_share, median = (tiles["m"][live] == 0).mean(), np.median(m)
    verdict: Literal["signed", "additive", "subtractive", "copied", "unknown"] = "unknown"
    if zero_share == 1:
        verdict = "signed"
    elif copied > 0.5:
        verdict = "copied"
    elif in_range > 0.99 and 3 <= median <= 12:
        verdict = "subtractive"
    elif -15.5 <= ratio <= 0.5:
        verdict = "additive"
    return ZeroEvidence(
        groups,
        float(zero_share),
        float(copied),
        float(in_range),
        float(median),
        float(ratio),
        verdict,
    )


def code_use(view: TensorView, count: int = SAMPLE_TILES) -> CodeEvidence:
    """Measure how the groups of a tiled tensor use their codes, from a sample."""
    planes = stored_planes(sample_tiles(view, count))
    rows, groups = planes.d.shape
    codes = planes.codes.reshape(rows, groups, GROUP_COLS)[planes.d != 0].astype(np.int16)
    if not len(codes):
        return CodeEvidence(0, 0.0, 0.0, 0.0)
    least = -8 if view.kind is TensorKind.Q4_0 else 0
    low, high = codes.min(axis=1), codes.max(axis=1)
    return CodeEvidence(
        len(codes),
        float(((low == least) & (high == least + 15)).mean()),
        float((low == least).mean()),
        float((np.maximum(-low, high) >= 127).mean()),
    )


def q8_layout(view: TensorView, count: int = SAMPLE_TILES) -> LayoutEvidence:
    """Tell code layout A from B for 8704-byte tiles, from a sample."""
    sample = sample_tiles(view, count)
    a, b = (
        code_use(TensorView(view.name, kind, sample.shape, sample.data), count)
        for kind in (TensorKind.Q8_A, TensorKind.Q8_B)
    )
    shares = {TensorKind.Q8_A: a.full_range, TensorKind.Q8_B: b.full_range}
    best = max(shares, key=lambda kind: shares[kind])
    gap = abs(a.full_range - b.full_range)
    verdict = best if a.groups == 0 or (shares[best] >= SURE and gap >= MARGIN) else None
    return LayoutEvidence(a.groups, a.full_range, b.full_range, verdict)


def q8_in_q4_share(view: TensorView, count: int = SAMPLE_TILES) -> float:
    """Return the share of tiles with d != 0 built as 8-bit tiles of 5120 bytes.

    Those repeat their 128 scales and end in 512 zero bytes. 0 when every tile is empty.
    """
    sample = sample_tiles(view, count)
    shape = (len(sample.data) // TensorKind.Q8_IN_Q4.tile_bytes * TILE_ROWS, 128)
    tiles = tile_records(TensorView(view.name, TensorKind.Q8_IN_Q4, shape, sample.data)).reshape(-1)
    live = tiles["d"].any(axis=(1, 2))
    built = (tiles["d"] == tiles["d_copy"]).all(axis=(1, 2)) & ~tiles["zeros"].any(axis=1)
    return float(built[live].mean()) if live.any() else 0.0


def most_covered(views: Sequence[TensorView]) -> TensorView:
    """Return the reading whose groups most often use both end codes; the first on a tie."""
    return max(views, key=lambda view: code_use(view).both_ends)


def tie(head: TensorView, embedding: TensorView, count: int = 8) -> TieEvidence:
    """Compare rows of an output head with the same rows of the embedding, `count` x 32 of them."""
    rows = min(head.rows, embedding.rows) // TILE_ROWS * TILE_ROWS
    starts = range(0, rows, max(TILE_ROWS, rows // count // TILE_ROWS * TILE_ROWS))[:count]
    a, b = (
        np.concatenate(
            [decode(view.block(at, at + TILE_ROWS, mapped=False)) for at in starts]
        ).astype(np.float64)
        for view in (head, embedding)
    )
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    live = lengths > 0
    if not live.any():
        return TieEvidence(0, 0.0, 0.0)
    cosine = np.median((a * b).sum(axis=1)[live] / lengths[live])
    return TieEvidence(int(live.sum()), float(cosine), float(b[live].std() / a[live].std()))


def _one_tile_wide(view: TensorView, data: NDArray[np.uint8]) -> TensorView:
    shape = (data.size // view.kind.tile_bytes * TILE_ROWS, view.kind.tile_cols)
    return TensorView(view.name, view.kind, shape, data)
