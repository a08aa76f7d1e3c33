"""The seam between engine and device: a step.

Rows of tokens with their positions and KV page numbers go in, logits of the rows asked for come
out. The engine knows page numbers only; the memory behind them belongs to the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step's input.

    Rows of one sequence stand together, in ascending position without gaps; the positions before
    the first row were computed by earlier steps (by this sequence or by another one that shares
    the page). A row attends to every earlier position of its sequence, rows of this batch
    included. KV of position p lies in page `page_tables[s, p // page_size]`.
    """

    tokens: NDArray[np.int32]
    """[rows] token ids."""
    positions: NDArray[np.int32]
    """[rows] position of each row in its sequence, from 0."""
    sequences: NDArray[np.int32]
    """[rows] index of each row's page table."""
    page_tables: NDArray[np.int32]
    """[sequences, max_pages] page numbers; entries past a sequence's end are -1."""
    logits_for: NDArray[np.int32]
    """[n] row indexes, ascending, whose logits are wanted; may be empty."""


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """How a program is laid out."""

    context: int
    """Largest position + 1 that any sequence may reach."""
    pages: int
    """KV pages in total."""
    page_size: int = 32
    """Positions per page."""
    max_rows: int = 256
    """Most rows in one step."""
    threads: int = 0
    """Worker threads; 0 lets the device choose."""
    numerics: str = "auto"
    """Arithmetic of the linear ops: a name of `devices`' own, `auto` for its default."""
    kv_dtype: str = "f32"
    """`f32` or `bf16`."""


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """What a program is, for the ready line, /health and the engine."""

    device: str
    """`cpu`, `npu`, `reference` or `null`."""
    numerics: str
    """The arithmetic in use, resolved."""
    threads: int
    vocab: int
    """Width of the logits."""
    options: ProgramOptions
    """As resolved: no zeros or `auto` left."""
    detail: dict[str, str]
    """More facts by name: instruction set, kernels directory, why slow."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How a device that can fail and come back is doing, for /health and the log."""

    state: Literal["starting", "ready", "degraded", "down", "closed"]
    """`degraded`: the last step failed; `down`: it waits before it starts again."""
    reason: str
    """What went wrong last; empty if nothing has."""
    restarts: int
    failures: int
    """Steps that failed."""


class Program(Protocol):
    """A plan bound to weights and a device, ready to run steps. Not thread-safe."""

    info: ProgramInfo

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        """Run one step and return logits [len(batch.logits_for), vocab], valid until the next.

        Raises:
            KvLost: the device was started anew before this step; nothing ran, and all KV is gone.
            DeviceError: the device failed; KV written by this step is undefined, the program
                can run further steps unless `alive` is False.
        """
        ...

    @property
    def alive(self) -> bool:
        """Whether further steps can succeed."""
        ...

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        ...


@runtime_checkable
class Watched(Protocol):
    """What a program has besides when its device can fail and come back."""

    @property
    def health(self) -> DeviceHealth:
        """How the device is doing; from any thread."""
        ...
