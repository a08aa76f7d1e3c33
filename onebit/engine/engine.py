"""The engine: one thread that steps, and the thread-safe way in."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Collection

from onebit.devices.base import DeviceHealth, Program, Watched
from onebit.engine.core import EngineCore
from onebit.engine.errors import EngineStopped, PromptTooLong, QueueFull
from onebit.engine.handle import GenerationHandle
from onebit.engine.request import EngineLimits, GenerationRequest
from onebit.engine.sequence import Sequence
from onebit.engine.stats import EngineStats
from onebit.findings import InputError, OnebitError, Where, error

log = logging.getLogger("onebit.engine")

_DRAINING = "the server is shutting down and takes no requests"
_CLOSED = "the server was shut down before this request was finished"


class Engine:
    """Serves many requests at once on one program.

    `submit`, `stats` and `GenerationHandle.cancel` return at once and may be called from any
    thread or event loop. The program belongs to the caller, who closes it after the engine.

    Args:
        program: Runs the steps; used by the engine's thread alone once started.
        limits: Bounds; `max_sequences` is cut to the program's `max_rows`.
        eos: The model's end tokens.
    """

    def __init__(
        self,
        program: Program,
        limits: EngineLimits | None = None,
        *,
        eos: Collection[int] = (),
    ) -> None:
        self.limits = limits or EngineLimits()
        self._program = program
        self._core = EngineCore(program, self.limits)
        self._eos = frozenset(eos)
        self._vocab = program.info.vocab
        _check_eos(self._eos, self._vocab)
        self._changed = threading.Condition()
        self._inbox: deque[Sequence] = deque()
        self._cancels: deque[tuple[GenerationHandle, int | None]] = deque()
        self._accepted = 0
        self._rejected = 0
        self._refuse: str | None = "the engine is not started"
        self._closing = False
        self._cut = False  # whether closing ended requests
        self._thread = threading.Thread(target=self._work, name="onebit-engine", daemon=True)

    @property
    def context(self) -> int:
        """Most tokens of prompt and answer together: the program's context or all its pages."""
        return self._core.scheduler.context

    @property
    def max_sequences(self) -> int:
        """Sequences that run at once, and the largest `n` of a request."""
        return self._core.scheduler.max_sequences

    @property
    def failure(self) -> OnebitError | None:
        """Why the engine stopped by itself, for /health; None while all is well."""
        return self._core.failure

    @property
    def device_health(self) -> DeviceHealth | None:
        """How the program's device is doing; None for one that has no states."""
        return self._program.health if isinstance(self._program, Watched) else None

    def start(self) -> None:
        """Start the thread. Call once, before `close`."""
        with self._changed:
            if self._closing:
                raise EngineStopped(_CLOSED)
            self._thread.start()
            self._refuse = None

    def submit(self, request: GenerationRequest) -> GenerationHandle:
        """Queue a request and return the handle that gives its events.

        Called inside a running event loop, the handle is read there; else from a thread.

        Raises:
            InputError: a field is out of range; the finding's `where.field` names it.
            PromptTooLong: the prompt leaves no room for an answer (max_tokens 0 needs none).
            QueueFull: too many sequences run and wait; the error says when to try again.
            EngineStopped: not started, draining, closed or broken.
        """
        if self._refuse is not None:
            raise EngineStopped(self._refuse)
        self._check(request)
        handle = GenerationHandle(request, self._cancel, _running_loop())
        sequences = self._sequences(request, handle)
        with self._changed:
            if self._refuse is not None:
                raise EngineStopped(self._refuse)
            held = self._accepted - self._core.counters.finished
            if held and held + request.n > self.max_sequences + self.limits.queue:
                self._rejected += 1
                raise QueueFull(held, self._retry_after())
            self._accepted += request.n
            self._inbox.extend(sequences)
            self._changed.notify_all()
        return handle

    def stats(self) -> EngineStats:
        """Return a snapshot of the counters."""
        return self._core.stats(
            requests=self._accepted, rejected=self._rejected, accepting=self._refuse is None
        )

    def drain(self, grace: float) -> bool:
        """Take no more requests, give the accepted ones `grace` seconds, then end the rest.

        Blocks; call it from a thread (`asyncio.to_thread`). What is left ends with
        `EngineStopped`. The engine is closed afterwards.

        Returns:
            Whether every request finished by itself.
        """
        with self._changed:
            self._refuse = self._refuse or _DRAINING
            finished = self._changed.wait_for(lambda: self._closing or not self._unfinished, grace)
            finished = finished and not self._cut and not self._unfinished
        self.close()
        return finished

    def close(self, timeout: float = 30.0) -> None:
        """End every request with `EngineStopped` after the step under way and stop the thread.

        Blocks for at most `timeout` seconds. Safe to call twice, and during `drain`.
        """
        with self._changed:
            self._refuse = self._refuse or _CLOSED
            if not self._closing:
                self._cut = self._unfinished
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    @property
    def _unfinished(self) -> bool:
        return self._accepted != self._core.counters.finished

    # -- submission --------------------------------------------------------------------------

    def _check(self, request: GenerationRequest) -> None:
        request.check(self._vocab, self.limits.max_logprobs, self.max_sequences)
        room = 0 if request.max_tokens == 0 else 1
        if len(request.prompt) + room > self.context:
            raise PromptTooLong(len(request.prompt), self.context)

    def _sequences(self, request: GenerationRequest, handle: GenerationHandle) -> list[Sequence]:
        shared = request.cache and self.limits.prefix_cache
        root = b"" if shared else secrets.token_bytes(16)
        seconds = request.deadline or self.limits.deadline
        now = time.perf_counter()
        return [
            Sequence(
                request,
                choice,
                handle,
                context=self.context,
                page_size=self._core.scheduler.page_size,
                root=root,
                keep=shared,
                eos=self._eos,
                now=now,
                deadline_seconds=seconds,
            )
            for choice in range(request.n)
        ]

    def _retry_after(self) -> float:
        rounds = 1 + len(self._inbox) / self.max_sequences
        return min(max(1.0, self._core.mean_seconds * rounds), 60.0)

    def _cancel(self, handle: GenerationHandle, choice: int | None) -> None:
        with self._changed:
            self._cancels.append((handle, choice))
            self._changed.notify_all()

    # -- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        core = self._core
        try:
            while self._take_in():
                core.step()
                if core.failure is not None:
                    self._refuse = str(core.failure)
            core.end_all(EngineStopped(_CLOSED))
            core.collect()
        except Exception as problem:
            log.exception("the engine stopped on an unexpected error")
            self._break(problem)
        finally:
            with self._changed:
                self._changed.notify_all()

    def _take_in(self) -> bool:
        """Wait for work and move it to the core; False when the engine is closing."""
        core = self._core
        with self._changed:
            if not core.busy:
                self._changed.notify_all()
            while not (self._inbox or self._cancels or core.busy or self._closing):
                self._changed.wait()
            while self._inbox:
                core.add(self._inbox.popleft())
            while self._cancels:
                core.cancel(*self._cancels.popleft())
            return not self._closing

    def _break(self, problem: Exception) -> None:
        """End everything after an error in the engine itself: nobody may be left hanging."""
        core = self._core
        core.failure = EngineStopped(
            f"the engine stopped on an unexpected error: {type(problem).__name__}"
        )
        with self._changed:
            self._refuse = str(core.failure)
            while self._inbox:
                core.add(self._inbox.popleft())
        core.end_all(core.failure)
        core.collect()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _check_eos(eos: frozenset[int], vocab: int) -> None:
    for token in eos:
        if not 0 <= token < vocab:
            raise InputError(
                error(
                    "engine.bad_eos",
                    f"end token {token} is outside the vocabulary of {vocab}",
                    "correct eos_token_id in config.json or generation_config.json",
                    Where(field="eos_token_id"),
                )
            )
