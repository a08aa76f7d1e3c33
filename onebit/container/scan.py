"""Scans over every value or scale of a tensor, in bounded memory, safe against a shrinking file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onebit.container.bits import bf16_to_f32
from onebit.container.codecs import plain
from onebit.container.codecs.tiles import TILES, tile_records, unpack_metas
from onebit.container.decode import iter_blocks, row_blocks, stored_planes
from onebit.container.detect import MARGIN, SURE, LayoutEvidence, tile_runs
from onebit.container.kinds import GROUP_COLS, TILE_COLS, TILE_ROWS, TensorKind
from onebit.container.view import TensorView

Progress = Callable[[int], None]
"""Called with the number of further bytes that were read."""

ABSURD_SCALE = 1e3
"""A scale above this makes weights no trained model has."""

_EXPONENT = np.uint16(0x7F80)


@dataclass(frozen=True)
class ScaleScan:
    """What a full read of a tensor's scales (or of a plain tensor's values) showed.

    Attributes:
        count: Scales of logical groups, or values of a plain tensor.
        zero: Groups whose scale and zero are both 0, or values that are 0.
        nonfinite: Stored scales and zeros (or values) that are NaN or infinite.
        absurd: Scales of magnitude above `ABSURD_SCALE`; always 0 for plain tensors.
        max_abs: Greatest finite magnitude of a scale (or value).
        first_bad: Byte offset inside the tensor of the first non-finite one; None without any,
            and for int8 tables, whose scales are a tensor of their own.
    """

    count: int
    zero: int
    nonfinite: int
    absurd: int
    max_abs: float
    first_bad: int | None

    def plus(self, other: ScaleScan) -> ScaleScan:
        """Add up two scans, this one of the earlier bytes."""
        return ScaleScan(
            self.count + other.count,
            self.zero + other.zero,
            self.nonfinite + other.nonfinite,
            self.absurd + other.absurd,
            max(self.max_abs, other.max_abs),
            other.first_bad if self.first_bad is None else self.first_bad,
        )


@dataclass(frozen=True)
class PaddingScan:
    """Weights outside the logical shape that do not decode to 0: they must.

    Attributes:
        rows: Padded rows with a value other than 0.
        groups: Groups beyond the last column with a value other than 0.
    """

    rows: int
    groups: int


@dataclass(frozen=True)
class Difference:
    """How decoded values compare with a reference.

    Attributes:
        max_abs: Greatest absolute difference.
        rms: Root mean square difference.
        relative_rms: rms over the reference's root mean square; 0 for an all-zero reference.
        cosine: Cosine of the two tensors; 1 when both are all zero.
    """

    max_abs: float
    rms: float
    relative_rms: float
    cosine: float


def scan_scales(view: TensorView, progress: Progress | None = None) -> ScaleScan:
    """Read all scales (for a plain tensor all values) and count what is wrong with them."""
    total = ScaleScan(0, 0, 0, 0, 0.0, None)
    for start, stop in row_blocks(view):
        block = view.block(start, stop, mapped=False)
        base = start // view.row_step * (view.data.size // -(-view.rows // view.row_step))
        part = _scan_tiles(block, base) if view.kind.is_tiled else _scan_plain(block, base)
        total = total.plus(part)
        if progress is not None:
            progress(block.data.size)
    return total


def scan_padding(view: TensorView) -> PaddingScan:
    """Count padded rows and padded groups that do not decode to 0; tiled kinds."""
    row_count = group_count = 0
    for start, stop in row_blocks(view):
        block = view.block(start, stop, mapped=False)
        down, across = block.grid
        padded_rows = down * TILE_ROWS - block.rows
        first = -(-block.cols // GROUP_COLS)
        groups = across * block.kind.tile_cols // GROUP_COLS
        if not padded_rows and first == groups:
            continue
        values = stored_planes(block).values()
        row_count += int(np.any(values[block.rows :] != 0, axis=1).sum())
        tail = values[: block.rows, first * GROUP_COLS :].reshape(block.rows, -1, GROUP_COLS)
        group_count += int(np.any(tail != 0, axis=2).sum())
    return PaddingScan(row_count, group_count)


def compare(view: TensorView, reference: Callable[[int, int], NDArray[np.float32]]) -> Difference:
    """Compare a tensor with reference rows.

    Args:
        view: Tensor to decode.
        reference: Returns float32 [stop - start, cols] for rows start..stop.
    """
    worst = 0.0
    squares = dot = own = theirs = 0.0
    for start, values in iter_blocks(view):
        wanted = reference(start, start + len(values)).astype(np.float64)
        error = values - wanted
        worst = max(worst, float(np.abs(error).max(initial=0.0)))
        squares += float(np.square(error).sum())
        dot += float((values * wanted).sum())
        own += float(np.square(values, dtype=np.float64).sum())
        theirs += float(np.square(wanted).sum())
    rms = (squares / max(1, view.rows * view.cols)) ** 0.5
    relative = (squares / theirs) ** 0.5 if theirs else 0.0
    cosine = dot / (own * theirs) ** 0.5 if own and theirs else float(own == theirs)
    return Difference(worst, rms, relative, cosine)


def _scan_tiles(view: TensorView, base: int) -> ScaleScan:
    tiles = tile_records(view)
    fields = [name for name in ("d", "m", "S", "M") if name in (TILES[view.kind].names or ())]
    bad = sum(int(_nonfinite(tiles[field]).sum()) for field in fields)
    d, m = _group_planes(view)
    scale = np.abs(d[np.isfinite(d)])
    empty = (d == 0) & ((m == 0) if m is not None else True)
    return ScaleScan(
        d.size,
        int(empty.sum()),
        bad,
        int((scale > ABSURD_SCALE).sum()),
        float(scale.max(initial=0.0)),
        base + _first_bad(view, fields) if bad else None,
    )


def _group_planes(view: TensorView) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Return d and m of the logical groups without unpacking the codes."""
    tiles = tile_records(view)
    groups = -(-view.cols // GROUP_COLS)
    cut = np.s_[: view.rows, :groups]
    if view.kind is TensorKind.Q4_K:
        with np.errstate(all="ignore"):
            d = bf16_to_f32(tiles["S"])[:, :, None, :] * tiles["s"]
            m = bf16_to_f32(tiles["M"])[:, :, None, :] * tiles["z"]
        return unpack_metas(d)[cut], unpack_metas(m)[cut]
    d = bf16_to_f32(unpack_metas(tiles["d"])[cut])
    if "m" not in (TILES[view.kind].names or ()):
        return d, None
    return d, bf16_to_f32(unpack_metas(tiles["m"])[cut])


def _nonfinite(bits: NDArray[np.uint16]) -> NDArray[np.bool_]:
    masked: NDArray[np.bool_] = (bits & _EXPONENT) == _EXPONENT
    return masked


def _first_bad(view: TensorView, fields: Sequence[str]) -> int:
    """Return the offset inside the block of the first non-finite scale or zero."""
    tiles = tile_records(view).reshape(-1)
    layout = TILES[view.kind].fields
    assert layout is not None
    offsets: list[int] = []
    for field in fields:
        bad = np.flatnonzero(_nonfinite(tiles[field]))
        if bad.size:
            tile, index = divmod(int(bad[0]), tiles[field][0].size)
            offsets.append(tile * view.kind.tile_bytes + layout[field][1] + 2 * index)
    return min(offsets)


def _scan_plain(view: TensorView, base: int) -> ScaleScan:
    if view.scale is not None:
        return _scan_floats(view.scale, ABSURD_SCALE)
    values = plain.values(view.kind, plain.stored_matrix(view), None)
    found = _scan_floats(values, np.inf)
    if not found.nonfinite:
        return found
    first = int(np.flatnonzero(~np.isfinite(values))[0])
    return replace(found, first_bad=base + first * (view.data.size // values.size))


def _scan_floats(values: NDArray[np.float32], limit: float) -> ScaleScan:
    finite = np.isfinite(values)
    bad = int(values.size - finite.sum())
    sizes = np.abs(values[finite])
    return ScaleScan(
        values.size,
        int((values == 0).sum()),
        bad,
        int((sizes > limit).sum()),
        float(sizes.max(initial=0.0)),
        None,
    )


def scan_q8_layout(view: TensorView) -> tuple[LayoutEvidence, int | None]:
    """Tell the code layout from every tile; also the first tile that lies the other way."""
    kinds = (TensorKind.Q8_A, TensorKind.Q8_B)
    here = kinds.index(view.kind)
    reached, live, first_other, done = np.zeros(2), 0, None, 0
    for run in tile_runs(view, 256):
        counts = [_full_groups(TensorView(run.name, kind, run.shape, run.data)) for kind in kinds]
        groups = counts[0][1]
        shares = [full / np.maximum(groups, 1) for full, _ in counts]
        other = (shares[1 - here] >= SURE) & (shares[1 - here] >= shares[here] + MARGIN)
        other &= groups > TILE_ROWS
        if first_other is None and other.any():
            first_other = done + int(other.argmax())
        reached += [full.sum() for full, _ in counts]
        live, done = live + int(groups.sum()), done + len(groups)
    if not live:
        return LayoutEvidence(0, 0.0, 0.0, view.kind), None
    a, b = reached / live
    best = kinds[int(b > a)]
    return LayoutEvidence(live, a, b, best if max(a, b) >= SURE else None), first_other


def _full_groups(tiles: TensorView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each tile, its groups that reach 127 and its groups whose scale is not zero."""
    planes = stored_planes(tiles)
    codes = planes.codes.reshape(-1, TILE_ROWS * TILE_COLS // GROUP_COLS, GROUP_COLS)
    live = (planes.d != 0).reshape(codes.shape[:2])
    ends = (codes.max(axis=2) == 127) | (codes.min(axis=2) <= -127)
    return (ends & live).sum(axis=1), live.sum(axis=1)
