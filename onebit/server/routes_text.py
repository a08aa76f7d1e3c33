"""The routes between text, chats and tokens."""

from __future__ import annotations

from typing import Any

from litestar import Request, get, post
from litestar.types import ASGIApp

from onebit.server.chat_prompt import encode_chat, ignored_kwargs, render
from onebit.server.context import Context
from onebit.server.errors import bad_request
from onebit.server.job import Job
from onebit.server.messages import ignored_in
from onebit.server.prepare import chat_job
from onebit.server.reply import JsonReply
from onebit.server.requests import (
    ChatRequest,
    DetokenizeRequest,
    TemplateRequest,
    TokenizeRequest,
)
from onebit.server.responses_request import ResponsesRequest
from onebit.server.state import ServedModel


@post(["/tokenize", "/v1/tokenize"])
async def tokenize(request: Request[Any, Any, Any]) -> ASGIApp:
    """Return the tokens of a text or a chat."""
    context = Context.of(request)
    served, body = await context.read(request, TokenizeRequest)
    headers = context.headers(body.ignored())
    ids = await _tokens_of(context, served, body)
    made: dict[str, Any] = {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": served.engine.context,
    }
    if body.with_pieces:
        made["tokens"] = [{"id": i, "piece": _piece(served, i)} for i in ids]
    return JsonReply(made, headers=headers)


async def _tokens_of(context: Context, served: ServedModel, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        chat = TemplateRequest.read(
            {"messages": [m.model_dump(exclude_none=True) for m in body.messages]}
            | {"chat_template_kwargs": body.chat_template_kwargs}
        )
        prompt = await render(context.state, served, chat, None)
        return await encode_chat(context.state, served, prompt)
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise bad_request("content", "content is required.", "missing_required_parameter")
    if body.add_special is not None:
        special = body.add_special
    else:  # `prompt` is the field of servers that add special tokens by themselves
        special = bool(body.add_special_tokens) or (
            body.add_special_tokens is None and body.content is None
        )
    return served.text.encode(text, add_special=special)


def _piece(served: ServedModel, token: int) -> str | list[int]:
    """Return a token's text, or its bytes when they are no text by themselves."""
    piece = served.text.tokens.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


@post(["/detokenize", "/v1/detokenize"])
async def detokenize(request: Request[Any, Any, Any]) -> ASGIApp:
    """Return the text of tokens, special ones included."""
    context = Context.of(request)
    served, body = await context.read(request, DetokenizeRequest)
    for token in body.tokens:
        if not 0 <= token < served.text.vocab:
            raise bad_request(
                "tokens", f"tokens holds {token}; token ids are 0 to {served.text.vocab - 1}."
            )
    text = served.text.decode(body.tokens, special=True)
    return JsonReply({"content": text, "prompt": text}, headers=context.headers(body.ignored()))


@post(["/apply-template", "/v1/apply-template"])
async def apply_template(request: Request[Any, Any, Any]) -> ASGIApp:
    """Return the prompt that a chat becomes."""
    context = Context.of(request)
    served, body = await context.read(request, TemplateRequest)
    ignored = body.ignored() + ignored_in(body.messages, body.tools or [])
    headers = context.headers(ignored + ignored_kwargs(served, body))
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or []]
    prompt = await render(context.state, served, body, tools or None)
    return JsonReply({"prompt": prompt}, headers=headers)


@post(["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
async def chat_tokens(request: Request[Any, Any, Any]) -> ASGIApp:
    """Count the tokens of a chat's prompt."""
    context = Context.of(request)
    served, body = await context.read(request, ChatRequest)
    headers = context.headers(body.ignored())
    return _count(await chat_job(context.state, served, body, headers))


@post(["/v1/responses/input_tokens", "/responses/input_tokens"])
async def responses_tokens(request: Request[Any, Any, Any]) -> ASGIApp:
    """Count the tokens of the prompt that a Responses request becomes."""
    context = Context.of(request)
    served, body = await context.read(request, ResponsesRequest)
    headers = context.headers(body.ignored())
    return _count(await chat_job(context.state, served, body.as_chat(), headers))


def _count(job: Job) -> JsonReply:
    count = len(job.requests[0].prompt)
    value = {"object": "response.input_tokens", "input_tokens": count}
    return JsonReply(value, headers=job.headers)


@get(["/tokenizer_info", "/v1/tokenizer_info"])
async def tokenizer_info(request: Request[Any, Any, Any]) -> ASGIApp:
    """Describe the tokenizer as vLLM does, so that lm-eval needs none of its own."""
    text = Context.of(request).state.require().text
    return JsonReply(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": text.template_tokens.get("bos_token"),
            "eos_token": text.template_tokens.get("eos_token"),
            "pad_token": text.template_tokens.get("pad_token"),
            "chat_template": text.template.source if text.template else None,
        }
    )


TEXT = [
    tokenize,
    detokenize,
    apply_template,
    chat_tokens,
    responses_tokens,
    tokenizer_info,
]
