"""Turns checked request bodies into jobs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from onebit.server.errors import ApiError, bad_request, unsupported
from onebit.server.grammar import ConstraintMaker
from onebit.server.job import Job, base_request, encode_prompts, with_prompts
from onebit.server.messages import Tool
from onebit.server.requests import (
    ChatRequest,
    CompletionRequest,
    NativeRequest,
    Sampling,
    TemplateRequest,
    TokenizeRequest,
)
from onebit.server.sampling import constraint, sampling_params
from onebit.server.state import ServedModel, ServerState
from onebit.text import TemplateError, ToolParser
from onebit.text.reasoning import CLOSE
from onebit.text.tools import HermesParser

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "chat_template"})
"""Template variables that `chat_template_kwargs` must not set."""


def new_id(prefix: str) -> str:
    """Return a fresh id for a reply."""
    return f"{prefix}-{secrets.token_hex(12)}"


async def completion_job(
    state: ServerState, served: ServedModel, request: CompletionRequest, headers: dict[str, str]
) -> Job:
    """Return the job of `POST /v1/completions`.

    Raises:
        ApiError: 400 naming the field.
    """
    check_stream_options(request)
    limit = _limit(request.max_completion_tokens, request.max_tokens)
    if limit == 0 and not request.echo:
        raise bad_request("max_tokens", "max_tokens is 0, which takes echo: true.")
    prompts = await encode_prompts(state, served, request.prompt)
    base = replace(
        base_request(served, request),
        max_tokens=limit,
        n=_answers(served, request.n),
        sampling=sampling_params(served, request, request.logprobs),
        prompt_logprobs=request.logprobs if request.echo else None,
        constraint=_constraint(state, request, request.response_format),
    )
    return _raw_job(served, request, with_prompts(base, prompts, ""), "cmpl", headers)


async def native_job(
    state: ServerState, served: ServedModel, request: NativeRequest, headers: dict[str, str]
) -> Job:
    """Return the job of `POST /completion`.

    Raises:
        ApiError: 400 naming the field.
    """
    prompts = await encode_prompts(state, served, request.prompt)
    limit = _limit(request.max_completion_tokens, request.max_tokens, request.n_predict)
    base = replace(
        base_request(served, request),
        max_tokens=None if limit == -1 else limit,
        sampling=sampling_params(served, request, request.n_probs or None),
        constraint=_constraint(state, request, None),
    )
    return _raw_job(served, request, with_prompts(base, prompts, ""), "cmpl", headers)


def _raw_job(
    served: ServedModel, request: Sampling, requests: Any, prefix: str, headers: dict[str, str]
) -> Job:
    job_id = new_id(prefix)
    return Job(
        served,
        job_id,
        tuple(replace(r, id=job_id) for r in requests),
        partial(
            served.text.output_parser,
            stops=request.stop,
            special=not request.skip_special_tokens,
        ),
        headers,
    )


@dataclass(frozen=True)
class _Tools:
    """The tools in play: what the template sees and how calls are read."""

    offered: list[dict[str, Any]] | None = None
    names: tuple[str, ...] = ()
    forced: ConstraintMaker | None = None
    prefix: str = ""
    """Text of the answer that is put into the prompt, for a call that has to be made."""


async def chat_job(
    state: ServerState, served: ServedModel, request: ChatRequest, headers: dict[str, str]
) -> Job:
    """Return the job of `POST /v1/chat/completions`.

    Raises:
        ApiError: 400 naming the field.
    """
    check_stream_options(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("top_logprobs", "top_logprobs takes logprobs: true.")
    tools = _tools(state, served, request)
    prompt = await render(state, served, request, tools.offered) + tools.prefix
    ids = await encode_chat(state, served, prompt)
    held = _constraint(
        state,
        request,
        request.response_format,
        skip_thinking=served.text.thinks and not prompt.rstrip().endswith(CLOSE),
    )
    if held is not None and tools.names:
        raise unsupported("response_format", "Constrained output and tools cannot be combined.")
    base = replace(
        base_request(served, request),
        max_tokens=_limit(request.max_completion_tokens, request.max_tokens),
        n=_answers(served, request.n),
        sampling=sampling_params(
            served, request, (request.top_logprobs or 0) if request.logprobs else None
        ),
        constraint=tools.forced or held,
    )
    job_id = new_id("chatcmpl")
    split = request.reasoning_format != "none"

    def make_parser() -> Any:
        return served.text.output_parser(
            stops=request.stop,
            prompt=prompt if split and not tools.prefix else None,
            tools=_tool_parser(served, tools),
            special=not request.skip_special_tokens,
        )

    return Job(served, job_id, with_prompts(base, [ids], job_id), make_parser, headers)


def _tool_parser(served: ServedModel, tools: _Tools) -> ToolParser | None:
    if not tools.names:
        return None
    parser = served.text.tool_parser(tools.names)
    if parser is not None and tools.prefix:
        parser.push(tools.prefix)
    return parser


def _tools(state: ServerState, served: ServedModel, request: ChatRequest) -> _Tools:
    choice = request.tool_choice or ("auto" if request.tools else "none")
    if not request.tools:
        if choice not in ("none", "auto"):
            raise bad_request("tool_choice", "tool_choice asks for a call, but there are no tools.")
        return _Tools()
    if choice == "none":
        return _Tools()
    if not served.text.knows("tools"):
        raise unsupported("tools", "This model's chat template takes no tools.")
    if served.text.tool_format is None:
        raise unsupported("tools", "The form of this model's tool calls is not known to onebit.")
    if not request.parallel_tool_calls:
        raise unsupported(
            "parallel_tool_calls", "parallel_tool_calls: false is not supported by this server."
        )
    offered = [tool.model_dump(exclude_none=True) for tool in request.tools]
    names = tuple(tool.function.name for tool in request.tools)
    if choice == "auto":
        return _Tools(offered, names)
    return _forced(state, served, request.tools, offered, choice)


def _forced(
    state: ServerState, served: ServedModel, tools: list[Tool], offered: list[Any], choice: str
) -> _Tools:
    """Return the tools with a call forced by a schema over name and arguments."""
    wanted = [t for t in tools if choice == "required" or t.function.name == choice[1:]]
    if not wanted:
        raise bad_request("tool_choice", "tool_choice names a function that is not in tools.")
    hermes = served.text.tool_format == "hermes"
    if not hermes and served.text.tool_format != "llama3_json":
        raise unsupported("tool_choice", "This model's tool calls cannot be forced; use auto.")
    key = "arguments" if hermes else "parameters"
    schema = {"anyOf": [_call_schema(tool, key) for tool in wanted]}
    assert state.grammar is not None
    forced = state.grammar.json_schema(schema, "tool_choice", skip_thinking=False)
    names = tuple(tool.function.name for tool in tools)
    return _Tools(offered, names, forced, f"{HermesParser.opening}\n" if hermes else "")


def _call_schema(tool: Tool, key: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.function.name},
            key: tool.function.parameters or {"type": "object"},
        },
        "required": ["name", key],
        "additionalProperties": False,
    }


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
    if len(prompt) > 8192:
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


def check_stream_options(request: Sampling) -> None:
    """Refuse stream options without a stream.

    Raises:
        ApiError: 400.
    """
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options", "stream_options takes stream: true.")


def _constraint(
    state: ServerState,
    request: Sampling,
    response_format: Any,
    *,
    skip_thinking: bool = False,
) -> ConstraintMaker | None:
    assert state.grammar is not None
    return constraint(state.grammar, request, response_format, skip_thinking=skip_thinking)


def _answers(served: ServedModel, n: int) -> int:
    """Return the number of answers, checked before anything is made for each of them."""
    most = served.engine.max_sequences
    if n > most:
        raise bad_request("n", f"n is {n}; this server gives at most {most} answers to a prompt.")
    return n


def _limit(*values: int | None) -> int | None:
    """Return the first limit given: max_completion_tokens goes before max_tokens."""
    return next((value for value in values if value is not None), None)


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}
