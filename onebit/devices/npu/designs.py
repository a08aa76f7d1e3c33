"""GEMM designs: which ones a plan needs, and how each linear op is split over them.

A design multiplies A int8 [128, K] by B int8 [K, N] to C int32 [128, N]; its file is named for
its role and shape, never for a model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from onebit.plan.model import Linear, Plan

ROWS: Final = 128
"""Rows of every launch (M): fewer cost the same."""
STEP: Final = 128
"""K and N of a design are multiples of this."""
INNER_STEP: Final = 512
"""Some kernel builders pad the MLP's inner width to multiples of this."""
HEAD: Final = "HEAD"
"""The role without a design of its own: it is tiled over the widest design with its K."""

_NAME = re.compile(r"full_i8_([A-Za-z0-9]+)_K(\d+)_N(\d+)\.elf")

OpKey = tuple[str, int, tuple[int, ...]]
"""Role, K and the N of each piece of a linear op."""


@dataclass(frozen=True, slots=True, order=True)
class Design:
    """One GEMM design: role and padded shape."""

    role: str
    k: int
    n: int

    @property
    def name(self) -> str:
        """The file's name."""
        return f"full_i8_{self.role}_K{self.k}_N{self.n}.elf"


@dataclass(frozen=True, slots=True)
class Part:
    """Columns begin..end of a linear op's stacked outputs, computed by one design."""

    design: Design
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class DesignChoice:
    """Designs for every linear op of a plan.

    Attributes:
        parts: The parts of each op, in column order; ops with a missing design are left out.
        missing: For each design that is not there: the file names that would do, best first.
    """

    parts: Mapping[OpKey, tuple[Part, ...]]
    missing: tuple[tuple[str, ...], ...]

    @property
    def designs(self) -> tuple[Design, ...]:
        """The designs in use, each once."""
        return tuple(dict.fromkeys(p.design for parts in self.parts.values() for p in parts))


def parse_name(name: str) -> Design | None:
    """Return the design that a file name stands for, or None."""
    match = _NAME.fullmatch(name)
    return Design(match[1], int(match[2]), int(match[3])) if match else None


def padded(size: int, step: int = STEP) -> int:
    """Return `size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


def op_key(op: Linear) -> OpKey:
    """Return what decides which designs an op runs on."""
    return op.role, op.k, op.n


def linear_ops(plan: Plan) -> Iterator[tuple[int | None, Linear]]:
    """Yield (layer or None, op) of every linear op, in the order of the forward."""
    for index in range(len(plan.layers)):
        for op in plan.layer_ops(index):
            if isinstance(op, Linear):
                yield index, op
    for op in plan.epilogue:
        if isinstance(op, Linear):
            yield None, op


def choose_designs(plan: Plan, available: Collection[str]) -> DesignChoice:
    """Return which of the available design files run a plan.

    Gate and up run fused when a fused design is there or no split one is; else split. The head is
    tiled over the widest design with its K.

    Args:
        plan: The plan.
        available: Names of usable files.
    """
    parts: dict[OpKey, tuple[Part, ...]] = {}
    missing: dict[tuple[str, ...], None] = {}
    ops = dict.fromkeys(op_key(op) for _, op in linear_ops(plan))
    for role, k, n in (key for key in ops if key[0] != HEAD):
        found: list[Part] = []
        for wanted, begin, end in _split(role, k, n, available):
            design = next((d for d in wanted if d.name in available), None)
            if design is None:
                missing[tuple(d.name for d in wanted)] = None
            else:
                found.append(Part(design, begin, end))
        if found and found[-1].end == sum(n) and found[0].begin == 0:
            parts[role, k, n] = tuple(found)
    chosen = {part.design for found in parts.values() for part in found}
    for role, k, n in (key for key in ops if key[0] == HEAD):
        tile = max((d for d in chosen if d.k == padded(k)), key=lambda d: (d.n, d), default=None)
        if tile is not None:
            parts[role, k, n] = _tiles(tile, sum(n))
    return DesignChoice(parts, tuple(missing))


def needed_names(plan: Plan) -> tuple[str, ...]:
    """Return the design files that a plan needs when nothing is there yet."""
    return tuple(names[0] for names in choose_designs(plan, ()).missing)


def _split(
    role: str, k: int, n: tuple[int, ...], available: Collection[str]
) -> list[tuple[list[Design], int, int]]:
    """Return (candidates, begin, end) for each launch of an op."""
    fused = _candidates(role, k, n)
    total = sum(n)
    if role != "GU" or len(n) != 2 or any(d.name in available for d in fused):
        return [(fused, 0, total)]
    gate, up = _candidates("G", k, n[:1]), _candidates("U", k, n[1:])
    if not any(d.name in available for d in gate):
        return [(fused, 0, total)]
    return [(gate, 0, n[0]), (up, n[0], total)]


def _candidates(role: str, k: int, n: tuple[int, ...]) -> list[Design]:
    """Return the designs that can run a role, best first; a wider one computes unused columns."""
    exact = Design(role, padded(k), padded(sum(n)))
    if role in ("GU", "G", "U"):
        wide = Design(role, padded(k), sum(padded(width, INNER_STEP) for width in n))
    elif role == "D":
        wide = Design(role, padded(k, INNER_STEP), padded(sum(n)))
    else:
        return [exact]
    return [exact] if wide == exact else [exact, wide]


def _tiles(tile: Design, total: int) -> tuple[Part, ...]:
    starts = range(0, total, tile.n)
    return tuple(Part(tile, begin, min(begin + tile.n, total)) for begin in starts)
