"""From a chat to the prompt that its template makes of it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from onebit.server.errors import ApiError, bad_request, unsupported
from onebit.server.job import LONG_TEXT
from onebit.server.requests import ChatRequest, TemplateRequest, TokenizeRequest
from onebit.server.state import ServedModel, ServerState
from onebit.text import TemplateError

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "chat_template"})
"""Template variables that `chat_template_kwargs` must not set."""


async def render(
    state: ServerState,
    served: ServedModel,
    request: ChatRequest | TemplateRequest,
    tools: list[dict[str, Any]] | None,
) -> str:
    """Return the prompt of a chat, rendered off the event loop.

    Raises:
        ApiError: 400 naming `messages`, with the template's own words when it refused.
    """
    continue_final = _continues(request)
    call = partial(
        served.text.render,
        [message.for_template() for message in request.messages],
        tools=tools,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final=continue_final,
        extra=template_variables(served, request),
    )
    try:
        return await asyncio.get_running_loop().run_in_executor(state.renderer, call)
    except TemplateError as error:
        raise template_error(error) from None


def template_error(error: TemplateError) -> ApiError:
    """Return the API's error for a template's."""
    if error.kind == "missing":
        return ApiError(
            400,
            "This model has no chat template; use /v1/completions.",
            "messages",
            "no_chat_template",
        )
    if error.kind == "refused":
        return bad_request("messages", error.message or "The template refused.", "template_refused")
    return bad_request(
        "messages",
        f"The model's chat template failed on these messages: {error.message}.",
        f"template_{error.kind}",
    )


def template_variables(
    served: ServedModel, request: ChatRequest | TemplateRequest | TokenizeRequest
) -> dict[str, Any]:
    """Return the template variables that the request sets.

    Raises:
        ApiError: 400 naming the field.
    """
    extra: dict[str, Any] = dict(request.chat_template_kwargs)
    for name in extra:
        if name in RESERVED:
            param = "chat_template" if name == "chat_template" else f"chat_template_kwargs.{name}"
            raise unsupported(param, f"chat_template_kwargs must not set {name}.")
    if isinstance(request, TokenizeRequest):
        return extra
    if request.enable_thinking is not None:
        extra.setdefault("enable_thinking", request.enable_thinking)
    effort = request.reasoning_effort
    if effort is not None:
        if effort in ("none", "minimal"):
            extra.setdefault("enable_thinking", False)
        elif not served.text.knows("reasoning_effort"):
            raise unsupported(
                "reasoning_effort", 'This model has no levels of reasoning; use "none" or leave it.'
            )
        extra.setdefault("reasoning_effort", effort)
    return extra


def ignored_kwargs(served: ServedModel, request: ChatRequest | TemplateRequest) -> list[str]:
    """Return template variables that the template never reads."""
    return [
        f"chat_template_kwargs.{name}"
        for name, value in request.chat_template_kwargs.items()
        if not served.text.knows(name) and not (name == "enable_thinking" and value is False)
    ]


async def encode_chat(state: ServerState, served: ServedModel, prompt: str) -> list[int]:
    """Return the ids of a rendered chat."""
    if len(prompt) > LONG_TEXT:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(state.workers, served.text.encode_chat, prompt)
    return served.text.encode_chat(prompt)


def _continues(request: ChatRequest | TemplateRequest) -> bool:
    """Return whether the last message is to be continued.

    A trailing assistant message is, unless the request says otherwise.
    """
    roles = [message.role for message in request.messages[-2:]]
    if roles == ["assistant", "assistant"]:
        raise bad_request("messages", "The chat ends with two assistant messages.")
    if request.continue_final_message:
        if request.add_generation_prompt:
            raise bad_request(
                "continue_final_message",
                "continue_final_message and add_generation_prompt cannot both be true.",
            )
        if roles[-1] != "assistant":
            raise bad_request("continue_final_message", "The last message is not the assistant's.")
        return True
    if request.continue_final_message is False or request.add_generation_prompt is not None:
        return False
    return roles[-1] == "assistant" and not request.messages[-1].tool_calls
