"""The OpenAPI document, made from the request models."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from litestar import get
from litestar.types import ASGIApp

from onebit import __version__
from onebit.server.fields import RequestModel
from onebit.server.reply import JsonReply
from onebit.server.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    NativeRequest,
    TemplateRequest,
    TokenizeRequest,
)
from onebit.server.responses_request import ResponsesRequest

_POSTS: dict[str, tuple[str, type[RequestModel]]] = {
    "/v1/completions": ("Continue prompts", CompletionRequest),
    "/v1/chat/completions": ("Answer a chat", ChatRequest),
    "/v1/responses": ("Answer a chat, Responses form", ResponsesRequest),
    "/completion": ("Continue a prompt, llama-server's form", NativeRequest),
    "/tokenize": ("Tokens of a text", TokenizeRequest),
    "/detokenize": ("Text of tokens", DetokenizeRequest),
    "/apply-template": ("Prompt of a chat", TemplateRequest),
    "/v1/chat/completions/input_tokens": ("Count the tokens of a chat", ChatRequest),
    "/v1/responses/input_tokens": ("Count the tokens of a chat, Responses form", ResponsesRequest),
}
_GETS = {
    "/health": "Whether the server can answer",
    "/v1/models": "The model that is served",
    "/props": "Facts about the server",
    "/slots": "Places for sequences",
    "/tokenizer_info": "Special tokens and chat template",
    "/metrics": "Metrics for Prometheus",
}


@lru_cache(1)
def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    schemas: dict[str, Any] = {
        "Error": {
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {
                    "type": "object",
                    "required": ["message", "type", "param", "code"],
                    "properties": {
                        "message": {"type": "string"},
                        "type": {"type": "string"},
                        "param": {"type": ["string", "null"]},
                        "code": {"type": ["string", "null"]},
                    },
                }
            },
        }
    }
    paths: dict[str, Any] = {}
    for path, text in _GETS.items():
        paths[path] = {"get": {"summary": text, "responses": _responses()}}
    for path, (text, model) in _POSTS.items():
        made = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(made.pop("$defs", {}))
        schemas[model.__name__] = made
        body = {"$ref": f"#/components/schemas/{model.__name__}"}
        paths[path] = {
            "post": {
                "summary": text,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": body}},
                },
                "responses": _responses(),
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "onebit", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _responses() -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "200": {"description": "The answer."},
        "default": {"description": "An error.", "content": error},
    }


def openapi_route() -> Any:
    """Return the handler of GET /openapi.json."""

    @get(["/openapi.json"])
    async def openapi() -> ASGIApp:
        return JsonReply(document())

    return openapi
