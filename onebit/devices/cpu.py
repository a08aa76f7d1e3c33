"""The CPU device: a plan as one native program, run without Python between its ops.

The native extension `onebit.devices._native` is optional: without it `native_status()` says why,
and `open_cpu` refuses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.devices import cpu_compile as compiled
from onebit.devices.base import ProgramInfo, ProgramOptions, StepBatch
from onebit.devices.cpu_build import BoundWeights, Builder
from onebit.devices.cpu_native import instruction_sets, native, native_status, read_bandwidth
from onebit.devices.cpu_threads import default_threads
from onebit.findings import DeviceError, UsageError, error
from onebit.ops.rope import cos_sin
from onebit.plan.model import Plan

NUMERICS = ("f32", "i16", "i8")
"""Arithmetic of the linear ops, most exact first; see kernels/host/linear.h."""
DEFAULT_NUMERICS = "i16"
PAGE_STEP = 16
"""KV pages hold a multiple of this many positions."""
ROPE_BLOCK = 256
"""Positions that the rope tables grow by."""


def open_cpu(
    plan: Plan, weights: BoundWeights, options: ProgramOptions, *, isa: str = ""
) -> CpuProgram:
    """Compile `plan` over `weights` into a native program.

    Args:
        plan: The model's plan.
        weights: Its tensors; the program reads them in place and keeps them alive.
        options: Sizes; `threads` 0 and `numerics` "auto" take this device's defaults, and
            "exact" is another name for "f32".
        isa: Instruction set to use instead of the best one.

    Raises:
        DeviceError: The native extension is missing.
        UsageError: An option's value is not one that this device has.
    """
    if native is None:
        raise DeviceError(
            error(
                "cpu.native_missing",
                f"the native kernels are not installed: {native_status()}",
                "reinstall onebit with a C++20 compiler present, or set `device: reference`",
            )
        )
    options = _resolved(options)
    return CpuProgram(plan, weights, options, _chosen_isa(isa))


def _resolved(options: ProgramOptions) -> ProgramOptions:
    """Fill in defaults and check what the type cannot."""
    numerics = {"auto": DEFAULT_NUMERICS, "exact": "f32"}.get(options.numerics, options.numerics)
    if numerics not in NUMERICS:
        raise UsageError(
            error(
                "cpu.numerics",
                f"the cpu device has no numerics {numerics!r}",
                f"set `numerics` to auto, exact, {', '.join(NUMERICS)}",
            )
        )
    if options.kv_dtype not in ("f32", "bf16"):
        raise UsageError(
            error(
                "cpu.kv_dtype",
                f"the cpu device keeps no KV cache as {options.kv_dtype!r}",
                "set `kv_dtype` to f32 or bf16",
            )
        )
    if options.page_size <= 0 or options.page_size % PAGE_STEP:
        raise UsageError(
            error(
                "cpu.page_size",
                f"the cpu device cannot use KV pages of {options.page_size} positions",
                f"use a multiple of {PAGE_STEP}",
            )
        )
    return replace(options, numerics=numerics, threads=options.threads or default_threads())


def _chosen_isa(isa: str) -> str:
    known = instruction_sets()
    if not isa:
        return known[-1]
    if isa not in known:
        raise UsageError(
            error(
                "cpu.isa",
                f"this build and machine have no instruction set {isa!r}",
                f"set ONEBIT_ISA to one of {', '.join(known)}, or unset it",
            )
        )
    return isa


class CpuProgram:
    """A native program. See `onebit.devices.base.Program`."""

    info: ProgramInfo

    def __init__(
        self, plan: Plan, weights: BoundWeights, options: ProgramOptions, isa: str
    ) -> None:
        builder = Builder(plan, weights, options, isa)
        self._native: Any = builder.native
        self._ropes = builder.ropes
        self._rope_rows = 0
        self._logits: NDArray[np.float32] | None = self._native.view(
            builder.values[compiled.LOGITS]
        )
        self.info = ProgramInfo(
            device="cpu",
            numerics=options.numerics,
            threads=options.threads,
            vocab=plan.vocab,
            options=options,
            detail={"isa": isa, "kv_bytes": str(self._native.kv_bytes)},
        )

    @property
    def alive(self) -> bool:
        """Whether further steps can succeed."""
        return self._native is not None

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        """Run one step; see `Program.step`.

        Raises:
            DeviceError: The program is closed.
            ValueError: The batch breaks the contract of `StepBatch`; nothing has run.
        """
        if self._native is None or self._logits is None:
            raise DeviceError(error("cpu.closed", "the program is closed", "open it again"))
        if batch.positions.size:
            self._grow_ropes(int(batch.positions.max()) + 1)
        self._native.step(
            batch.tokens, batch.positions, batch.sequences, batch.page_tables, batch.logits_for
        )
        return self._logits[: batch.logits_for.size, : self.info.vocab]

    def close(self) -> None:
        """Free everything; logits handed out stay readable while they are held."""
        self._native = None
        self._logits = None
        self._ropes = []

    def time_ops(self, on: bool) -> None:
        """Begin (clearing what was gathered) or end the timing of every phase."""
        self._native.time_phases(on)

    def timings(self) -> dict[str, tuple[int, float]]:
        """Return phase label -> (calls, seconds) since `time_ops(True)`."""
        result: dict[str, tuple[int, float]] = {}
        for label, calls, seconds in self._native.timings():
            before = result.get(label, (0, 0.0))
            result[label] = (before[0] + calls, before[1] + seconds)
        return result

    def _grow_ropes(self, positions: int) -> None:
        if positions <= self._rope_rows or positions > self.info.options.context:
            return
        end = min(-(-positions // ROPE_BLOCK) * ROPE_BLOCK, self.info.options.context)
        new = np.arange(self._rope_rows, end, dtype=np.int32)
        for recipe, cos, sin in self._ropes:
            cos[new], sin[new] = cos_sin(recipe, new, self.info.options.context)
        self._rope_rows = end


__all__ = ["CpuProgram", "instruction_sets", "native_status", "open_cpu", "read_bandwidth"]
