"""Replies as ASGI applications: JSON at once, JSON when a run has ended, or a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onebit.server.asgi import Receive, Scope, Send
from onebit.server.encode import PING, encode_json
from onebit.server.errors import ApiError
from onebit.server.generation import Piece, Run
from onebit.server.metrics import Metrics

PING_SECONDS = 10.0
"""A stream silent for so long gets a comment."""


class Collector(Protocol):
    """Builds the reply of a run that is not streamed."""

    def add(self, pieces: Sequence[Piece]) -> None:
        """Take pieces of answers."""
        ...

    def result(self, run: Run) -> Any:
        """Return the reply's JSON value."""
        ...


class Stream(Protocol):
    """Builds the events of a streamed run."""

    def events(self, pieces: Sequence[Piece], run: Run) -> list[bytes]:
        """Return the events for pieces of answers, the last one's included."""
        ...

    def end(self, run: Run) -> list[bytes]:
        """Return what follows the last piece, each to be written by itself."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends a stream by an error."""
        ...


class JsonReply:
    """A JSON reply that is known already."""

    def __init__(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self._value = value
        self._status = status
        self._headers = headers or {}

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the reply."""
        await send_json(send, self._value, self._status, self._headers)


class RunReply:
    """The reply of a run, sent when every answer has ended."""

    def __init__(self, run: Run, collector: Collector, metrics: Metrics) -> None:
        self._run = run
        self._collector = collector
        self._metrics = metrics

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Run it; a client that goes away ends it."""
        run = self._run
        watcher = asyncio.create_task(_watch(receive, run))
        try:
            async for pieces in run.batches():
                self._collector.add(pieces)
            if run.cancelled:
                return
            value = self._collector.result(run)
            await send_json(send, value, 200, run.job.headers)
        except ApiError as error:
            if not run.cancelled:
                await send_error(send, error)
        finally:
            await _end(watcher)
            self._metrics.finished(run)


class StreamReply:
    """The reply of a run as server-sent events.

    The status line waits for the first piece, so that a failure before it is a real status.
    """

    def __init__(self, run: Run, stream: Stream, metrics: Metrics) -> None:
        self._run = run
        self._stream = stream
        self._metrics = metrics
        self._send: Send
        self._started = False
        self._wrote = 0.0

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Run it; a client that goes away ends it."""
        run, self._send = self._run, send
        loop = asyncio.get_running_loop()
        self._wrote = loop.time()
        helpers = [
            asyncio.create_task(_watch(receive, run)),
            asyncio.create_task(self._ping(loop)),
        ]
        try:
            async for pieces in run.batches():
                if events := self._stream.events(pieces, run):
                    await self._write(b"".join(events))
                    self._wrote = loop.time()
            if run.cancelled:
                return
            for last in self._stream.end(run):
                await self._write(last)
            await _end(helpers[1])
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ApiError as error:
            if not run.cancelled:
                await self._fail(error, helpers[1])
        finally:
            for helper in helpers:
                await _end(helper)
            self._metrics.finished(run)

    async def _write(self, data: bytes) -> None:
        if not self._started:
            self._started = True
            headers = {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
                **self._run.job.headers,
            }
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": _raw(headers)}
            )
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _fail(self, error: ApiError, pinger: asyncio.Task[None]) -> None:
        await _end(pinger)
        if not self._started:
            await send_error(self._send, error)
            return
        await self._write(self._stream.failed(error))
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            silent = loop.time() - self._wrote
            if silent >= PING_SECONDS:
                await self._write(PING)
                self._wrote, silent = loop.time(), 0.0
            await asyncio.sleep(PING_SECONDS - silent)


async def send_json(
    send: Send, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole JSON reply."""
    body = encode_json(value)
    await send_bytes(send, body, status, {"content-type": "application/json", **(headers or {})})


async def send_bytes(send: Send, body: bytes, status: int, headers: Mapping[str, str]) -> None:
    """Send a whole reply."""
    made = {**headers, "content-length": str(len(body))}
    await send({"type": "http.response.start", "status": status, "headers": _raw(made)})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_error(send: Send, error: ApiError) -> None:
    """Send an error reply."""
    await send_json(send, error.body(), error.status, error.headers)


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def _watch(receive: Receive, run: Run) -> None:
    """Cancel the run when the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    run.cancel()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
