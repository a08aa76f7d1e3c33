"""The HTTP application: routes inside, guards outside."""

from __future__ import annotations

import logging
from typing import Any

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from onebit.config.api import ApiConfig
from onebit.findings import OnebitError
from onebit.server.asgi import App
from onebit.server.body import ClientGoneError
from onebit.server.context import Context
from onebit.server.encode import encode_json
from onebit.server.errors import ApiError, from_onebit
from onebit.server.guards import Guards
from onebit.server.keys import api_keys
from onebit.server.metrics import Metrics
from onebit.server.openapi import openapi_route
from onebit.server.routes_generate import GENERATE
from onebit.server.routes_info import INFO
from onebit.server.routes_text import TEXT
from onebit.server.state import ServerState

log = logging.getLogger("onebit.server")


def create_app(state: ServerState, api: ApiConfig, *, host: str = "127.0.0.1") -> App:
    """Return the ASGI application.

    Args:
        state: What is served; routes answer 503 until it has a model.
        api: The API's settings.
        host: The address that will be listened on.

    Raises:
        UsageError: the key file cannot be read.
    """
    metrics = Metrics(state)
    handlers: list[Any] = [*GENERATE, *TEXT, *INFO, openapi_route()]
    routes = Litestar(
        route_handlers=handlers,
        state=State({"context": Context(state, api, metrics)}),
        openapi_config=None,
        logging_config=None,
        debug=False,
        exception_handlers={
            ApiError: _api_error,
            OnebitError: _onebit_error,
            HTTPException: _http_error,
            ClientGoneError: _client_gone,
            Exception: _unexpected,
        },
    )
    paths = {path for handler in handlers for path in handler.paths}
    return Guards(
        routes,
        metrics,
        host=host,
        keys=api_keys(api),
        origins=api.cors_origins,
        routes=paths,
    )


def _reply(error: ApiError) -> Response[bytes]:
    return Response(
        encode_json(error.body()),
        status_code=error.status,
        headers=dict(error.headers),
        media_type="application/json",
    )


def _api_error(_request: Request[Any, Any, Any], error: ApiError) -> Response[bytes]:
    return _reply(error)


def _onebit_error(_request: Request[Any, Any, Any], error: OnebitError) -> Response[bytes]:
    return _reply(from_onebit(error))


def _http_error(_request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Put the framework's own errors into the API's shape."""
    texts = {
        404: ("There is no such route.", "not_found"),
        405: ("This route does not take this method.", "method_not_allowed"),
        413: ("The request body is too large.", "body_too_large"),
    }
    status = error.status_code
    if status not in texts and status >= 500:
        return _unexpected(_request, error)
    text, code = texts.get(status, ("The request is not valid.", "invalid_request"))
    made = ApiError(status, text, code=code)
    made.headers = {k: v for k, v in (error.headers or {}).items() if k.lower() == "allow"}
    return _reply(made)


def _client_gone(_request: Request[Any, Any, Any], _error: ClientGoneError) -> Response[bytes]:
    return _reply(ApiError(408, "The client closed the connection.", code="client_gone"))


def _unexpected(_request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    log.error("unexpected error while answering a request", exc_info=error)
    return _reply(ApiError(500, "The server failed on this request.", code="internal_error"))
