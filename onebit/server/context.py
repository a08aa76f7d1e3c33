"""What every route handler works with, and the way a body becomes a checked request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

from litestar import Request

from onebit.config.api import ApiConfig
from onebit.server.body import parse_object, read_body
from onebit.server.fields import RequestModel, ignored_header
from onebit.server.job import check_model
from onebit.server.metrics import Metrics
from onebit.server.state import ServedModel, ServerState

R = TypeVar("R", bound=RequestModel)


@dataclass(frozen=True)
class Context:
    """One server's state, settings and metrics."""

    state: ServerState
    api: ApiConfig
    metrics: Metrics

    @classmethod
    def of(cls, request: Request[Any, Any, Any]) -> Context:
        """Return the context of the app that got `request`."""
        return cast(Context, request.app.state["context"])

    async def read(self, request: Request[Any, Any, Any], kind: type[R]) -> tuple[ServedModel, R]:
        """Read, parse and check a request body, its model name included.

        Raises:
            ApiError: 400, 404, 408, 413 or 503.
            ClientGoneError: the client left before its body had come.
        """
        limit, seconds = self.api.max_body, self.api.body_timeout
        body = await read_body(request.scope, request.receive, limit, seconds)
        value = parse_object(body)
        served = self.state.require()
        checked = kind.read(value)
        name = getattr(checked, "model", None)
        check_model(served, name, self.api.model_mismatch)
        return served, checked

    def headers(self, ignored: list[str]) -> dict[str, str]:
        """Return the reply header that names ignored fields.

        Raises:
            ApiError: 400, when requests are strict.
        """
        return ignored_header(ignored, strict=self.api.strict_requests)
