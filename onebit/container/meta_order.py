"""Tells scales that lie group by group inside a tile from scales that lie row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit.container.bits import bf16_to_f32
from onebit.container.codecs.tiles import tile_records
from onebit.container.detect import SURE
from onebit.container.kinds import GROUP_COLS, TILE_ROWS
from onebit.container.view import TensorView

META_TILES = 64


@dataclass(frozen=True)
class MetaOrderEvidence:
    """Whether the scales of a tile are group-major, as they must be, or row-major.

    Attributes:
        tiles: Tiles looked at.
        group_major: Share of the variance of log|d| inside tiles that rows and column groups
            explain when scales are read group-major.
        row_major: The same when read row-major.
        padding: Share of padded groups whose scale is zero when read group-major; 1 without
            padding.
        padding_row_major: The same when read row-major.
        swapped: Whether row-major fits clearly better.
    """

    tiles: int
    group_major: float
    row_major: float
    padding: float
    padding_row_major: float
    swapped: bool


def meta_order(view: TensorView, count: int = META_TILES) -> MetaOrderEvidence:
    """Tell whether a tile's scales lie group-major or row-major, from whole row blocks.

    Rows of a weight differ in size, and so do its columns; in the right order the scales of one
    row, and of one column group, are alike. In the wrong order that likeness is shuffled. Zero
    padding of the last column block is a second sign.
    """
    down, across = view.grid
    blocks = max(1, count // across)
    step = max(1, down // blocks)
    parts = [_tiles(view, block) for block in range(0, down, step)[:blocks]]
    stored = np.stack([_stored(part) for part in parts])  # [blocks, across, groups, 32]
    groups = stored.shape[2]
    by_row = stored.reshape(len(parts), across, TILE_ROWS, groups)
    factor = np.stack([_row_factor(part) for part in parts])  # [blocks, 32, across, 1]
    straight, turned = (
        (order * factor).reshape(-1, TILE_ROWS, across * groups)
        for order in (stored.transpose(0, 3, 1, 2), by_row.transpose(0, 2, 1, 3))
    )
    real = -(-view.cols // GROUP_COLS)
    fits = _explained(straight[:, :, :real], turned[:, :, :real])
    pads = [_zero_share(order[:, :, real:]) for order in (straight, turned)]
    better = fits[1] > fits[0] + 0.1 or 1 - fits[1] < 0.75 * (1 - fits[0])
    swapped = (better and pads[1] >= pads[0]) or (pads[1] == 1 and pads[0] < SURE)
    return MetaOrderEvidence(len(parts) * across, fits[0], fits[1], pads[0], pads[1], swapped)


def _tiles(view: TensorView, block: int) -> NDArray[np.void]:
    """Return the tile records of one row of tiles."""
    start = block * TILE_ROWS
    part = view.block(start, min(start + TILE_ROWS, view.rows), mapped=False)
    records: NDArray[np.void] = tile_records(part)[0]
    return records


def _stored(tiles: NDArray[np.void]) -> NDArray[np.float32]:
    """Return the magnitudes of the scales in the order of storage, [across, groups, 32]."""
    if "s" in (tiles.dtype.names or ()):
        return tiles["s"].astype(np.float32)
    with np.errstate(all="ignore"):
        return np.abs(bf16_to_f32(tiles["d"]))


def _row_factor(tiles: NDArray[np.void]) -> NDArray[np.float32]:
    """Return what multiplies the scales of a row, [32, across, 1]; only Q4_K has that."""
    if "S" not in (tiles.dtype.names or ()):
        return np.ones((TILE_ROWS, len(tiles), 1), np.float32)
    with np.errstate(all="ignore"):
        return np.abs(bf16_to_f32(tiles["S"])).T[:, :, None]


def _explained(*orders: NDArray[np.float32]) -> list[float]:
    """For each order the share of the spread of log|d| that row and column means explain.

    The spread is the greatest of any order: in Q4_K the factor of a row adds its own to a wrong
    one.
    """
    spreads = [_spread(scales) for scales in orders]
    total = max(whole for whole, _ in spreads)
    return [1 - rest / total if total else 0.0 for _, rest in spreads]


def _spread(scales: NDArray[np.float32]) -> tuple[float, float]:
    """Return the sum of squares of log|d| inside tiles, and what row and column means leave."""
    with np.errstate(all="ignore"):
        log = np.log(scales.astype(np.float64))
    finite = np.isfinite(log)
    log = np.where(finite, log, log[finite].mean() if finite.any() else 0.0)
    log = log - log.mean(axis=(1, 2), keepdims=True)
    by_row, by_col = log.mean(axis=2, keepdims=True), log.mean(axis=1, keepdims=True)
    return float(np.square(log).sum()), float(np.square(log - by_row - by_col).sum())


def _zero_share(scales: NDArray[np.float32]) -> float:
    return float((scales == 0).mean()) if scales.size else 1.0
