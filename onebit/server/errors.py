"""Errors of the HTTP API: one table from what went wrong to status, type and code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onebit.engine import (
    ConstraintFailed,
    DeadlineExceeded,
    EngineStopped,
    PromptTooLong,
    QueueFull,
)
from onebit.findings import DeviceError, InputError, OnebitError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "timeout_error",
}
"""`error.type` by status; `server_error` for the rest."""


@dataclass(frozen=True)
class _Row:
    status: int
    code: str


TABLE: dict[type[OnebitError], _Row] = {
    QueueFull: _Row(429, "queue_full"),
    PromptTooLong: _Row(400, "context_length_exceeded"),
    EngineStopped: _Row(503, "shutting_down"),
    DeadlineExceeded: _Row(504, "deadline_exceeded"),
    ConstraintFailed: _Row(400, "constraint_failed"),
    DeviceError: _Row(503, "device_error"),
    InputError: _Row(400, "invalid_value"),
    OnebitError: _Row(500, "internal_error"),
}
"""What the engine and the text side raise, and how the API says it. Subclasses stand first."""


@dataclass
class ApiError(Exception):
    """An error reply in OpenAI's shape."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More members of the `error` object."""

    def body(self) -> dict[str, Any]:
        """Return the reply's JSON value."""
        return {
            "error": {
                "message": self.message,
                "type": self.type or TYPES.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
                **self.extra,
            }
        }


def bad_request(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """Return a 400 that names the field."""
    return ApiError(400, message, param, code)


def unsupported(param: str, message: str) -> ApiError:
    """Return the 400 for a field that would change the answer and is not honoured."""
    return ApiError(400, message, param, "unsupported_parameter")


def loading_error(what: str = "Loading model") -> ApiError:
    """Return the 503 of a server that is not ready yet."""
    return ApiError(503, what, code="loading", headers={"retry-after": "1"})


def from_onebit(error: OnebitError) -> ApiError:
    """Return the API's error for one of onebit's own."""
    row = next(TABLE[kind] for kind in TABLE if isinstance(error, kind))
    if row.status == 500:
        return ApiError(500, "The server failed on this request.", code=row.code)
    first = error.findings[0]
    message = first.what[:1].upper() + first.what[1:]
    if first.mend and row.status < 500:
        message += f": {first.mend}" if not message.endswith(".") else f" {first.mend}"
    made = ApiError(row.status, message, first.where.field, row.code)
    if isinstance(error, QueueFull):
        made.headers = {"retry-after": str(max(1, round(error.retry_after)))}
    elif isinstance(error, EngineStopped):
        made.headers = {"retry-after": "1"}
    elif isinstance(error, PromptTooLong):
        made.type = "exceed_context_size_error"
        made.extra = {"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx}
    return made
