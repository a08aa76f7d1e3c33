"""One source tensor becomes one container tensor, block of rows by block of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from onebit.container import TensorKind, TensorSpec, tensor_bytes
from onebit.container.bits import round_to_bf16
from onebit.container.codecs import plain, q4, q4_k, q8
from onebit.container.codecs.tiles import Planes
from onebit.container.kinds import GROUP_COLS, TILE_ROWS
from onebit.convert.report import TensorReport
from onebit.convert.source import Source
from onebit.convert.transforms import Recipe
from onebit.findings import InputError, Where, error

BLOCK_VALUES = 1 << 22
_DTYPES = {TensorKind.BF16: "BF16", TensorKind.F32: "F32", TensorKind.F16: "F16"}
_KEEPS = {
    TensorKind.Q4_1: np.uint8,
    TensorKind.Q8_A: np.int8,
    TensorKind.Q8_B: np.int8,
    TensorKind.Q4_K: np.uint8,
}
"""Kinds that can hold a source's codes verbatim, and the codes' type."""


@dataclass
class Encoder:
    """Writes one tensor and measures what that changed.

    Attributes:
        source: Where the values come from.
        source_name: Tensor of the source.
        name: Name in the container.
        kind: Kind to store.
        recipe: Rows and arithmetic on the way.
        shape: Logical shape in the container.
    """

    source: Source
    source_name: str
    name: str
    kind: TensorKind
    recipe: Recipe
    shape: tuple[int, ...]
    _error: float = field(default=0.0, init=False)
    _power: float = field(default=0.0, init=False)

    @property
    def keeps_codes(self) -> bool:
        """Whether the container holds the source's own codes."""
        tensor = self.source.tensors[self.source_name]
        if not (tensor.has_codes and self.recipe.keeps_values and self.kind in _KEEPS):
            return False
        return (tensor.home is TensorKind.Q8_A) == (_KEEPS[self.kind] is np.int8)

    def spec(self) -> TensorSpec:
        """Return the tensor to write."""
        nbytes = tensor_bytes(self.kind, self.shape)
        dtype, shape = _DTYPES.get(self.kind, "I8"), self.shape
        if self.kind.is_tiled:
            shape = (nbytes // self.kind.tile_bytes, self.kind.tile_bytes)
        return TensorSpec(self.name, dtype, shape, nbytes, self._produce)

    def report(self) -> TensorReport:
        """Return what was done; complete only after the tensor was written."""
        tensor = self.source.tensors[self.source_name]
        return TensorReport(
            name=self.name,
            source=self.source_name,
            source_type=tensor.type,
            kind=self.kind,
            codes_kept=self.keeps_codes,
            relative_rms=(self._error / self._power) ** 0.5 if self._power else 0.0,
        )

    def wanted(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the exact values of rows start..stop, transforms applied."""
        values = self.source.values(self.source_name, self.recipe.rows[start:stop])
        if not self.recipe.keeps_values:
            values = values * np.float32(self.recipe.scale) + np.float32(self.recipe.offset)
        return values

    def row_blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows that start on whole tiles."""
        rows = len(self.recipe.rows)
        cols = self.shape[1] if len(self.shape) > 1 else 1
        step = max(TILE_ROWS, BLOCK_VALUES // cols // TILE_ROWS * TILE_ROWS)
        for start in range(0, rows, step):
            yield start, min(start + step, rows)

    def _produce(self) -> Iterator[NDArray[np.uint8]]:
        for start, stop in self.row_blocks():
            wanted = self.wanted(start, stop)
            if not np.isfinite(wanted).all():
                raise self._not_finite(start, wanted)
            if self.keeps_codes:
                planes = self.source.planes(self.source_name, self.recipe.rows[start:stop])
                data, made = self._keep(planes)
            else:
                data, made = self._quantise(wanted)
            self._error += float(np.square(made - wanted, dtype=np.float64).sum())
            self._power += float(np.square(wanted, dtype=np.float64).sum())
            yield data

    def _keep(self, planes: Planes) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        if self.kind is TensorKind.Q4_K:
            zeros = planes.m if planes.m is not None else np.zeros_like(planes.d)
            fitted = q4_k.fit(planes.d, zeros, planes.codes.view(np.uint8))
            return q4_k.pack(fitted), fitted.flat().values()
        rounded = Planes(
            round_to_bf16(planes.d),
            planes.codes,
            m=None if planes.m is None else round_to_bf16(planes.m),
        )
        pack = q8.pack if planes.m is None else q4.pack
        return pack(self.kind, rounded), rounded.values()

    def _quantise(
        self, wanted: NDArray[np.float32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        match self.kind:
            case TensorKind.BF16:
                data = plain.pack(self.kind, wanted).reshape(-1)
                return data, round_to_bf16(wanted)
            case TensorKind.F32:
                return plain.pack(self.kind, wanted).reshape(-1), wanted
            case TensorKind.Q8_A | TensorKind.Q8_B:
                planes = q8.quantize(wanted)
                data = q8.pack(self.kind, planes)
            case TensorKind.Q4_K:
                parts = q4_k.quantize(wanted)
                planes, data = parts.flat(), q4_k.pack(parts)
            case TensorKind.Q4_1:
                planes = q4.quantize(wanted)
                data = q4.pack(self.kind, planes)
            case _:
                raise ValueError(f"{self.kind} is not written")
        return data, _ragged(planes, wanted.shape[1])

    def _not_finite(self, start: int, wanted: NDArray[np.float32]) -> InputError:
        row, col = (int(i) for i in np.argwhere(~np.isfinite(wanted))[0])
        source_row = int(self.recipe.rows[start + row])
        what = (
            f"row {source_row}, block {col // 32} of 32 columns holds NaN or infinity: a scale of "
            "the source is not finite"
        )
        where = Where(file=str(self.source.path), field=self.source_name)
        return InputError(
            error("convert.nonfinite", what, "download or quantise the source again", where)
        )


def _ragged(planes: Planes, cols: int) -> NDArray[np.float32]:
    """Return the values of planes whose last group may be cut."""
    padding = ((0, 0), (0, -planes.codes.shape[1] % GROUP_COLS))
    if planes.codes.dtype == np.int8:
        codes: NDArray[np.int8] = np.pad(planes.codes.view(np.int8), padding)
        return Planes(planes.d, codes).values()[:, :cols]
    unsigned: NDArray[np.uint8] = np.pad(planes.codes.view(np.uint8), padding)
    return Planes(planes.d, unsigned, planes.m, planes.z).values()[:, :cols]
