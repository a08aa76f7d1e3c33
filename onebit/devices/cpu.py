"""The CPU device: a plan as one native program, run without Python between its ops.

The native extension `onebit.devices._native` is optional: without it `native_status()` says why,
and `open_cpu` refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onebit.container.decode import decode
from onebit.container.view import TensorView
from onebit.devices import cpu_compile as compiled
from onebit.devices.base import ProgramInfo, ProgramOptions, StepBatch
from onebit.devices.cpu_threads import default_threads
from onebit.findings import DeviceError, UsageError, error
from onebit.ops.rope import cos_sin
from onebit.plan.model import Add, Embed, Glu, Plan, RmsNorm, Rope, Softcap

_native: Any
try:
    _native = import_module("onebit.devices._native")
    _why_missing = ""
except ImportError as failure:
    _native = None
    _why_missing = str(failure)

NUMERICS = ("f32", "i16", "i8")
"""Arithmetic of the linear ops, most exact first; see kernels/host/linear.h."""
DEFAULT_NUMERICS = "i16"
PAGE_STEP = 16
"""KV pages hold a multiple of this many positions."""
ROPE_BLOCK = 256
"""Positions that the rope tables grow by."""


class BoundWeights(Protocol):
    """What `onebit.plan.bind` returns: tensors by layer and role."""

    @property
    def outer(self) -> Mapping[str, TensorView]:
        """Tensors outside the layers, by role."""
        ...

    def layer(self, index: int) -> Mapping[str, TensorView]:
        """Tensors of one layer, by role."""
        ...


def native_status() -> str:
    """Return why the native extension is missing; empty when it is there."""
    return _why_missing


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that this build and machine have, plainest first."""
    return tuple(_native.instruction_sets()) if _native is not None else ()


def read_bandwidth(arrays: list[NDArray[np.uint8]], threads: int, rounds: int = 5) -> float:
    """Return the bytes per second that a tuned read loop reaches on `arrays`, best of `rounds`."""
    rate: float = _native.read_bandwidth(arrays, threads, rounds, instruction_sets()[-1])
    return rate


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
    if _native is None:
        raise DeviceError(
            error(
                "cpu.native_missing",
                f"the native kernels are not installed: {_why_missing}",
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
        builder = _Builder(plan, weights, options, isa)
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


class _Builder:
    """Builds the native program of one plan."""

    def __init__(
        self, plan: Plan, weights: BoundWeights, options: ProgramOptions, isa: str
    ) -> None:
        self._plan = plan
        self._weights = weights
        self.native: Any = _native.Program(
            max_rows=options.max_rows,
            context=options.context,
            pages=options.pages,
            page_size=options.page_size,
            threads=options.threads,
            numerics=options.numerics,
            isa=isa,
            kv_bf16=options.kv_dtype == "bf16",
        )
        self._weight_ids: dict[int, int] = {}
        self._vector_ids: dict[int, int] = {}
        self.ropes: list[tuple[Any, NDArray[np.float32], NDArray[np.float32]]] = []
        self._rope_ids = {name: self._add_rope(name) for name in plan.ropes}
        self._kv_ids = [self._add_kv(i) for i in range(len(plan.layers))]

        program = compiled.compile_plan(plan)
        self.values = {
            name: self.native.add_value(plan.values[name], at)
            for name, at in program.offsets.items()
        }
        self.values[compiled.LOGITS] = self.native.add_value(plan.values[compiled.LOGITS], -1)
        for index, phase in enumerate(program.phases):
            self._add_phase(phase, program, index)
        self.native.seal()

    def _add_rope(self, name: str) -> int:
        recipe = self._plan.ropes[name]
        index: int = self.native.add_rope(recipe.dim // 2)
        cos, sin = self.native.rope_table(index)
        self.ropes.append((recipe, cos, sin))
        return index

    def _add_kv(self, layer: int) -> int:
        op = self._plan.attention(layer)
        index: int = self.native.add_kv(op.kv_heads, op.head_dim)
        return index

    def _view(self, role: str, layer: int | None) -> TensorView:
        if layer is None:
            return self._weights.outer[role]
        return self._weights.layer(layer)[role]

    def _weight(self, role: str, layer: int | None) -> int:
        view = self._view(role, layer)
        if id(view) not in self._weight_ids:
            self._weight_ids[id(view)] = self.native.add_weight(
                kind=view.kind.value,
                data=view.data,
                scale=view.scale,
                rows=view.rows,
                cols=view.cols,
            )
        return self._weight_ids[id(view)]

    def _vector(self, role: str | None, layer: int | None) -> int:
        if role is None:
            return -1
        view = self._view(role, layer)
        if id(view) not in self._vector_ids:
            self._vector_ids[id(view)] = self.native.add_vector(decode(view))
        return self._vector_ids[id(view)]

    def _add_phase(self, phase: compiled.Phase, program: compiled.Compiled, index: int) -> None:
        wanted = index > program.last_attention
        if isinstance(phase, compiled.RowPhase):
            ops = [native for row in phase.ops for native in self._row_ops(row)]
            names = [type(row.op).__name__ for row in phase.ops]
            self.native.add_rows(label=_row_label(names), wanted=wanted, ops=ops)
        elif isinstance(phase, compiled.LinearPhase):
            self._add_linear(phase, wanted)
        else:
            op = phase.op
            last = index == program.last_attention
            self.native.add_attention(
                label="attention",
                q=self.values[op.q],
                out=self.values[op.out],
                layer=self._kv_ids[phase.layer],
                heads=op.heads,
                scale=op.scale,
                window=op.window,
                softcap=op.softcap,
                kept=[self.values[name] for name in program.kept] if last else [],
                last=last,
            )

    def _add_linear(self, phase: compiled.LinearPhase, wanted: bool) -> None:
        op, then = phase.op, phase.then
        biases = op.biases or (None,) * len(op.weights)
        pieces = [
            _native.Piece(
                weight=self._weight(weight, phase.layer),
                bias=self._vector(bias, phase.layer),
                out=-1 if then is not None else self.values[out],
                scale=op.scale,
            )
            for weight, bias, out in zip(op.weights, biases, op.out, strict=True)
        ]
        self.native.add_linear(
            label=op.role if then is None else f"{op.role}+{then.op}",
            wanted=wanted,
            pieces=pieces,
            then="nothing" if then is None else then.op,
            out=-1 if then is None else self.values[then.out],
            other=self.values[then.a] if isinstance(then, Add) else -1,
            scale=then.scale if isinstance(then, Add) else 1.0,
            act=then.act if isinstance(then, Glu) else "",
        )

    def _row_ops(self, row: compiled.PlacedRow) -> list[Any]:
        """Native row ops of one op; rope has one per value."""
        ids, widths, make = self.values, self._plan.values, _native.RowOp
        match row.op:
            case Embed(weight=weight, out=out, scale=scale):
                return [make.embed(self._weight(weight, row.layer), ids[out], scale)]
            case RmsNorm() as op:
                return [
                    make.rms_norm(
                        ids[op.input],
                        self._vector(op.weight, row.layer),
                        ids[op.out],
                        op.groups,
                        widths[op.input] // op.groups,
                        op.eps,
                        op.offset,
                    )
                ]
            case Rope() as op:
                table = self._rope_ids[op.table]
                return [
                    make.rope(ids[name], table, widths[name] // op.head_dim, op.head_dim)
                    for name in op.values
                ]
            case Add() as op:
                return [make.add(ids[op.a], ids[op.b], ids[op.out], widths[op.out], op.scale)]
            case Glu() as op:
                return [make.glu(ids[op.gate], ids[op.up], ids[op.out], widths[op.out], op.act)]
            case Softcap() as op:
                return [make.softcap(ids[op.value], widths[op.value], op.cap)]
            case compiled.Append() as op:
                return [make.append(ids[op.k], ids[op.v], self._kv_ids[op.layer])]
            case compiled.Pack() as op:
                return [make.pack(ids[op.input], widths[op.input])]


def _row_label(names: list[str]) -> str:
    short = {"Embed": "embed", "RmsNorm": "norm", "Rope": "rope", "Append": "kv"}
    return "+".join(dict.fromkeys(short.get(name, name.lower()) for name in names))


__all__ = ["CpuProgram", "instruction_sets", "native_status", "open_cpu", "read_bandwidth"]
