"""Measures one program: steps of random tokens, without text, sampling or HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from onebit.container import TensorKind, TensorView
from onebit.container.kinds import GROUP_COLS
from onebit.devices.base import Program, StepBatch
from onebit.devices.cpu import CpuProgram, read_bandwidth
from onebit.plan import Linear, Plan, Weights

SEQUENCES = (1, 4, 8, 16)
PROMPT = 512
DECODE_AT = 64
"""Positions already filled when decode is measured."""
SECONDS = 1.5
"""Time that one measurement repeats for, at least."""
MOST_REPEATS = 200


@dataclass(slots=True)
class ProgramSpeed:
    """What one program reached. Rates are tokens per second, medians over repeats."""

    prompt: int
    prefill: float
    first_token_ms: float
    """From a prompt of `prompt` tokens to its first token."""
    decode: dict[int, float]
    """Sequences -> tokens per second in total."""
    weight_bytes: int
    """Bytes of weights that a step reads."""
    kv_bytes: int
    """Bytes of KV that a step of one sequence reads where decode was measured."""
    read_rate: float
    """Bytes per second of a tuned read loop over the same weights; 0 without native kernels."""
    ops: dict[str, dict[str, tuple[int, float]]] = field(default_factory=dict)
    """`prefill` and `decode` -> phase -> (calls, seconds), when asked for."""

    @property
    def read_share(self) -> float:
        """Share of `read_rate` that decode of one sequence reaches."""
        if not self.read_rate:
            return 0.0
        return self.decode[1] * (self.weight_bytes + self.kv_bytes) / self.read_rate


class ProgramBench:
    """Runs steps on one program; every sequence has pages of its own."""

    def __init__(self, program: Program, plan: Plan, weights: Weights) -> None:
        self._program = program
        self._plan = plan
        self._weights = weights
        self._random = np.random.default_rng(0)
        options = program.info.options
        self.prompt = min(PROMPT, options.context, options.pages * options.page_size)

    def measure(self, *, ops: bool = False, counts: Sequence[int] = SEQUENCES) -> ProgramSpeed:
        """Return all speeds.

        Args:
            ops: Add the time of every phase.
            counts: Numbers of sequences to decode at once; those that do not fit are left out.
        """
        self.prefill_once()
        timed: dict[str, dict[str, tuple[int, float]]] = {}
        prefill = self._repeat(self.prefill_once)
        if ops:
            timed["prefill"] = self._timed(self.prefill_once)
        decode = {n: n / self._repeat(self._decoder(n)) for n in counts if self._fits(n)}
        if ops:
            timed["decode"] = self._timed(self._decoder(1))
        native = isinstance(self._program, CpuProgram)
        return ProgramSpeed(
            prompt=self.prompt,
            prefill=self.prompt / prefill,
            first_token_ms=prefill * 1e3,
            decode=decode,
            weight_bytes=step_weight_bytes(self._plan, self._weights),
            kv_bytes=self._kv_bytes(),
            read_rate=self._read_rate() if native else 0.0,
            ops=timed,
        )

    def _fits(self, sequences: int) -> bool:
        options = self._program.info.options
        enough = sequences * self._pages_each() <= options.pages
        return enough and sequences <= options.max_rows

    def prefill_once(self) -> None:
        """Compute a prompt and its last row's logits."""
        options = self._program.info.options
        tokens = self._tokens(self.prompt)
        table = np.arange(-(-self.prompt // options.page_size), dtype=np.int32)[None]
        for first in range(0, self.prompt, options.max_rows):
            rows = min(options.max_rows, self.prompt - first)
            index = np.arange(rows, dtype=np.int32)
            last = [rows - 1] if first + rows == self.prompt else []
            wanted = np.array(last, np.int32)
            logits = self._program.step(
                StepBatch(
                    tokens[first : first + rows], index + first, np.zeros_like(index), table, wanted
                )
            )
            if last:
                int(np.argmax(logits[0]))

    def _decoder(self, sequences: int) -> Callable[[], None]:
        index = np.arange(sequences, dtype=np.int32)
        pages = self._pages_each()
        tables = np.arange(sequences * pages, dtype=np.int32).reshape(sequences, pages)
        # The position moves as it would in use; it stays within the sequence's pages.
        room = pages * self._program.info.options.page_size - DECODE_AT
        count = 0

        def step() -> None:
            nonlocal count
            at = np.full(sequences, DECODE_AT + count % room, np.int32)
            count += 1
            batch = StepBatch(self._tokens(sequences), at, index, tables, index)
            np.argmax(self._program.step(batch), axis=1)

        return step

    def _pages_each(self) -> int:
        options = self._program.info.options
        return -(-min(DECODE_AT * 2, options.context) // options.page_size)

    def _tokens(self, count: int) -> NDArray[np.int32]:
        return self._random.integers(0, self._plan.vocab, count).astype(np.int32)

    @staticmethod
    def _repeat(action: Callable[[], None]) -> float:
        """Return the median seconds of `action`."""
        action()
        times: list[float] = []
        while sum(times) < SECONDS and len(times) < MOST_REPEATS:
            begun = time.perf_counter()
            action()
            times.append(time.perf_counter() - begun)
        return median(times)

    def _timed(self, action: Callable[[], None]) -> dict[str, tuple[int, float]]:
        program = self._program
        if not isinstance(program, CpuProgram):
            return {}
        program.time_ops(True)
        action()
        timings = program.timings()
        program.time_ops(False)
        return timings

    def _kv_bytes(self) -> int:
        item = 2 if self._program.info.options.kv_dtype == "bf16" else 4
        layers = [self._plan.attention(i) for i in range(len(self._plan.layers))]
        return sum(2 * op.kv_heads * op.head_dim * item for op in layers) * (DECODE_AT + 1)

    def _read_rate(self) -> float:
        views = {id(v): v for v in linear_weights(self._plan, self._weights)}
        arrays = [view.data for view in views.values()]
        return read_bandwidth(arrays, self._program.info.threads)


def linear_weights(plan: Plan, weights: Weights) -> list[TensorView]:
    """Return the weights that a step multiplies by, in order; a tied head counts once."""
    found: list[TensorView] = []
    for index in range(len(plan.layers)):
        for op in plan.layer_ops(index):
            if isinstance(op, Linear):
                found += [weights.layer(index)[role] for role in op.weights]
    for op in plan.epilogue:
        if isinstance(op, Linear):
            found += [weights.outer[role] for role in op.weights]
    return found


def step_weight_bytes(plan: Plan, weights: Weights) -> int:
    """Return the bytes of weights that one step reads; padded column groups are not read."""
    return sum(_read_bytes(view) for view in linear_weights(plan, weights))


def _read_bytes(view: TensorView) -> int:
    if not view.kind.is_tiled:
        scales = view.scale.nbytes if view.kind is TensorKind.INT8 and view.scale is not None else 0
        return view.data.size + scales
    blocks, _ = view.grid
    groups = -(-view.cols // GROUP_COLS)
    return blocks * groups * view.kind.tile_bytes * GROUP_COLS // view.kind.tile_cols


def memory_of(pid: int | str = "self") -> dict[str, int]:
    """Return a process's memory in bytes: `peak`, `anonymous`, `file`."""
    keys = {"VmHWM": "peak", "RssAnon": "anonymous", "RssFile": "file"}
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in keys:
            found[keys[name]] = int(rest.split()[0]) * 1024
    return found
