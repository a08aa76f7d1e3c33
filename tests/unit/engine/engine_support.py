"""Helpers for the engine's tests: an oracle, and a core driven by hand."""

from __future__ import annotations

from collections.abc import Sequence as Ids

import numpy as np

from onebit.devices.base import Program, ProgramOptions, StepBatch
from onebit.devices.null import NullScript, open_null
from onebit.engine import (
    EngineLimits,
    Event,
    FinishEvent,
    GenerationHandle,
    GenerationRequest,
    SamplingParams,
    TokenEvent,
)
from onebit.engine.core import EngineCore
from onebit.engine.sequence import Sequence, State

VOCAB = 512
GREEDY = SamplingParams(temperature=0)


def options(**changes: int) -> ProgramOptions:
    values = {"context": 128, "pages": 64, "page_size": 4, "max_rows": 32} | changes
    return ProgramOptions(**values)


def request(prompt: Ids[int], max_tokens: int | None = 8, **fields: object) -> GenerationRequest:
    fields.setdefault("sampling", GREEDY)
    return GenerationRequest(prompt=list(prompt), max_tokens=max_tokens, **fields)


def raw_logits(tokens: Ids[int], vocab: int = VOCAB) -> np.ndarray:
    """Logits of every row of `tokens`, computed in one step on pages of its own."""
    count = len(tokens)
    program = open_null(
        vocab, ProgramOptions(context=count, pages=1, page_size=count, max_rows=count)
    )
    rows = np.arange(count, dtype=np.int32)
    return program.step(
        StepBatch(
            tokens=np.array(tokens, np.int32),
            positions=rows,
            sequences=np.zeros(count, np.int32),
            page_tables=np.zeros((1, 1), np.int32),
            logits_for=rows,
        )
    )


def alone(prompt: Ids[int], max_tokens: int, end: Ids[int] = (), context: int = 128) -> list[int]:
    """The greedy answer without any engine; an end token is left out."""
    text = list(prompt)
    answer: list[int] = []
    for _ in range(min(max_tokens, context - len(prompt))):
        token = int(raw_logits(text)[-1].argmax())
        if token in end:
            break
        text.append(token)
        answer.append(token)
    return answer


class Driver:
    """An EngineCore without a thread; events gather in each handle and are read by `events`."""

    def __init__(
        self,
        program: Program | None = None,
        limits: EngineLimits | None = None,
        eos: Ids[int] = (),
        script: NullScript | None = None,
        **changes: int,
    ) -> None:
        self.now = 0.0
        self.program = program or open_null(VOCAB, options(**changes), script)
        self.limits = limits or EngineLimits()
        self.core = EngineCore(self.program, self.limits, clock=self._clock)
        self.eos = frozenset(eos)
        self.sequences: list[Sequence] = []
        self._roots = 0
        self._seen: dict[GenerationHandle, list[Event]] = {}

    def _clock(self) -> float:
        self.now += 1e-6
        return self.now

    @property
    def scheduler(self):
        return self.core.scheduler

    def submit(self, asked: GenerationRequest) -> GenerationHandle:
        handle = GenerationHandle(asked, lambda h, c: self.core.cancel(h, c), None)
        shared = asked.cache and self.limits.prefix_cache
        self._roots += 1
        for choice in range(asked.n):
            sequence = Sequence(
                asked,
                choice,
                handle,
                context=self.scheduler.context,
                page_size=self.scheduler.page_size,
                root=b"" if shared else self._roots.to_bytes(8, "little"),
                keep=shared,
                eos=self.eos,
                now=self.now,
                deadline_seconds=asked.deadline or self.limits.deadline,
            )
            self.sequences.append(sequence)
            self.core.add(sequence)
        return handle

    def step(self) -> None:
        self.now += 0.001
        self.core.step()

    def finish(self, steps: int = 2000) -> None:
        for _ in range(steps):
            if not self.core.busy:
                return
            self.step()
        raise AssertionError(f"still busy after {steps} steps")

    def events(self, handle: GenerationHandle) -> list[Event]:
        self.core.collect()
        seen = self._seen.setdefault(handle, [])
        while not handle._queue.empty():
            seen.extend(handle._queue.get())
        return seen

    def tokens(self, handle: GenerationHandle, choice: int = 0) -> list[int]:
        return [
            event.token
            for event in self.events(handle)
            if isinstance(event, TokenEvent) and event.choice == choice
        ]

    def end(self, handle: GenerationHandle, choice: int = 0) -> FinishEvent:
        (end,) = (
            event
            for event in self.events(handle)
            if isinstance(event, FinishEvent) and event.choice == choice
        )
        return end

    def check_pages(self) -> None:
        """No page is leaked, and none is shared by sequences whose tokens differ."""
        pool, size = self.scheduler.pool, self.scheduler.page_size
        users: dict[int, list[tuple[Sequence, int]]] = {}
        for sequence in self.scheduler.running:
            assert sequence.state is State.RUNNING
            assert len(set(sequence.pages)) == len(sequence.pages)
            assert sequence.computed <= len(sequence.pages) * size
            table = self.scheduler._tables[sequence.slot]
            assert table[: len(sequence.pages)].tolist() == sequence.pages
            assert (table[len(sequence.pages) :] == -1).all()
            for index, page in enumerate(sequence.pages):
                users.setdefault(page, []).append((sequence, index))
        for page in range(pool.total):
            assert pool.holders(page) == len(users.get(page, []))
        for sharers in users.values():
            first, place = sharers[0]
            for other, index in sharers[1:]:
                assert index == place
                assert index < other.published
                assert index < first.published
                assert other.key(index) == first.key(index)
        assert pool.free + pool.idle + len(users) == pool.total
        assert set(pool._page_of.values()) == {
            page for page, key in enumerate(pool._key_of) if key is not None
        }
        assert not set(pool._free) & set(pool._page_of.values())
        slots = [sequence.slot for sequence in self.scheduler.running]
        assert sorted(slots + self.scheduler._slots) == list(range(self.scheduler.max_sequences))
        for waiting in self.scheduler.waiting:
            assert waiting.pages == []
            assert waiting.computed == 0
