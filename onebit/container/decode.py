"""From stored bytes to float32, whole or by rows, and to planes of codes and scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from onebit.container.codecs import plain, q4, q4_k, q8
from onebit.container.codecs.tiles import AllRows, Planes, SomeRows, TileRows
from onebit.container.kinds import TensorKind
from onebit.container.view import TensorView

BLOCK_VALUES = 1 << 20
"""Float32 values decoded at a time, so that working memory stays at some MB."""

_EIGHT_BIT = (TensorKind.Q8_A, TensorKind.Q8_B, TensorKind.Q8_IN_Q4)


def decode(view: TensorView) -> NDArray[np.float32]:
    """Return all values as float32 of `view.shape`, padding cut off, bit-exact.

    The codec of each kind documents its formula and rounding.
    """
    out = np.empty((view.rows, view.cols), np.float32)
    for start, values in iter_blocks(view):
        out[start : start + len(values)] = values
    return out.reshape(view.shape)


def decode_rows(
    view: TensorView, indexes: Sequence[int] | NDArray[np.integer]
) -> NDArray[np.float32]:
    """Return chosen rows as float32 [len(indexes), cols], in the order given.

    Only the bytes of those rows are touched: the way to look up embeddings.

    Raises:
        IndexError: An index is negative or not below `view.rows`.
    """
    rows = np.asarray(indexes, dtype=np.intp).reshape(-1)
    if rows.size and (rows.min() < 0 or rows.max() >= view.rows):
        raise IndexError(f"{view.name}: rows {rows.min()}..{rows.max()} of {view.rows}")
    if view.kind.is_tiled:
        return _read_planes(view.kind, SomeRows(view, rows)).values()[:, : view.cols]
    scale = None if view.scale is None else view.scale[rows]
    return plain.values(view.kind, plain.stored_matrix(view)[rows], scale)


def row_blocks(view: TensorView, values: int = BLOCK_VALUES) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) row ranges that start on `view.row_step` and hold about `values`."""
    step = view.row_step
    rows = max(step, values // max(view.cols, 1) // step * step)
    for start in range(0, view.rows, rows):
        yield start, min(start + rows, view.rows)


def iter_blocks(
    view: TensorView, values: int = BLOCK_VALUES, *, mapped: bool = True
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield (first row, float32 [rows, cols]) block by block, in bounded memory.

    Args:
        view: Any tensor.
        values: About how many float32 values a block has.
        mapped: False reads the file instead of the mapping (see `TensorView.reader`).
    """
    for start, stop in row_blocks(view, values):
        yield start, _decode_block(view.block(start, stop, mapped=mapped))


def planes(view: TensorView) -> Planes:
    """Return scales, zeros and codes of a tiled tensor, padding cut off.

    Groups are ceil(cols / 32); take `view.block(...)` first to bound memory.
    """
    return stored_planes(view).cut(view.rows, view.cols)


def stored_planes(view: TensorView) -> Planes:
    """Return scales, zeros and codes as stored, with the padded rows and columns."""
    return _read_planes(view.kind, AllRows(view))


def k_planes(view: TensorView) -> q4_k.KPlanes:
    """Return the stored parts of a Q4_K tensor, padded rows and columns included."""
    if view.kind is not TensorKind.Q4_K:
        raise ValueError(f"{view.name} is {view.kind}, not {TensorKind.Q4_K}")
    return q4_k.read_k_planes(AllRows(view))


def _read_planes(kind: TensorKind, rows: TileRows) -> Planes:
    if kind is TensorKind.Q4_K:
        return q4_k.read_planes(rows)
    if kind in _EIGHT_BIT:
        return q8.read_planes(rows)
    return q4.read_planes(kind, rows)


def _decode_block(view: TensorView) -> NDArray[np.float32]:
    if view.kind.is_tiled:
        return stored_planes(view).values()[: view.rows, : view.cols]
    return plain.values(view.kind, plain.stored_matrix(view), view.scale)
