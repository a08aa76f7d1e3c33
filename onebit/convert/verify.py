"""Holds a written container against the source it was made of, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from onebit.container import Container, TensorKind, decode
from onebit.convert.encode import Encoder
from onebit.convert.gguf import gguf_encoders
from onebit.convert.gguf_file import GgufFile

BF16_ULP = 2.0**-7
"""Rounding to bfloat16 moves a value by at most half of this, relative."""


class TensorCheck(BaseModel):
    """How one tensor compares with its source."""

    model_config = ConfigDict(frozen=True)

    name: str
    source_type: str
    kind: TensorKind
    codes_kept: bool
    max_error: float = Field(description="Greatest absolute difference of a value.")
    bound: float | None = Field(
        description="Share of the rounding bound that the worst value uses, at most 1; "
        "null where codes were made anew."
    )
    relative_rms: float

    @property
    def holds(self) -> bool:
        """Whether the rounding bound holds; always true where there is none."""
        return self.bound is None or self.bound <= 1.0


def verify_gguf(source: Path, directory: Path) -> Iterator[TensorCheck]:
    """Yield one check per tensor of a directory that `convert_gguf` wrote.

    Bound for kept codes, w = d * q + m: (|d| * |q| + |m|) * 2^-8 + the float32 rounding of
    the sum; for bfloat16 tensors |w| * 2^-8.
    """
    container = Container.open(directory / "model.q4nx")
    try:
        with GgufFile(source) as file:
            for encoder in gguf_encoders(file, _types(container)):
                if encoder.name in container.entries:
                    yield _check(encoder, container)
    finally:
        container.close()


def _types(container: Container) -> list[tuple[str, TensorKind]]:
    """Return the kinds that the container has, so that the same encoders are made again."""
    sizes = {5120: TensorKind.Q4_1, 4736: TensorKind.Q4_K, 8704: TensorKind.Q8_A}
    return [
        (name, sizes[entry.shape[-1]] if entry.dtype == "I8" else TensorKind.BF16)
        for name, entry in container.entries.items()
        if len(entry.shape) > 1 and entry.dtype in ("I8", "BF16")
    ]


def _check(encoder: Encoder, container: Container) -> TensorCheck:
    kind = container.kind_of(encoder.name, encoder.shape)
    view = container.view(encoder.name, encoder.shape, kind)
    worst = used = squares = power = 0.0
    bounded = encoder.keeps_codes and kind is not TensorKind.Q4_K
    for start, stop in encoder.row_blocks():
        wanted = encoder.wanted(start, stop)
        made = decode(view.block(start, stop) if len(view.shape) > 1 else view)
        made = made.reshape(-1, 1)[start:stop] if len(view.shape) == 1 else made
        error = np.abs(made.astype(np.float64) - wanted)
        worst = max(worst, float(error.max(initial=0.0)))
        squares += float(np.square(error).sum())
        power += float(np.square(wanted, dtype=np.float64).sum())
        limit = _limit(encoder, wanted, start, stop) if bounded else None
        if kind is TensorKind.BF16:
            limit = np.abs(wanted.astype(np.float64)) * BF16_ULP / 2
        if limit is not None:
            used = max(used, float((error / np.maximum(limit, 1e-300)).max(initial=0.0)))
    return TensorCheck(
        name=encoder.name,
        source_type=encoder.source.tensors[encoder.source_name].type,
        kind=kind,
        codes_kept=encoder.keeps_codes,
        max_error=worst,
        bound=used if bounded or kind is TensorKind.BF16 else None,
        relative_rms=(squares / power) ** 0.5 if power else 0.0,
    )


def _limit(
    encoder: Encoder, wanted: NDArray[np.float32], start: int, stop: int
) -> NDArray[np.float64]:
    """Return the rounding bound of every value, float64."""
    planes = encoder.source.planes(encoder.source_name, encoder.recipe.rows[start:stop])
    step = np.repeat(np.abs(planes.d.astype(np.float64)), 32, axis=1)
    limit = step * np.abs(planes.codes.astype(np.float64))
    if planes.m is not None:
        limit += np.repeat(np.abs(planes.m.astype(np.float64)), 32, axis=1)
    bound: NDArray[np.float64] = limit * (BF16_ULP / 2) + np.abs(wanted) * 2.0**-22
    return bound
