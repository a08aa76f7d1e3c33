"""uvicorn's HTTP protocol with limits on request heads, and errors in the API's shape."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onebit.server.encode import encode_json
from onebit.server.errors import ApiError

MAX_HEAD_BYTES = 64 * 1024
"""Largest request line and headers."""
HEAD_SECONDS = 15.0
"""A request's head must have arrived within this from its first byte."""


class LimitedProtocol(HttpToolsProtocol):
    """Refuses heads that are too large or too slow, and connections that never ask."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, but not for ever."""
        super().connection_made(transport)
        self._arm(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the head's bytes."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(ApiError(431, "The request's headers are too large.", code="head"))

    def on_message_begin(self) -> None:
        """Start the head's time."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._arm(HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        """End the head's time."""
        self._disarm()
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        if self.transport.is_closing():
            return
        body = encode_json(error.body())
        head = (
            f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
