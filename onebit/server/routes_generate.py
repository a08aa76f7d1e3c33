"""The routes that generate text."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from onebit.server.chat import ChatCollector, ChatStream
from onebit.server.chat_prompt import ignored_kwargs
from onebit.server.completions import CompletionCollector, CompletionStream
from onebit.server.context import Context
from onebit.server.generation import Run
from onebit.server.job import Job
from onebit.server.messages import ignored_in
from onebit.server.native import NativeCollector, NativeStream
from onebit.server.prepare import chat_job, completion_job, native_job
from onebit.server.reply import Collector, RunReply, Stream, StreamReply
from onebit.server.requests import ChatRequest, CompletionRequest, NativeRequest
from onebit.server.responses import ResponsesCollector, ResponsesStream
from onebit.server.responses_request import ResponsesRequest


def _start(context: Context, job: Job, collector: Collector, stream: Stream | None) -> ASGIApp:
    """Submit a job and return its reply.

    Raises:
        ApiError: the engine refused it; nothing has been sent yet.
    """
    run = Run(job)
    run.start()
    if stream is None:
        return RunReply(run, collector, context.metrics)
    return StreamReply(run, stream, context.metrics)


@post(["/v1/completions", "/completions"])
async def completions(request: Request[Any, Any, Any]) -> ASGIApp:
    """Continue prompts."""
    context = Context.of(request)
    served, body = await context.read(request, CompletionRequest)
    headers = context.headers(body.ignored())
    job = await completion_job(context.state, served, body, headers)
    stream = CompletionStream(job, body) if body.stream else None
    return _start(context, job, CompletionCollector(job, body), stream)


@post(["/v1/chat/completions", "/chat/completions"])
async def chat_completions(request: Request[Any, Any, Any]) -> ASGIApp:
    """Answer a chat."""
    context = Context.of(request)
    served, body = await context.read(request, ChatRequest)
    ignored = body.ignored() + ignored_in(body.messages, body.tools or [])
    headers = context.headers(ignored + ignored_kwargs(served, body))
    job = await chat_job(context.state, served, body, headers)
    stream = None
    if body.stream:
        usage = bool(body.stream_options and body.stream_options.include_usage)
        stream = ChatStream(job, logprobs=body.logprobs, include_usage=usage)
    return _start(context, job, ChatCollector(job, logprobs=body.logprobs), stream)


@post(["/v1/responses", "/responses"])
async def responses(request: Request[Any, Any, Any]) -> ASGIApp:
    """Answer in the form of the Responses API."""
    context = Context.of(request)
    served, body = await context.read(request, ResponsesRequest)
    chat = body.as_chat()
    headers = context.headers(body.ignored() + ignored_in(chat.messages, chat.tools or []))
    job = await chat_job(context.state, served, chat, headers)
    stream = ResponsesStream(job) if body.stream else None
    return _start(context, job, ResponsesCollector(job), stream)


@post(["/completion"])
async def native_completion(request: Request[Any, Any, Any]) -> ASGIApp:
    """Continue a prompt in llama-server's own form."""
    context = Context.of(request)
    served, body = await context.read(request, NativeRequest)
    headers = context.headers(body.ignored())
    job = await native_job(context.state, served, body, headers)
    stream = NativeStream(job, body) if body.stream else None
    return _start(context, job, NativeCollector(job, body), stream)


GENERATE = [completions, chat_completions, responses, native_completion]
