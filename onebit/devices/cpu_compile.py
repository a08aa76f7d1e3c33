"""From a plan to the phases of a native program: fusing, packing, liveness and buffer layout.

A native program is a list of phases with a barrier after each, so fewer phases mean less waiting:

- row-local ops (embed, norms, rope, add, glu, softcap, writing KV, packing activations) that
  stand together become one row phase;
- a linear op becomes one phase over the strips of all its weights, with a following add or glu
  fused into it where nothing else reads the linear's own result;
- attention becomes one phase. After the last one only the rows whose logits are wanted go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onebit.plan.model import (
    Add,
    Attention,
    Embed,
    Glu,
    Linear,
    Op,
    Plan,
    RmsNorm,
    Rope,
    Softcap,
)

LOGITS = "logits"
ALIGN = 16
"""Columns that a buffer's row is rounded up to: one 64-byte vector of float32."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An op at its place: `layer` is None outside the layers."""

    op: Op
    layer: int | None


@dataclass(frozen=True, slots=True)
class Append:
    """Write k and v of every row to the layer's KV pages."""

    k: str
    v: str
    layer: int


@dataclass(frozen=True, slots=True)
class Pack:
    """Bring a value into the form that the following linear phase reads."""

    input: str


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """One row op with its layer."""

    op: Embed | RmsNorm | Rope | Add | Glu | Softcap | Append | Pack
    layer: int | None


@dataclass(slots=True)
class RowPhase:
    """Row ops in order."""

    ops: list[PlacedRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LinearPhase:
    """A linear op and the op fused into it."""

    op: Linear
    layer: int | None
    then: Add | Glu | None


@dataclass(frozen=True, slots=True)
class AttentionPhase:
    """Attention of one layer."""

    op: Attention
    layer: int


Phase = RowPhase | LinearPhase | AttentionPhase


@dataclass(frozen=True, slots=True)
class Compiled:
    """Phases of a program and where its values lie."""

    phases: tuple[Phase, ...]
    offsets: dict[str, int]
    """Value name -> first column of its buffer; `logits` has memory of its own and is not here."""
    kept: tuple[str, ...]
    """Values that live on after the last attention, besides its result."""
    last_attention: int
    """Index of the last attention phase; all later ones run on the wanted rows."""


def compile_plan(plan: Plan) -> Compiled:
    """Return the phases and buffer layout of `plan`."""
    phases = _phases(list(_unroll(plan)))
    last = max(i for i, phase in enumerate(phases) if isinstance(phase, AttentionPhase))
    live_in, live_out = _liveness(phases)
    attention = phases[last]
    assert isinstance(attention, AttentionPhase)
    kept = tuple(sorted(live_out[last] - {attention.op.out}))
    offsets = _layout(phases, live_in, live_out, plan.values)
    return Compiled(tuple(phases), offsets, kept, last)


def arena_columns(offsets: dict[str, int], widths: dict[str, int]) -> int:
    """Return the float32 columns per row that all buffers take together."""
    return max((at + _rounded(widths[name]) for name, at in offsets.items()), default=0)


def _unroll(plan: Plan) -> Iterator[Placed]:
    for op in plan.prologue:
        yield Placed(op, None)
    for index in range(len(plan.layers)):
        for op in plan.layer_ops(index):
            yield Placed(op, index)
    for op in plan.epilogue:
        yield Placed(op, None)


def _phases(ops: Sequence[Placed]) -> list[Phase]:
    phases: list[Phase] = []
    rows = RowPhase()
    packed: str | None = None  # the value whose packed form is at hand

    def flush() -> None:
        nonlocal rows
        if rows.ops:
            phases.append(rows)
            rows = RowPhase()

    index = 0
    while index < len(ops):
        op, layer = ops[index].op, ops[index].layer
        if isinstance(op, Linear):
            if packed != op.input:
                rows.ops.append(PlacedRow(Pack(op.input), layer))
            flush()
            then = _fusable(ops, index)
            phases.append(LinearPhase(op, layer, then))
            written = {then.out} if then is not None else set(op.out)
            packed = None if op.input in written else op.input
            index += 1 if then is None else 2
            continue
        if isinstance(op, Attention):
            assert layer is not None
            rows.ops.append(PlacedRow(Append(op.k, op.v, layer), layer))
            flush()
            phases.append(AttentionPhase(op, layer))
            packed = None if packed == op.out else packed
        else:
            rows.ops.append(PlacedRow(op, layer))
            packed = None if packed in row_writes(op) else packed
        index += 1
    flush()
    return phases


def _fusable(ops: Sequence[Placed], index: int) -> Add | Glu | None:
    """The op after linear `index`, if the linear's result is read by that op alone."""
    linear = ops[index].op
    assert isinstance(linear, Linear)
    if index + 1 == len(ops):
        return None
    after = ops[index + 1].op
    if isinstance(after, Add):
        fits = linear.out == (after.b,) and after.a != after.b and after.out != after.b
    elif isinstance(after, Glu):
        fits = (
            linear.out == (after.gate, after.up)
            and linear.n[0] == linear.n[1]
            and after.out not in linear.out
        )
    else:
        return None
    later = [placed.op for placed in ops[index + 2 :]]
    return after if fits and not any(_is_read(name, later) for name in linear.out) else None


def _is_read(name: str, ops: Sequence[Op]) -> bool:
    """Whether the value is read before it is written again."""
    for op in ops:
        if name in _op_reads(op):
            return True
        if name in _op_writes(op):
            return False
    return False


def _op_reads(op: Op) -> set[str]:
    if isinstance(op, Linear):
        return {op.input}
    if isinstance(op, Attention):
        return {op.q, op.k, op.v}
    return row_reads(op)


def _op_writes(op: Op) -> set[str]:
    if isinstance(op, Linear):
        return set(op.out)
    if isinstance(op, Attention):
        return {op.out}
    return row_writes(op)


def row_reads(op: Embed | RmsNorm | Rope | Add | Glu | Softcap | Append | Pack) -> set[str]:
    """Return the values that a row op reads."""
    match op:
        case Embed():
            return set()
        case RmsNorm() | Pack():
            return {op.input}
        case Rope():
            return set(op.values)
        case Add():
            return {op.a, op.b}
        case Glu():
            return {op.gate, op.up}
        case Softcap():
            return {op.value}
        case Append():
            return {op.k, op.v}


def row_writes(op: Embed | RmsNorm | Rope | Add | Glu | Softcap | Append | Pack) -> set[str]:
    """Return the values that a row op writes."""
    match op:
        case Embed() | RmsNorm() | Add() | Glu():
            return {op.out}
        case Rope():
            return set(op.values)
        case Softcap():
            return {op.value}
        case Append() | Pack():
            return set()


def _reads_writes(phase: Phase) -> tuple[set[str], set[str]]:
    """Values that a phase reads from before it, and values that it writes."""
    if isinstance(phase, RowPhase):
        reads: set[str] = set()
        writes: set[str] = set()
        for placed in phase.ops:
            reads |= row_reads(placed.op) - writes
            writes |= row_writes(placed.op)
        return reads, writes
    if isinstance(phase, AttentionPhase):
        return {phase.op.q}, {phase.op.out}
    if phase.then is None:
        return set(), set(phase.op.out)
    return ({phase.then.a} if isinstance(phase.then, Add) else set()), {phase.then.out}


def _liveness(phases: Sequence[Phase]) -> tuple[list[set[str]], list[set[str]]]:
    """Values that are needed at each phase's begin and end."""
    live_in: list[set[str]] = [set() for _ in phases]
    live_out: list[set[str]] = [set() for _ in phases]
    live = {LOGITS}
    for i in range(len(phases) - 1, -1, -1):
        reads, writes = _reads_writes(phases[i])
        live_out[i] = set(live)
        live = (live - writes) | reads
        live_in[i] = set(live)
    return live_in, live_out


def _layout(
    phases: Sequence[Phase],
    live_in: Sequence[set[str]],
    live_out: Sequence[set[str]],
    widths: dict[str, int],
) -> dict[str, int]:
    """Place values so that two share columns only if no phase needs both.

    Within a phase rows are at different ops at one time, so a value that any of its ops touches
    counts as alive throughout the phase.
    """
    neighbours: dict[str, set[str]] = {}
    for i, phase in enumerate(phases):
        reads, writes = _reads_writes(phase)
        alive = (live_in[i] | live_out[i] | reads | writes) - {LOGITS}
        for name in alive:
            neighbours.setdefault(name, set()).update(alive)
    offsets: dict[str, int] = {}
    for name in sorted(neighbours, key=lambda n: (-widths[n], n)):
        taken = sorted(
            (offsets[other], offsets[other] + _rounded(widths[other]))
            for other in neighbours[name]
            if other in offsets
        )
        at = 0
        for begin, end in taken:
            if at + _rounded(widths[name]) <= begin:
                break
            at = max(at, end)
        offsets[name] = at
    return offsets


def _rounded(width: int) -> int:
    return -(-width // ALIGN) * ALIGN
