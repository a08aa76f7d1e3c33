"""Turns checked request bodies into jobs."""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import Any

from onebit.server.chat_prompt import encode_chat, render
from onebit.server.errors import bad_request, unsupported
from onebit.server.grammar import ConstraintMaker
from onebit.server.job import Job, base_request, encode_prompts, with_prompts
from onebit.server.requests import ChatRequest, CompletionRequest, NativeRequest, Sampling
from onebit.server.sampling import constraint, sampling_params
from onebit.server.state import ServedModel, ServerState
from onebit.server.tool_use import tool_parser, tool_use
from onebit.text.reasoning import CLOSE


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
    answers = _best_of(served, request)
    # Answers are compared by their log-probabilities.
    scores = 0 if answers > request.n and request.logprobs is None else request.logprobs
    prompts = await encode_prompts(state, served, request.prompt)
    base = replace(
        base_request(served, request),
        max_tokens=limit,
        n=answers,
        sampling=sampling_params(served, request, scores),
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
    tools = tool_use(state, served, request)
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
            tools=tool_parser(served, tools),
            special=not request.skip_special_tokens,
        )

    return Job(served, job_id, with_prompts(base, [ids], job_id), make_parser, headers)


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


def _answers(served: ServedModel, n: int, field: str = "n") -> int:
    """Return the number of answers, checked before anything is made for each of them."""
    most = served.engine.max_sequences
    if n > most:
        raise bad_request(
            field, f"{field} is {n}; this server gives at most {most} answers to a prompt."
        )
    return n


def _best_of(served: ServedModel, request: CompletionRequest) -> int:
    """Return the number of answers to make, of which the `n` likeliest are sent."""
    n, best = _answers(served, request.n), request.best_of
    if best is None or best == n:
        return n
    if best < n:
        raise bad_request("best_of", f"best_of is {best}, fewer than the n of {n} to choose.")
    if request.stream:
        raise bad_request("best_of", "best_of chooses among whole answers and cannot be streamed.")
    return _answers(served, best, "best_of")


def _limit(*values: int | None) -> int | None:
    """Return the first limit given: max_completion_tokens goes before max_tokens."""
    return next((value for value in values if value is not None), None)
