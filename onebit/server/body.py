"""Request bodies: read with limits, parsed with care."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from onebit.server.asgi import Receive, Scope
from onebit.server.errors import ApiError, bad_request

MAX_DEPTH = 100
"""Deepest nesting of arrays and objects in a body."""

_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class ClientGoneError(Exception):
    """The client closed the connection before its request had arrived."""


async def read_body(scope: Scope, receive: Receive, limit: int, seconds: float) -> bytes:
    """Return the request's body.

    Raises:
        ApiError: 413 beyond `limit` bytes, as soon as that is known; 408 after `seconds`.
        ClientGoneError: the connection was closed.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise ApiError(
            408,
            f"The request body did not arrive within {seconds:g} s.",
            code="body_timeout",
            headers={"connection": "close"},
        ) from None


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"The request body is larger than the limit of {limit} bytes (api.max_body).",
        code="body_too_large",
        headers={"connection": "close"},
    )


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that `body` is.

    The texts of the errors are fixed: bad bytes are never sent back.

    Raises:
        ApiError: 400, for anything but one well-formed object with distinct keys.
    """
    if not body.strip():
        raise bad_request(None, "The request body is empty; send a JSON object.", "invalid_json")
    _check_depth(body)
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise bad_request(None, "The request body is not valid UTF-8.", "invalid_json") from None
    except UnicodeEncodeError:
        raise bad_request(
            None, "The request body holds half of a surrogate pair.", "invalid_json"
        ) from None
    except json.JSONDecodeError as error:
        raise bad_request(
            None,
            f"The request body is not valid JSON: {error.msg} at line {error.lineno}, "
            f"column {error.colno}.",
            "invalid_json",
        ) from None
    except ValueError:  # an integer with thousands of digits
        raise bad_request(
            None, "The request body holds a number that is too long.", "invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise bad_request(None, "The request body is not a JSON object.", "invalid_type")
    return value


def _check_depth(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _STRUCTURE.finditer(body):
        first = body[match.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise bad_request(
                    None,
                    f"The request body is nested deeper than {MAX_DEPTH} levels.",
                    "invalid_json",
                )
        elif first in b"]}":
            depth -= 1


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise bad_request(
            None, "The request body names the same key twice in one object.", "duplicate_key"
        )
    return made


def _no_constant(_name: str) -> None:
    raise bad_request(
        None, "The request body holds NaN or Infinity, which JSON does not have.", "invalid_json"
    )
