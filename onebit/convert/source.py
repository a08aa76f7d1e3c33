"""What the converter reads from: tensors by name, some with codes worth keeping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onebit.container import TensorKind
from onebit.container.bits import bf16_to_f32, f16_to_f32
from onebit.container.codecs.tiles import Planes
from onebit.convert import blocks
from onebit.convert.gguf_file import GgufFile

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of a source.

    Attributes:
        name: Name.
        type: Name of its type, for people.
        shape: Logical shape.
        home: Kind that keeps its codes or its values best.
        has_codes: Whether `Source.planes` gives codes that `home` keeps.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    home: TensorKind
    has_codes: bool = False


class Source(Protocol):
    """A model file that can be converted."""

    @property
    def path(self) -> Path:
        """The file or directory."""
        ...

    @property
    def tensors(self) -> Mapping[str, SourceTensor]:
        """The tensors by name."""
        ...

    def planes(self, name: str, rows: Rows) -> Planes:
        """Return codes and scales of some rows; only when `has_codes`."""
        ...

    def values(self, name: str, rows: Rows) -> NDArray[np.float32]:
        """Return float32 values of some rows; a vector's rows are its elements, [rows, 1]."""
        ...


_HOMES = {
    "Q4_0": TensorKind.Q4_1,
    "Q4_1": TensorKind.Q4_1,
    "Q4_K": TensorKind.Q4_1,
    "Q8_0": TensorKind.Q8_A,
    "F32": TensorKind.BF16,
    "F16": TensorKind.BF16,
    "BF16": TensorKind.BF16,
}
"""Where a GGUF type's codes or values are kept; all others go to 8-bit tiles."""


class GgufSource:
    """A GGUF as a source."""

    def __init__(self, file: GgufFile) -> None:
        """Look at the file's tensor table."""
        self.path = file.path
        self._file = file
        self.tensors: Mapping[str, SourceTensor] = {
            t.name: SourceTensor(
                t.name,
                t.type.name,
                t.shape,
                _HOMES.get(t.type.name, TensorKind.Q8_A),
                has_codes=t.type in blocks.PLANES,
            )
            for t in file.tensors.values()
        }

    def planes(self, name: str, rows: Rows) -> Planes:
        """See `Source.planes`."""
        tensor = self._file.tensors[name]
        return blocks.PLANES[tensor.type](self._raw(name, rows))

    def values(self, name: str, rows: Rows) -> NDArray[np.float32]:
        """See `Source.values`."""
        tensor = self._file.tensors[name]
        if len(tensor.shape) == 1:
            whole = blocks.values(self._file.blocks(tensor, 0, 1), tensor.type)
            return whole.reshape(-1, 1)[rows]
        return blocks.values(self._raw(name, rows), tensor.type)

    def _raw(self, name: str, rows: Rows) -> NDArray[np.uint8]:
        """Return the bytes of some rows, reading no more than the span they lie in."""
        tensor = self._file.tensors[name]
        first, last = int(rows.min()), int(rows.max())
        return self._file.blocks(tensor, first, last + 1)[rows - first]


def plain_values(raw: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """Return float32 of raw F32, F16 or BF16 bytes, flat."""
    if dtype == "F32":
        return raw.view("<f4")
    halves = raw.view("<u2")
    return bf16_to_f32(halves) if dtype == "BF16" else f16_to_f32(halves)
