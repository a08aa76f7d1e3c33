"""What runs int8 GEMMs for the NPU's arithmetic: the protocol, and the host's way of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onebit.devices.npu.designs import Design
from onebit.devices.npu.packing import Codes, multiply_exact


@dataclass(frozen=True, slots=True)
class Stored:
    """Weights of one launch, in the backend's own form."""

    design: Design
    width: int
    """Columns in use, at most the design's N."""
    k: int
    """Inputs in use, at most the design's K."""
    place: Any
    """The backend's handle."""


@dataclass(frozen=True, slots=True)
class Job:
    """One launch: at most 128 rows of activation codes [m, k] against stored weights."""

    weights: Stored
    rows: Codes


class GemmBackend(Protocol):
    """Stores packed weights and multiplies by them."""

    def store(self, design: Design, width: int, k: int) -> Stored:
        """Reserve zeroed room for `width` output columns of `k` inputs."""
        ...

    def fill(self, stored: Stored, column: int, codes: Codes) -> None:
        """Write codes [n, k] of the output columns from `column` on."""
        ...

    def finish(self, stored: Stored) -> None:
        """Say that all columns are filled."""
        ...

    def multiply(self, jobs: Sequence[Job]) -> Iterator[NDArray[np.int32]]:
        """Yield C [m, width] of each job, in order; valid until the next one is asked for.

        Raises:
            DeviceError: a launch failed.
        """
        ...

    def idle(self) -> None:
        """Say that nothing will run for a while."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class HostGemm:
    """The same GEMMs in NumPy, exact, without a device."""

    def store(self, design: Design, width: int, k: int) -> Stored:
        """Reserve codes [width, k]; see `GemmBackend`."""
        return Stored(design, width, k, np.zeros((width, k), np.int8))

    def fill(self, stored: Stored, column: int, codes: Codes) -> None:
        """Write codes; see `GemmBackend`."""
        stored.place[column : column + len(codes)] = codes

    def finish(self, stored: Stored) -> None:
        """Nothing is left to do."""

    def multiply(self, jobs: Iterable[Job]) -> Iterator[NDArray[np.int32]]:
        """Yield the products; see `GemmBackend`."""
        for job in jobs:
            yield multiply_exact(job.rows, job.weights.place)

    def idle(self) -> None:
        """Nothing cools down."""

    def close(self) -> None:
        """Nothing is held beside the weights."""
