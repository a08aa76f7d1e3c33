"""A tensor as it lies in a container: raw bytes, a kind and a logical shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit.container.kinds import TILE_ROWS, TensorKind, rows_and_cols, tensor_bytes, tile_grid

BlockReader = Callable[[int, int], NDArray[np.uint8]]
"""Reads bytes begin..end of one tensor through a system call, not through the mapping."""


@dataclass(frozen=True, eq=False)
class TensorView:
    """A tensor in place; nothing is copied and nothing is decoded.

    Attributes:
        name: Name in the container's header.
        kind: How the bytes become values.
        shape: Logical shape, [out_features, in_features] or [size]; padding is not counted.
        data: uint8 [bytes], read-only, no alignment promised.
        scale: float32 [rows, ceil(cols / 32)], aligned, for `TensorKind.INT8` only.
        reader: Fetches a byte range of the tensor without the mapping, so that a file that is
            cut short under the mapping gives an error instead of a bus fault. Scans use it.
    """

    name: str
    kind: TensorKind
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    scale: NDArray[np.float32] | None = None
    reader: BlockReader | None = None

    def __post_init__(self) -> None:
        expected = tensor_bytes(self.kind, self.shape)
        if self.data.ndim != 1 or self.data.dtype != np.uint8 or self.data.size != expected:
            raise ValueError(
                f"{self.name}: {self.kind} {list(self.shape)} takes {expected} bytes, "
                f"got {self.data.size} of {self.data.dtype}"
            )
        if (self.scale is not None) != (self.kind is TensorKind.INT8):
            raise ValueError(f"{self.name}: int8 tables, and only they, have a scale")

    @property
    def rows(self) -> int:
        """Logical rows (out_features); 1 for a vector."""
        return rows_and_cols(self.shape)[0]

    @property
    def cols(self) -> int:
        """Logical columns (in_features), or the size of a vector."""
        return rows_and_cols(self.shape)[1]

    @property
    def grid(self) -> tuple[int, int]:
        """(row blocks, column blocks) of tiles; tiled kinds only."""
        return tile_grid(self.kind, self.shape)

    @property
    def row_step(self) -> int:
        """Rows that are stored together: 32 for tiles, 1 otherwise."""
        return TILE_ROWS if self.kind.is_tiled else 1

    def block(self, start: int, stop: int, *, mapped: bool = True) -> TensorView:
        """Return rows start..stop as a matrix view of its own.

        Args:
            start: First row, a multiple of `row_step`.
            stop: Row after the last; a multiple of `row_step`, or `rows`.
            mapped: True slices the mapping (zero copy); False reads through `reader`.
        """
        step = self.row_step
        if start % step or not 0 <= start < stop <= self.rows or (stop % step and stop < self.rows):
            raise ValueError(f"{self.name}: rows {start}..{stop} do not start and end on {step}s")
        bytes_per_step = self.data.size // -(-self.rows // step)
        begin, end = start // step * bytes_per_step, -(-stop // step) * bytes_per_step
        read = self.data.__getitem__ if mapped or self.reader is None else None
        data = read(slice(begin, end)) if read else self.read(begin, end)
        scale = None if self.scale is None else self.scale[start:stop]
        return TensorView(self.name, self.kind, (stop - start, self.cols), data, scale)

    def read(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return bytes begin..end of the tensor, safe against a file that shrinks meanwhile."""
        return self.data[begin:end] if self.reader is None else self.reader(begin, end)
