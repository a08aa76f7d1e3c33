"""The native extension, if it was built, and what this machine lets it do."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

native: Any
"""The module `onebit.devices._native`; None where it is missing."""
try:
    native = import_module("onebit.devices._native")
    _why_missing = ""
except ImportError as failure:
    native = None
    _why_missing = str(failure)


def native_status() -> str:
    """Return why the native extension is missing; empty when it is there."""
    return _why_missing


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that this build and machine have, plainest first."""
    return tuple(native.instruction_sets()) if native is not None else ()


def read_bandwidth(arrays: list[NDArray[np.uint8]], threads: int, rounds: int = 5) -> float:
    """Return the bytes per second that a tuned read loop reaches on `arrays`, best of `rounds`."""
    rate: float = native.read_bandwidth(arrays, threads, rounds, instruction_sets()[-1])
    return rate
