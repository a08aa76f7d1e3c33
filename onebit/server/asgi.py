"""The ASGI shapes that this package uses. Litestar and uvicorn each have narrower ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Scope = Any
Message = Any
Receive = Callable[..., Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
