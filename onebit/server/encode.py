"""JSON bytes for replies and server-sent events."""

from __future__ import annotations

from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()


def encode_json(value: Any) -> bytes:
    """Return a JSON value as UTF-8 bytes."""
    return bytes(_encoder.encode(value))


DONE = b"data: [DONE]\n\n"
PING = b":\n\n"
"""An SSE comment: keeps a silent connection alive."""


def event(value: Any) -> bytes:
    """Return one unnamed server-sent event."""
    return b"data: " + encode_json(value) + b"\n\n"


def named_event(value: dict[str, Any]) -> bytes:
    """Return one server-sent event named after its `type`."""
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + encode_json(value) + b"\n\n"
