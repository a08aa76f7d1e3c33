"""A request in flight, as its caller sees it, and the way its events travel.

The engine thread hands all events of a step to each event loop in one call; neither side ever
waits for the other. What a slow reader leaves unread is bounded by its own request's length.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from types import TracebackType

from onebit.engine.events import Event, FinishEvent
from onebit.engine.request import GenerationRequest

Cancel = Callable[["GenerationHandle", int | None], None]


class GenerationHandle:
    """The events of one request, in order; each choice ends with a `FinishEvent`.

    Made by `Engine.submit` inside a running event loop, it is read there with `async for` or
    `batch()`; made elsewhere, it is read with `for` from any one thread. As a context manager
    (`async with` or `with`) it cancels what is left on the way out.
    """

    def __init__(
        self,
        request: GenerationRequest,
        cancel: Cancel,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.request = request
        self._cancel = cancel
        self._loop = loop
        self._open = request.n
        self._unread: deque[Event] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._queue: SimpleQueue[list[Event]] = SimpleQueue()

    def cancel(self, choice: int | None = None) -> None:
        """Stop one choice, or all, within one step. Thread-safe; returns at once.

        Each stopped choice still ends with a `FinishEvent` of reason `cancelled`, and no token
        follows the step that was under way.
        """
        self._cancel(self, choice)

    @property
    def done(self) -> bool:
        """Whether every choice's `FinishEvent` has arrived here (read or unread)."""
        return self._open == 0

    # -- asynchronous ------------------------------------------------------------------------

    async def batch(self) -> list[Event]:
        """Return all events that have arrived, waiting for at least one; [] after the last."""
        while not self._unread:
            if self._open == 0:
                return []
            if self._loop is None:
                raise RuntimeError("this handle was made outside an event loop; read it with `for`")
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        events = list(self._unread)
        self._unread.clear()
        return events

    def __aiter__(self) -> GenerationHandle:
        return self

    async def __anext__(self) -> Event:
        if not self._unread:
            events = await self.batch()
            if not events:
                raise StopAsyncIteration
            self._unread.extend(events)
        return self._unread.popleft()

    async def __aenter__(self) -> GenerationHandle:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- synchronous -------------------------------------------------------------------------

    def __iter__(self) -> GenerationHandle:
        return self

    def __next__(self) -> Event:
        if self._loop is not None:
            raise RuntimeError("this handle was made in an event loop; read it with `async for`")
        while not self._unread:
            if self._open == 0:
                raise StopIteration
            self._take(self._queue.get())
        return self._unread.popleft()

    def __enter__(self) -> GenerationHandle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel whatever still runs."""
        if not self.done:
            self.cancel()

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            self._unread.append(event)
            if isinstance(event, FinishEvent):
                self._open -= 1
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


Outbox = dict[GenerationHandle, list[Event]]
"""Events of a step by handle, in order."""


def deliver(outbox: Outbox) -> list[GenerationHandle]:
    """Send a step's events: one call for each event loop.

    Returns:
        Handles whose event loop is closed; nobody will read them again.
    """
    by_loop: dict[asyncio.AbstractEventLoop, Outbox] = {}
    for handle, events in outbox.items():
        if handle._loop is None:
            handle._queue.put(events)
        else:
            by_loop.setdefault(handle._loop, {})[handle] = events
    orphans: list[GenerationHandle] = []
    for loop, part in by_loop.items():
        try:
            loop.call_soon_threadsafe(_arrive, part)
        except RuntimeError:
            if not loop.is_closed():
                raise
            orphans.extend(part)
    return orphans


def _arrive(outbox: Outbox) -> None:
    for handle, events in outbox.items():
        handle._take(events)
