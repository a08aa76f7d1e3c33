"""The tile layouts as NumPy record types, and access to their fields row by row.

A tile record has metas [groups, 32] (group-major, row fastest) and codes [halves, cols, lanes].
In 8-bit codes a lane is one row: row = half * lanes + lane. In 4-bit codes a lane is two rows,
low nibble first: row = half * 2 * lanes + 2 * lane + nibble. Records are packed, so that NumPy
reads them at any byte address.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onebit.container.bits import bf16_to_f32
from onebit.container.kinds import GROUP_COLS, TILE_ROWS, TensorKind
from onebit.container.view import TensorView

_Q4_1 = np.dtype([("d", "<u2", (8, 32)), ("m", "<u2", (8, 32)), ("q", "u1", (2, 256, 8))])

TILES: dict[TensorKind, np.dtype[np.void]] = {
    TensorKind.Q4_1: _Q4_1,
    TensorKind.Q4_0: _Q4_1,
    TensorKind.Q4NX: _Q4_1,
    TensorKind.Q4_K: np.dtype(
        [
            ("s", "u1", (8, 32)),
            ("z", "u1", (8, 32)),
            ("q", "u1", (1, 256, 16)),
            ("S", "<u2", (32,)),
            ("M", "<u2", (32,)),
        ]
    ),
    TensorKind.Q8_A: np.dtype([("d", "<u2", (8, 32)), ("q", "i1", (1, 256, 32))]),
    TensorKind.Q8_B: np.dtype([("d", "<u2", (8, 32)), ("q", "i1", (2, 256, 16))]),
    TensorKind.Q4_1_X64: np.dtype(
        [("d", "<u2", (2, 32)), ("m", "<u2", (2, 32)), ("q", "u1", (2, 64, 8))]
    ),
    TensorKind.Q8_IN_Q4: np.dtype(
        [
            ("d", "<u2", (4, 32)),
            ("d_copy", "<u2", (4, 32)),
            ("q", "i1", (2, 128, 16)),
            ("zeros", "u1", (512,)),
        ]
    ),
}


@dataclass(frozen=True, eq=False)
class Planes:
    """Codes and scales of some rows, apart: w = d * code + m, or d * (code - z), or d * code.

    Attributes:
        d: float32 [rows, groups], exact bfloat16 values (for Q4_K the exact product S * s).
        codes: uint8 or int8 [rows, cols].
        m: float32 [rows, groups], added; None where the kind adds nothing.
        z: float32 [rows, groups], subtracted from the codes; None where the kind has none.
    """

    d: NDArray[np.float32]
    codes: NDArray[np.uint8] | NDArray[np.int8]
    m: NDArray[np.float32] | None = None
    z: NDArray[np.float32] | None = None

    def cut(self, rows: int, cols: int) -> Planes:
        """Return the first `rows` and `cols`, groups cut to ceil(cols / 32)."""
        groups = -(-cols // GROUP_COLS)
        return Planes(
            self.d[:rows, :groups],
            self.codes[:rows, :cols],
            None if self.m is None else self.m[:rows, :groups],
            None if self.z is None else self.z[:rows, :groups],
        )

    def values(self) -> NDArray[np.float32]:
        """Return the float32 values [rows, cols]; cols must be a multiple of 32.

        Rounding: d * code is exact in float32 (8 or 16 significant bits times at most 8), so
        d * code + m rounds once. d * (code - z) rounds the difference, then the product.
        Non-finite scales give non-finite values.
        """
        rows, groups = self.d.shape
        out = self.codes.astype(np.float32).reshape(rows, groups, GROUP_COLS)
        with np.errstate(all="ignore"):
            if self.z is not None:
                out -= self.z[:, :, None]
            out *= self.d[:, :, None]
            if self.m is not None:
                out += self.m[:, :, None]
        return out.reshape(rows, groups * GROUP_COLS)


class TileRows(Protocol):
    """Fields of the tiles of some rows, laid out by logical row; columns include padding."""

    def metas(self, field: str) -> NDArray[Any]:
        """Return a [groups, 32] meta field as [rows, groups of the whole row]."""

    def per_row(self, field: str) -> NDArray[Any]:
        """Return a [32] field as [rows, column blocks]."""

    def codes8(self) -> NDArray[np.int8]:
        """Return 8-bit codes [rows, cols]."""

    def codes4(self) -> NDArray[np.uint8]:
        """Return 4-bit codes [rows, cols], 0..15."""


class AllRows:
    """Every stored row of a view, padded rows too."""

    def __init__(self, view: TensorView) -> None:
        self._tiles = tile_records(view)

    def metas(self, field: str) -> NDArray[Any]:
        """See `TileRows.metas`."""
        return unpack_metas(self._tiles[field])

    def per_row(self, field: str) -> NDArray[Any]:
        """See `TileRows.per_row`."""
        values = self._tiles[field].transpose(0, 2, 1)
        return values.reshape(-1, values.shape[2])

    def codes8(self) -> NDArray[np.int8]:
        """See `TileRows.codes8`."""
        codes = self._tiles["q"].transpose(0, 2, 4, 1, 3)
        return codes.reshape(codes.shape[0] * TILE_ROWS, -1)

    def codes4(self) -> NDArray[np.uint8]:
        """See `TileRows.codes4`."""
        pairs = self._tiles["q"].transpose(0, 2, 4, 1, 3)
        blocks, halves, lanes, across, cols = pairs.shape
        codes = np.empty((blocks, halves, lanes, 2, across, cols), np.uint8)
        np.bitwise_and(pairs, 15, out=codes[:, :, :, 0])
        np.right_shift(pairs, 4, out=codes[:, :, :, 1])
        return codes.reshape(blocks * TILE_ROWS, across * cols)


class SomeRows:
    """Chosen rows of a view, in the order given; only their own bytes are touched."""

    def __init__(self, view: TensorView, indexes: NDArray[np.intp]) -> None:
        self._tiles = tile_records(view)
        self._block, self._row = np.divmod(indexes, TILE_ROWS)

    def metas(self, field: str) -> NDArray[Any]:
        """See `TileRows.metas`."""
        return _flat(self._tiles[field][self._block, :, :, self._row])

    def per_row(self, field: str) -> NDArray[Any]:
        """See `TileRows.per_row`."""
        return self._tiles[field][self._block, :, self._row]

    def codes8(self) -> NDArray[np.int8]:
        """See `TileRows.codes8`."""
        codes = self._tiles["q"]
        half, lane = np.divmod(self._row, codes.shape[4])
        return _flat(codes[self._block, :, half, :, lane])

    def codes4(self) -> NDArray[np.uint8]:
        """See `TileRows.codes4`."""
        codes = self._tiles["q"]
        half, row = np.divmod(self._row, 2 * codes.shape[4])
        pairs = _flat(codes[self._block, :, half, :, row // 2])
        shift = (row % 2 * 4).astype(np.uint8)
        return (pairs >> shift[:, None]) & np.uint8(15)


def tile_records(view: TensorView) -> NDArray[np.void]:
    """Return the tiles of a view as records [row blocks, column blocks], zero copy."""
    return view.data.view(TILES[view.kind]).reshape(view.grid)


def unpack_metas(field: NDArray[Any]) -> NDArray[Any]:
    """Turn metas [row blocks, column blocks, groups, 32] into [rows, groups of the row]."""
    metas = field.transpose(0, 3, 1, 2)
    return metas.reshape(metas.shape[0] * TILE_ROWS, -1)


def bf16_metas(rows: TileRows, field: str) -> NDArray[np.float32]:
    """Return a bfloat16 meta field as float32 [rows, groups]."""
    return bf16_to_f32(rows.metas(field))


def empty_tiles(kind: TensorKind, rows: int, cols: int) -> NDArray[np.void]:
    """Return zeroed tile records [row blocks, column blocks] for a matrix."""
    blocks = (-(-rows // TILE_ROWS), -(-cols // kind.tile_cols))
    return np.zeros(blocks, TILES[kind])


def put_metas(tiles: NDArray[np.void], field: str, values: NDArray[Any]) -> None:
    """Store metas [rows, groups] into a [groups, 32] field; missing rows and groups stay zero."""
    blocks, across = tiles.shape
    groups = tiles[field].shape[2]
    full = _padded(values, blocks * TILE_ROWS, across * groups)
    tiles[field] = full.reshape(blocks, TILE_ROWS, across, groups).transpose(0, 2, 3, 1)


def put_per_row(tiles: NDArray[np.void], field: str, values: NDArray[Any]) -> None:
    """Store values [rows, column blocks] into a [32] field."""
    blocks, across = tiles.shape
    full = _padded(values, blocks * TILE_ROWS, across)
    tiles[field] = full.reshape(blocks, TILE_ROWS, across).transpose(0, 2, 1)


def put_codes8(tiles: NDArray[np.void], codes: NDArray[np.int8]) -> None:
    """Store 8-bit codes [rows, cols] into field `q`; missing rows and columns stay zero."""
    blocks, across, halves, cols, lanes = tiles["q"].shape
    full = _padded(codes, blocks * TILE_ROWS, across * cols)
    grid = full.reshape(blocks, halves, lanes, across, cols)
    tiles["q"] = grid.transpose(0, 3, 1, 4, 2)


def put_codes4(tiles: NDArray[np.void], codes: NDArray[np.uint8]) -> None:
    """Store 4-bit codes [rows, cols] of 0..15 into field `q`, two rows to a byte."""
    blocks, across, halves, cols, lanes = tiles["q"].shape
    full = _padded(codes, blocks * TILE_ROWS, across * cols)
    grid = full.reshape(blocks, halves, lanes, 2, across, cols)
    pairs = grid[:, :, :, 0] | (grid[:, :, :, 1] << 4)
    tiles["q"] = pairs.transpose(0, 3, 1, 4, 2)


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    """Join all axes but the first; works for no rows too."""
    return values.reshape(len(values), prod(values.shape[1:]))


def _padded(values: NDArray[Any], rows: int, cols: int) -> NDArray[Any]:
    if values.shape == (rows, cols):
        return values
    full = np.zeros((rows, cols), values.dtype)
    full[: values.shape[0], : values.shape[1]] = values
    return full
