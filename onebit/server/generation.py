"""Runs a job on the engine and turns its events into pieces of answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from onebit.engine import (
    Event,
    FinishEvent,
    GenerationHandle,
    ProgressEvent,
    PromptEvent,
    QueueFull,
    Timings,
    TokenEvent,
    TokenLogprob,
)
from onebit.findings import OnebitError
from onebit.server.errors import ApiError, from_onebit
from onebit.server.job import Job, check_fits
from onebit.text import Delta, OutputParser

_RETRY_SECONDS = 0.05
"""Pause before a later prompt of a list is tried again when the queue is full."""


@dataclass(slots=True)
class Finish:
    """How an answer ended."""

    reason: str
    """`stop`, `length` or `tool_calls`."""
    timings: Timings
    completion_tokens: int
    stop_text: str | None
    stop_token: int | None
    stop_logprob: TokenLogprob | None
    """Of the end token, which has no text of its own."""
    context_full: bool


@dataclass(slots=True)
class Piece:
    """What some tokens added to one answer."""

    choice: int
    delta: Delta
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    progress: ProgressEvent | None = None
    timings: Timings | None = None
    """The answer's timings so far, if the request wants them with every token."""
    finish: Finish | None = None

    @property
    def scored(self) -> list[TokenLogprob]:
        """The log-probabilities, the end token's included."""
        end = self.finish.stop_logprob if self.finish is not None else None
        return self.logprobs if end is None else [*self.logprobs, end]


class _Answer:
    """The state of one answer between the engine's events."""

    def __init__(self, index: int, parser: OutputParser) -> None:
        self.index = index
        self.parser = parser
        self.count = 0
        self._timed = False
        self._held: deque[tuple[int, TokenLogprob]] = deque()

    def token(self, event: TokenEvent) -> Piece | None:
        """Take a token; None once the answer's text has ended."""
        parser = self.parser
        if parser.stopped is not None:
            return None
        start = parser.length
        self.count += 1
        delta = parser.push(event.token)
        piece = Piece(self.index, delta, [event.token], timings=event.timings)
        self._timed = event.timings is not None
        if event.logprob is not None:
            self._held.append((start, event.logprob))
            piece.logprobs = self._settled()
        return piece

    def end(self, event: FinishEvent) -> Piece:
        """Return the last piece."""
        parser = self.parser
        stopped = parser.stopped is not None
        delta = parser.finish()
        stopped_late = parser.stopped is not None
        reason: str = "stop" if stopped_late else event.reason
        if reason == "stop" and parser.called:
            reason = "tool_calls"
        piece = Piece(self.index, delta, timings=event.timings if self._timed else None)
        piece.logprobs = [
            held for start, held in self._held if not stopped_late or start < parser.kept
        ]
        self._held.clear()
        piece.finish = Finish(
            reason,
            event.timings,
            self.count if stopped else max(self.count, event.timings.predicted_n),
            parser.stopped,
            event.stop_token,
            None if stopped_late else event.stop_logprob,
            event.context_full,
        )
        return piece

    def _settled(self) -> list[TokenLogprob]:
        """Return log-probabilities of tokens whose text has been let through."""
        out = []
        while self._held and self._held[0][0] < self.parser.kept:
            out.append(self._held.popleft()[1])
        return out


class Run:
    """A job in the engine.

    `start` submits it, so that its errors are real replies; `batches` gives the pieces of every
    answer; `cancel` ends all within one step. Long lists of prompts are fed in as places come
    free.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.cancelled = False
        self.finishes: dict[int, Finish] = {}
        self._answers = [_Answer(i, job.make_parser()) for i in range(job.choices)]
        self._handles: dict[int, GenerationHandle] = {}
        self._failed: ApiError | None = None
        self._held: dict[int, list[Event]] = {}
        self._scored: set[int] = set()
        self._arrived: asyncio.Queue[tuple[int, list[Event]]] = asyncio.Queue()
        self._pumps: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Submit the first prompts.

        Raises:
            ApiError: the engine refused.
        """
        engine, requests = self.job.served.engine, self.job.requests
        check_fits(self.job.served, requests)
        at_once = max(1, engine.max_sequences // self.job.n)
        try:
            for prompt, request in enumerate(requests[:at_once]):
                self._handles[prompt] = engine.submit(request)
        except OnebitError as error:
            self._release()
            raise from_onebit(error) from None

    def cancel(self) -> None:
        """End every answer; thread-safe towards the engine, called from the event loop."""
        self.cancelled = True
        self._release()

    def _release(self) -> None:
        for handle in self._handles.values():
            handle.close()
        for pump in self._pumps:
            pump.cancel()

    async def batches(self) -> AsyncIterator[list[Piece]]:
        """Yield the pieces of answers as they come, until every answer has ended.

        Ends early once cancelled.

        Raises:
            ApiError: the engine failed on this request.
        """
        try:
            if len(self.job.requests) == 1:
                handle = self._handles[0]
                while events := await handle.batch():
                    if self.cancelled:
                        return
                    yield self._pieces(0, handle, events)
                return
            async for pieces in self._many():
                yield pieces
        finally:
            self._release()

    async def _many(self) -> AsyncIterator[list[Piece]]:
        """Merge the events of several prompts."""
        submitted = len(self._handles)
        self._pumps = [
            asyncio.create_task(self._pump(range(i, len(self.job.requests), submitted)))
            for i in range(submitted)
        ]
        left = self.job.choices
        while left and not self.cancelled:
            prompt, events = await self._arrived.get()
            if self._failed is not None:
                raise self._failed
            pieces = self._pieces(prompt, self._handles[prompt], events)
            left -= sum(piece.finish is not None for piece in pieces)
            yield pieces

    async def _pump(self, prompts: range) -> None:
        """Run every one of `prompts`, one after the other; the first is submitted already."""
        try:
            for prompt in prompts:
                handle = self._handles.get(prompt) or await self._submit_later(prompt)
                while events := await handle.batch():
                    self._arrived.put_nowait((prompt, events))
        except OnebitError as error:
            self._failed = from_onebit(error)
            self._arrived.put_nowait((0, []))

    async def _submit_later(self, prompt: int) -> GenerationHandle:
        while True:
            try:
                handle = self.job.served.engine.submit(self.job.requests[prompt])
            except QueueFull:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._handles[prompt] = handle
                return handle

    def _pieces(self, prompt: int, handle: GenerationHandle, events: list[Event]) -> list[Piece]:
        pieces: list[Piece] = []
        first = prompt * self.job.n
        for event in self._in_order(prompt, events):
            answer = self._answers[first + event.choice]
            if isinstance(event, TokenEvent):
                piece = answer.token(event)
                if piece is None:
                    continue
                if answer.parser.stopped is not None:
                    handle.cancel(event.choice)
                pieces.append(piece)
            elif isinstance(event, ProgressEvent):
                pieces.append(Piece(answer.index, Delta(), progress=event))
            elif isinstance(event, PromptEvent):
                pieces.append(Piece(answer.index, Delta(), prompt_logprobs=event.logprobs))
            else:
                pieces.append(self._end(answer, event))
        return pieces

    def _in_order(self, prompt: int, events: list[Event]) -> list[Event]:
        """Put the prompt's log-probabilities, if wanted, in front of every answer to it.

        Choice 0 brings them; the others may be ahead of it and are held back until then.
        """
        request = self.job.requests[prompt]
        if request.prompt_logprobs is None or request.n == 1 or prompt in self._scored:
            return events
        held = self._held.setdefault(prompt, [])
        held += events
        scored = next((e for e in held if isinstance(e, PromptEvent)), None)
        ended = any(isinstance(e, FinishEvent) and e.choice == 0 for e in held)
        if scored is None and not ended:
            return []
        self._scored.add(prompt)
        del self._held[prompt]
        if scored is None:
            return held
        rest = [event for event in held if event is not scored]
        return [*(PromptEvent(c, scored.logprobs) for c in range(request.n)), *rest]

    def _end(self, answer: _Answer, event: FinishEvent) -> Piece:
        ended = answer.parser.stopped is not None
        if event.reason == "error" and not ended:
            assert event.error is not None
            raise from_onebit(event.error)
        if event.reason == "cancelled" and not ended:
            raise ApiError(503, "The request was cancelled.", code="cancelled")
        piece = answer.end(event)
        assert piece.finish is not None
        self.finishes[answer.index] = piece.finish
        return piece
