"""What every request passes first: identity, host and origin, key, CORS; and one log line."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

from onebit.server.asgi import App, Message, Receive, Scope, Send
from onebit.server.errors import ApiError
from onebit.server.metrics import Metrics
from onebit.server.reply import send_error

log = logging.getLogger("onebit.access")

OPEN_PATHS = frozenset({"/health", "/v1/health"})
"""Answered without a key."""
QUIET_PATHS = OPEN_PATHS | {"/metrics"}
"""Logged at debug level only: polled all the time."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.\-]{1,64}")


class Guards:
    """An ASGI application around the routes.

    Args:
        app: The routes.
        metrics: Counts requests.
        host: The address listened on; a loopback one brings the host and origin checks.
        keys: API keys; empty for none.
        origins: Origins that web pages may call from; `*` for any.
        routes: The known paths, for metrics: others count as `other`.
    """

    def __init__(
        self,
        app: App,
        metrics: Metrics,
        *,
        host: str,
        keys: Iterable[str],
        origins: Iterable[str],
        routes: Iterable[str],
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._loopback = is_loopback(host)
        self._keys = tuple(key.encode() for key in keys)
        self._origins = frozenset(origins)
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        exchange = _Exchange(headers, send)
        self._metrics.begin()
        try:
            exchange.cors = self._cors_headers(headers)
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await send_error(exchange.send, refusal)
            elif self._is_preflight(scope, headers):
                await _answer_preflight(exchange.send)
            else:
                await self._app(scope, receive, exchange.send)
        finally:
            path = scope["path"]
            route = path if path in self._routes else "other"
            self._metrics.end(route, exchange.status)
            exchange.log(scope["method"], route)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> ApiError | None:
        if self._loopback and (refusal := self._foreign(headers)) is not None:
            return refusal
        if self._is_preflight(scope, headers) or not self._keys:
            return None
        if scope["path"] in OPEN_PATHS or self._has_key(headers):
            return None
        return ApiError(
            401,
            "This server takes an API key: Authorization: Bearer KEY, or X-Api-Key.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )

    def _foreign(self, headers: dict[bytes, bytes]) -> ApiError | None:
        """Refuse what only a web page of somebody else would send to a loopback address."""
        host = headers.get(b"host")
        if host is not None and not _is_local_host(host.decode("latin-1")):
            return ApiError(403, "This Host is not served on a loopback address.", code="host")
        origin = headers.get(b"origin")
        if origin is not None and not self._origin_allowed(origin.decode("latin-1")):
            return ApiError(403, "Pages of this Origin may not call this server.", code="origin")
        return None

    def _origin_allowed(self, origin: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        return origin != "null" and _is_local_host(urlsplit(origin).netloc)

    def _cors_headers(self, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        origin = headers.get(b"origin")
        if origin is None or not self._origins:
            return []
        if "*" not in self._origins and origin.decode("latin-1") not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-headers", b"authorization, content-type, x-api-key"),
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-expose-headers", b"x-request-id, x-onebit-ignored"),
            (b"vary", b"origin"),
        ]

    def _is_preflight(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Return whether a browser asks if it may call, from an origin that may."""
        return (
            scope["type"] == "http"
            and scope["method"] == "OPTIONS"
            and b"access-control-request-method" in headers
            and bool(self._cors_headers(headers))
        )

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        sent = headers.get(b"x-api-key", b"")
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            sent = token.strip()
        # Compares with every key, so that the time tells nothing.
        return sum(hmac.compare_digest(sent, key) for key in self._keys) > 0


class _Exchange:
    """One request and its reply: adds headers, notes the status."""

    def __init__(self, headers: dict[bytes, bytes], send: Send) -> None:
        asked = headers.get(b"x-request-id", b"")
        known = _REQUEST_ID.fullmatch(asked)
        self.id = asked if known else secrets.token_hex(8).encode()
        self.status = 499  # the client left before a reply
        self.cors: list[tuple[bytes, bytes]] = []
        self._send = send
        self._begun = time.perf_counter()

    async def send(self, message: Message) -> None:
        """Pass a message on; the first one gets the common headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [
                *message["headers"],
                (b"x-request-id", self.id),
                *self.cors,
            ]
        await self._send(message)

    def log(self, method: str, route: str) -> None:
        """Write the request's line: no prompt, no key, no foreign text."""
        level = logging.DEBUG if route in QUIET_PATHS else logging.INFO
        seconds = time.perf_counter() - self._begun
        log.log(
            level,
            "%s %s %d %.3f s [%s]",
            method,
            route,
            self.status,
            seconds,
            self.id.decode(),
            extra={"request_id": self.id.decode(), "status": self.status, "seconds": seconds},
        )


async def _answer_preflight(send: Send) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"0"), (b"access-control-max-age", b"600")],
        }
    )
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers; a repeated Host or key counts as none that is right."""
    made: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        made[name] = b"" if name in made and made[name] != value else value
    return made


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_local_host(netloc: str) -> bool:
    """Return whether a Host names this machine."""
    try:
        name = urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)
