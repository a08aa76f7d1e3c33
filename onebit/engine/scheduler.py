"""Who runs next: admission, prompt reading, page growth and preemption.

Order of arrival decides everything, so nobody starves: the queue is first in, first out; prompts
are read in order of arrival; when pages run out, the latest arrival gives up its own, keeps its
chosen tokens and goes back to the head of the queue. The earliest sequence never loses anything,
and any one sequence fits into the pages, so the engine always makes progress.

Prompts that begin alike are read once: a sequence waits while one that arrived earlier is about
to compute its very next page.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from onebit.devices.base import ProgramOptions
from onebit.engine.batch import Step, Work, build_step
from onebit.engine.pace import Pace
from onebit.engine.pages import PagePool
from onebit.engine.request import EngineLimits
from onebit.engine.sequence import Sequence, State
from onebit.engine.stats import Counters


class Scheduler:
    """Waiting and running sequences over one page pool. Not thread-safe."""

    def __init__(self, options: ProgramOptions, limits: EngineLimits, counters: Counters) -> None:
        self.page_size = options.page_size
        self.context = min(options.context, options.pages * options.page_size)
        self.max_sequences = min(limits.max_sequences, options.max_rows)
        self.pool = PagePool(options.pages)
        self.pace = Pace(min(limits.prefill_chunk, options.max_rows), limits.stall)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In order of arrival."""
        self._max_rows = options.max_rows
        self._logit_rows = limits.logit_rows
        self._counters = counters
        self._slots = list(range(self.max_sequences - 1, -1, -1))
        width = -(-self.context // self.page_size)
        self._tables = np.full((self.max_sequences, width), -1, np.int32)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def schedule(self, now: float) -> Step | None:
        """Choose the next step's rows, or return None if nothing waits or runs."""
        self._admit(now)
        works: dict[Sequence, Work] = {}
        for sequence in tuple(self.running):
            if sequence.generating and self._grow(sequence, sequence.length, works):
                works[sequence] = Work(sequence, sequence.computed, 1, True)
        self._read_prompts(works)
        return build_step(list(works.values()), self._tables) if works else None

    def settle_work(self, work: Work) -> None:
        """Take over what a step computed for a sequence: full pages become shareable."""
        sequence = work.sequence
        sequence.computed = work.end
        while (sequence.published + 1) * self.page_size <= sequence.computed:
            key = sequence.key(sequence.published)
            self.pool.publish(sequence.pages[sequence.published], key)
            sequence.published += 1

    def forget_kv(self) -> None:
        """Take over that the program lost all KV: what runs is computed anew, in its order."""
        for sequence in tuple(reversed(self.running)):
            self._preempt(sequence)
        self.pool.clear()

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out for good and free what it holds."""
        if sequence.state is State.RUNNING:
            self._stop(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        sequence.state = State.FINISHED

    # -- admission ------------------------------------------------------------------------

    def _admit(self, now: float) -> None:
        while self.waiting and self._slots:
            sequence = self.waiting[0]
            hits = self._cached_pages(sequence)
            if self.running and not self._fits(sequence, hits):
                return
            self.waiting.popleft()
            self._start(sequence, hits, now)

    def _fits(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether its pages, those promised to others and one for each to grow are there."""
        promised = sum(self._pages_to_come(other) for other in self.running)
        idle_hits = sum(self.pool.holders(page) == 0 for page in hits)
        need = self._pages_to_come(sequence) - len(hits)
        return need + promised + len(self.running) <= self.pool.available - idle_hits

    def _pages_to_come(self, sequence: Sequence) -> int:
        """Pages it still needs to choose its next token and compute that one's KV."""
        positions = max(sequence.length, min(sequence.length + 1, sequence.limit - 1))
        return -(-positions // self.page_size) - len(sequence.pages)

    def _cached_pages(self, sequence: Sequence) -> list[int]:
        hits: list[int] = []
        if not sequence.wants_prompt_logprobs:
            for index in range(sequence.shareable_pages):
                page = self.pool.find(sequence.key(index))
                if page is None:
                    break
                hits.append(page)
        return hits

    def _start(self, sequence: Sequence, hits: list[int], now: float) -> None:
        sequence.state = State.RUNNING
        sequence.slot = self._slots.pop()
        self.running.append(sequence)
        for page in hits:
            self._take_cached(sequence, page)
        if not sequence.started:
            self._counters.prompt_tokens += sequence.n_prompt
        sequence.mark_started(now)

    def _take_cached(self, sequence: Sequence, page: int) -> None:
        self.pool.hold(page)
        self._attach(sequence, page)
        sequence.computed += self.page_size
        sequence.published += 1
        if not sequence.restarted:
            sequence.cached += self.page_size
            self._counters.cached_tokens += self.page_size

    # -- rows ------------------------------------------------------------------------------

    def _read_prompts(self, works: dict[Sequence, Work]) -> None:
        generating = len(works)
        reading = len(self.running) - generating
        budget = min(self.pace.rows(generating, reading), self._max_rows - generating)
        logit_rows = self._logit_rows
        ahead: list[Sequence] = []
        for sequence in tuple(self.running):
            if budget <= 0:
                return
            if sequence.state is not State.RUNNING or sequence in works:
                continue
            waits = self._waits_for_page(sequence, ahead)
            ahead.append(sequence)
            if waits:
                continue
            count = min(budget, sequence.pending)
            if sequence.wants_prompt_logprobs:
                count = min(count, logit_rows)
            if count <= 0 or not self._grow(sequence, sequence.computed + count, works):
                continue
            if sequence.wants_prompt_logprobs:
                logit_rows -= count
            works[sequence] = Work(sequence, sequence.computed, count, False)
            budget -= count

    def _waits_for_page(self, sequence: Sequence, ahead: list[Sequence]) -> bool:
        """Take pages that were published since; say whether one `ahead` will compute the next."""
        if sequence.wants_prompt_logprobs:
            return False
        while len(sequence.pages) < sequence.shareable_pages:
            if len(sequence.pages) * self.page_size != sequence.computed:
                return False
            index = len(sequence.pages)
            key = sequence.key(index)
            page = self.pool.find(key)
            if page is None:
                return any(
                    other.published <= index < other.shareable_pages and other.key(index) == key
                    for other in ahead
                )
            self._take_cached(sequence, page)
        return False

    # -- pages -----------------------------------------------------------------------------

    def _grow(self, sequence: Sequence, positions: int, works: dict[Sequence, Work]) -> bool:
        """Get pages for `positions`, from later arrivals if need be.

        Returns False if the sequence itself had to give way.
        """
        if sequence.state is not State.RUNNING:
            return False
        while len(sequence.pages) * self.page_size < positions:
            while self.pool.available == 0:
                victim = self.running[-1]
                self._preempt(victim)
                works.pop(victim, None)
                if victim is sequence:
                    return False
            self._attach(sequence, self.pool.allocate())
        return True

    def _attach(self, sequence: Sequence, page: int) -> None:
        self._tables[sequence.slot, len(sequence.pages)] = page
        sequence.pages.append(page)

    def _preempt(self, sequence: Sequence) -> None:
        self._stop(sequence)
        sequence.state = State.WAITING
        sequence.restarted = True
        self.waiting.appendleft(sequence)
        self._counters.preemptions += 1

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._tables[sequence.slot, : len(sequence.pages)] = -1
        self._slots.append(sequence.slot)
        sequence.slot = -1
        self.pool.release(sequence.drop_pages(), sequence.keep)
