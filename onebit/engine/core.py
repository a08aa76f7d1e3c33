"""The step: schedule, run, settle, collect. Single-threaded; `Engine` gives it a thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from onebit.devices.base import Program
from onebit.engine.batch import Step, Work
from onebit.engine.draw import Workspace
from onebit.engine.errors import DeadlineExceeded, EngineStopped
from onebit.engine.events import (
    Event,
    FinishEvent,
    FinishReason,
    PromptEvent,
    TokenEvent,
    TokenLogprob,
)
from onebit.engine.handle import GenerationHandle, Outbox, deliver
from onebit.engine.request import EngineLimits
from onebit.engine.sampler import logprob_of, require_finite
from onebit.engine.scheduler import Scheduler
from onebit.engine.sequence import Sequence, State
from onebit.engine.stats import Counters, EngineStats
from onebit.findings import DeviceError, KvLost, OnebitError, error

log = logging.getLogger("onebit.engine")


class EngineCore:
    """Runs sequences on a program, one step at a time.

    Args:
        program: Runs the steps; not closed by the core.
        limits: Bounds.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        program: Program,
        limits: EngineLimits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._program = program
        self._clock = clock
        self.counters = Counters()
        self.scheduler = Scheduler(program.info.options, limits, self.counters)
        self.failure: OnebitError | None = None
        """Why no step can run any more, once the program is dead."""
        self.mean_seconds = 1.0
        """Moving average of how long a sequence runs."""
        self._live: dict[Sequence, None] = {}
        self._next_deadline = float("inf")
        self._outbox: Outbox = {}
        self._workspace = Workspace(program.info.vocab)

    @property
    def busy(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self._live)

    def add(self, sequence: Sequence) -> None:
        """Take in a new sequence."""
        self._live[sequence] = None
        self.scheduler.add(sequence)
        if sequence.deadline is not None:
            self._next_deadline = min(self._next_deadline, sequence.deadline)

    def cancel(self, handle: GenerationHandle, choice: int | None) -> None:
        """Stop a handle's sequences, or the one of `choice`."""
        for sequence in tuple(self._live):
            if sequence.handle is handle and choice in (None, sequence.choice):
                self._finish(sequence, "cancelled")

    def end_all(self, why: OnebitError) -> None:
        """End every sequence with an error."""
        for sequence in tuple(self._live):
            self._finish(sequence, "error", problem=why)

    def step(self) -> None:
        """Run one step, if there is anything to run, and send its events."""
        began = self._clock()
        step = self.schedule(began)
        self.collect()
        inside = 0.0
        if step is not None:
            ready = self._clock()
            logits = self.run(step)
            inside = self._clock() - ready
            if logits is not None:
                self.scheduler.pace.record(step.generating, step.prompt_rows, inside)
                self.settle(step, logits)
        self.collect()
        self.counters.step_seconds += inside
        self.counters.engine_seconds += self._clock() - began - inside

    def schedule(self, now: float) -> Step | None:
        """End what is past its deadline and choose the next step's rows."""
        if now >= self._next_deadline:
            self._end_overdue(now)
        step = self.scheduler.schedule(now)
        if step is not None and step.prompt_rows:
            for work in step.works:
                if work.sequence.reported < 0:
                    self._report(work.sequence, work.start, now)
        return step

    def run(self, step: Step) -> NDArray[np.float32] | None:
        """Run a step on the program; on failure end its sequences and return None.

        When the program lost its KV before the step, no sequence ends: all are computed anew.
        The failed step's pages were not published, so no other sequence can see them.
        """
        self.counters.count_rows(step.batch.tokens.size)
        try:
            return self._program.step(step.batch)
        except KvLost as problem:
            log.warning("%s", problem)
            self.scheduler.forget_kv()
        except DeviceError as problem:
            log.error("step failed: %s", problem)
            self._fail(step, problem)
        except Exception as problem:
            log.exception("step failed unexpectedly")
            failure = DeviceError(
                error(
                    "engine.step_failed",
                    f"the device program failed: {type(problem).__name__}",
                    "see the server's log, and report it with that log",
                )
            )
            failure.__cause__ = problem
            self._fail(step, failure)
        return None

    def settle(self, step: Step, logits: NDArray[np.float32]) -> None:
        """Take over a step's results: publish pages, choose tokens, finish sequences."""
        now = self._clock()
        plain = any(work.sequence.sampler.takes_argmax for work in step.works)
        argmax = logits.argmax(axis=1).tolist() if plain and len(logits) else None
        row = 0
        for work in step.works:
            first, row = row, row + max(work.logits_end - work.logits_start, 0)
            self.scheduler.settle_work(work)
            try:
                self._settle_work(
                    work, logits[first:row], argmax[first:row] if argmax else None, now
                )
            except OnebitError as problem:
                log.warning(
                    "request %s ended: %s",
                    work.sequence.request.id,
                    problem,
                    exc_info=problem.__cause__,
                )
                self._finish(work.sequence, "error", problem=problem)

    def collect(self) -> None:
        """Send the events gathered since the last call."""
        if self._outbox:
            outbox, self._outbox = self._outbox, {}
            for handle in deliver(outbox):
                self.cancel(handle, None)
            self._outbox = {}

    def stats(self, *, requests: int, rejected: int, accepting: bool) -> EngineStats:
        """Return a snapshot; may be called from any thread."""
        counters, scheduler = self.counters, self.scheduler
        pool = scheduler.pool
        free, idle = pool.free, pool.idle
        running = len(scheduler.running)
        return EngineStats(
            waiting=max(requests - counters.finished - running, 0),
            running=running,
            pages_total=pool.total,
            pages_used=max(pool.total - free - idle, 0),
            pages_cached=idle,
            pages_free=free,
            requests=requests,
            finished=counters.finished,
            rejected=rejected,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            generated_tokens=counters.generated_tokens,
            preemptions=counters.preemptions,
            device_errors=counters.device_errors,
            steps=counters.steps,
            step_rows=counters.rows(),
            step_seconds=counters.step_seconds,
            engine_seconds=counters.engine_seconds,
            accepting=accepting,
        )

    # -- one sequence ------------------------------------------------------------------------

    def _settle_work(
        self, work: Work, logits: NDArray[np.float32], argmax: list[int] | None, now: float
    ) -> None:
        """Settle one sequence; `logits` and `argmax` are those of its wanted rows."""
        sequence = work.sequence
        if sequence.reported < sequence.n_prompt:
            self._report(sequence, min(work.end, sequence.n_prompt), now)
        if sequence.wants_prompt_logprobs:
            self._score_prompt(sequence, logits)
        if work.end < sequence.length:
            return
        sequence.mark_prompt_done(now)
        if not work.chooses:
            self._finish(sequence, "length")
            return
        row = logits[-1]
        if argmax is not None and sequence.sampler.takes_argmax:
            token = argmax[-1]
            require_finite(row[token])
        else:
            token = sequence.sampler.choose(
                row, sequence.length, sequence.generated, self._workspace
            )
        self._take_token(sequence, token, row)

    def _report(self, sequence: Sequence, processed: int, now: float) -> None:
        if (event := sequence.report(processed, now)) is not None:
            self._emit(sequence, event)

    def _score_prompt(self, sequence: Sequence, logits: NDArray[np.float32]) -> None:
        """Score prompt tokens by the rows before them."""
        done, top = sequence.prompt_logprobs_done, sequence.prompt_logprobs or 0
        count = min(len(logits), sequence.n_prompt - len(done))
        for row in logits[:count]:
            token = int(sequence.tokens[len(done)])
            done.append(logprob_of(row, token, top, self._workspace))
        if not sequence.wants_prompt_logprobs:
            self._emit(sequence, PromptEvent(sequence.choice, tuple(done)))

    def _take_token(self, sequence: Sequence, token: int, row: NDArray[np.float32]) -> None:
        sequence.append(token)
        self.counters.generated_tokens += 1
        scored = None
        if sequence.logprobs is not None:
            scored = logprob_of(row, token, sequence.logprobs, self._workspace)
        if token in sequence.end_ids:
            self._finish(sequence, "stop", stop_token=token, stop_logprob=scored)
            return
        sequence.sampler.accept(token)
        timings = sequence.timings(self._clock()) if sequence.request.token_timings else None
        self._emit(sequence, TokenEvent(sequence.choice, token, scored, timings))
        if sequence.length == sequence.limit:
            self._finish(sequence, "length", context_full=sequence.context_bound)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        stop_token: int | None = None,
        stop_logprob: TokenLogprob | None = None,
        context_full: bool = False,
        problem: OnebitError | None = None,
    ) -> None:
        if sequence.state is State.FINISHED:
            return
        timings = sequence.timings(self._clock())
        self.scheduler.finish(sequence)
        del self._live[sequence]
        self.counters.finished += 1
        seconds = (timings.prompt_ms + timings.predicted_ms) / 1e3
        self.mean_seconds += 0.1 * (seconds - self.mean_seconds)
        self._emit(
            sequence,
            FinishEvent(
                sequence.choice, reason, timings, stop_token, stop_logprob, context_full, problem
            ),
        )

    def _emit(self, sequence: Sequence, event: Event) -> None:
        self._outbox.setdefault(sequence.handle, []).append(event)

    def _fail(self, step: Step, problem: DeviceError) -> None:
        self.counters.device_errors += 1
        for work in step.works:
            self._finish(work.sequence, "error", problem=problem)
        if not self._program.alive:
            self.failure = problem
            self.end_all(EngineStopped("the device failed for good; the server must be restarted"))

    def _end_overdue(self, now: float) -> None:
        for sequence in tuple(self._live):
            if sequence.deadline is not None and now >= sequence.deadline:
                self._finish(sequence, "error", problem=DeadlineExceeded(now - sequence.submitted))
        deadlines = (s.deadline for s in self._live if s.deadline is not None)
        self._next_deadline = min(deadlines, default=float("inf"))
