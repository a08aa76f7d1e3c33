"""The null device: computes nothing, but answers as if it had read its pages.

The logits of a row are a fixed function of the tokens and positions that the row can see through
its page table, so a wrong page, position or a page overwritten too early gives another answer.
Engines and servers are tested on it without weights; a `NullScript` makes it say given things,
fail or take its time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit.devices.base import ProgramInfo, ProgramOptions, StepBatch
from onebit.findings import DeviceError, error

NextToken = Callable[[NDArray[np.int32]], "int | None"]
"""Given the tokens of positions 0 .. p as read from the pages: the next one, or None."""

_SPREAD = 3.0
_LEAD = 20.0


@dataclass(frozen=True, slots=True)
class NullScript:
    """What a null program does besides its own answers."""

    next_token: NextToken | None = None
    """Chooses the token whose logit stands far above the others; see `emit`."""
    fail_at: Collection[int] = ()
    """Numbers of steps, from 0, that raise DeviceError after spoiling the pages they wrote."""
    dead_from: int | None = None
    """Number of the step from which on every step fails and `alive` is False."""
    seconds_per_step: float = 0.0
    seconds_per_row: float = 0.0
    record: int = 256
    """Batches kept in `NullProgram.batches`, the latest."""


def emit(ids: Sequence[int], end: int | None = None) -> NextToken:
    """Return a script that answers every prompt with `ids` and then `end`, or `ids` for ever.

    It goes on from the longest start of `ids` that the text so far ends with, so it holds for any
    batch, and a prompt should not end with the first of the ids.
    """
    wanted = list(ids)

    def next_token(history: NDArray[np.int32]) -> int | None:
        tail = history[-len(wanted) :].tolist()
        for count in range(len(tail), -1, -1):
            if tail[len(tail) - count :] == wanted[:count]:
                break
        if count < len(wanted):
            return wanted[count]
        return wanted[0] if end is None else end

    return next_token


class NullProgram:
    """A program without weights. Its KV holds the token and a mark of every position.

    Attributes:
        info: What it is; the device is `null`.
        batches: The latest batches, as they came, for assertions.
        steps: Steps asked for so far.
    """

    def __init__(self, vocab: int, options: ProgramOptions, script: NullScript) -> None:
        self.info = ProgramInfo(
            device="null", numerics="f32", threads=1, vocab=vocab, options=options, detail={}
        )
        self.batches: deque[StepBatch] = deque(maxlen=script.record)
        self.steps = 0
        self._script = script
        self._alive = True
        slots = options.pages * options.page_size
        self._tokens = np.zeros(slots, np.int32)
        self._marks = np.arange(slots, dtype=np.uint64) * np.uint64(0x2545F4914F6CDD1D)
        base = np.random.default_rng(1).standard_normal(vocab, dtype=np.float32) * _SPREAD
        self._base = np.concatenate([base, base])

    @property
    def alive(self) -> bool:
        """Whether further steps can succeed."""
        return self._alive

    def close(self) -> None:
        """End it: further steps fail."""
        self._alive = False

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        """Run one step; see `Program.step`.

        Raises:
            DeviceError: the script says so, or the program is closed.
            ValueError: the batch breaks the contract of `StepBatch`.
        """
        number, self.steps = self.steps, self.steps + 1
        self.batches.append(batch)
        rows = batch.tokens.size
        pause = self._script.seconds_per_step + self._script.seconds_per_row * rows
        if pause:
            time.sleep(pause)
        self._check(batch)
        slots = self._write(batch)
        self._fail_if_told(number, slots)
        vocab = self.info.vocab
        logits = np.empty((batch.logits_for.size, vocab), np.float32)
        for out, row in zip(logits, batch.logits_for.tolist(), strict=True):
            self._answer(out, batch, row)
        return logits

    def _write(self, batch: StepBatch) -> NDArray[np.int64]:
        size = self.info.options.page_size
        pages = batch.page_tables[batch.sequences, batch.positions // size]
        slots = pages.astype(np.int64) * size + batch.positions % size
        self._tokens[slots] = batch.tokens
        self._marks[slots] = _mix(
            batch.tokens.astype(np.uint64) << np.uint64(32) | batch.positions.astype(np.uint64)
        )
        return slots

    def _answer(self, out: NDArray[np.float32], batch: StepBatch, row: int) -> None:
        size = self.info.options.page_size
        seen = int(batch.positions[row]) + 1
        table = batch.page_tables[batch.sequences[row], : -(-seen // size)].astype(np.int64)
        slots = (table[:, None] * size + np.arange(size)).reshape(-1)[:seen]
        places = np.arange(seen, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        total = _mix(self._marks[slots] ^ places).sum(dtype=np.uint64)
        vocab = self.info.vocab
        shift = int(_mix(total.reshape(1))[0]) % vocab
        out[:] = self._base[shift : shift + vocab]
        if self._script.next_token is not None:
            token = self._script.next_token(self._tokens[slots])
            if token is not None:
                out[token] += _LEAD * _SPREAD

    def _fail_if_told(self, number: int, slots: NDArray[np.int64]) -> None:
        dead = self._script.dead_from is not None and number >= self._script.dead_from
        if dead:
            self._alive = False
        if not self._alive or number in self._script.fail_at:
            self._marks[slots] += np.uint64(1)
            raise DeviceError(
                error("null.step_failed", f"step {number} failed as scripted", "send it again")
            )

    def _check(self, batch: StepBatch) -> None:
        options = self.info.options
        rows = batch.tokens.size
        same = batch.sequences[1:] == batch.sequences[:-1]
        held = batch.page_tables[batch.sequences, batch.positions // options.page_size]
        complaints = {
            "row count": not 0 < rows <= options.max_rows,
            "token id": bool((batch.tokens < 0).any() or (batch.tokens >= self.info.vocab).any()),
            "position": bool((batch.positions < 0).any())
            or bool((batch.positions >= options.context).any()),
            "gap between rows": bool((np.diff(batch.positions)[same] != 1).any()),
            "split sequence": bool((np.diff(batch.sequences)[~same] <= 0).any()),
            "page number": bool((held < 0).any() or (held >= options.pages).any()),
            "logits_for": bool((np.diff(batch.logits_for) <= 0).any())
            or bool((batch.logits_for < 0).any() or (batch.logits_for >= rows).any()),
        }
        wrong = [name for name, found in complaints.items() if found]
        if wrong:
            raise ValueError(f"the batch breaks the contract of StepBatch: {', '.join(wrong)}")


def open_null(vocab: int, options: ProgramOptions, script: NullScript | None = None) -> NullProgram:
    """Open a null program.

    Args:
        vocab: Width of the logits.
        options: As for any program; `threads` and `numerics` are without effect.
        script: What it does besides its own answers.
    """
    return NullProgram(vocab, options, script or NullScript())


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function, elementwise; wraps around."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
