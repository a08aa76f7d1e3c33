"""The routes that tell about the server and its model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from litestar import Request, get, post
from litestar.types import ASGIApp

from onebit import __version__
from onebit.server.asgi import Receive, Scope, Send
from onebit.server.context import Context
from onebit.server.errors import ApiError
from onebit.server.job import check_model
from onebit.server.reply import JsonReply, send_bytes
from onebit.server.state import ServedModel, ServerState


def health_of(state: ServerState) -> tuple[int, dict[str, Any]]:
    """Return status and body of /health. Busy is healthy; only 200 means ready."""
    served = state.served
    if state.failure:
        return 503, {"status": "failed", "findings": [str(f) for f in state.failure]}
    if state.draining:
        return 503, {"status": "shutting_down"}
    if served is None:
        progress = {"done": round(state.progress, 3), "doing": state.doing}
        return 503, {
            "status": "loading",
            "progress": progress,
            "error": {"message": "Loading model", "type": "unavailable_error", "code": 503},
        }
    broken = served.engine.failure
    if broken is not None:
        return 503, {"status": "failed", "findings": [str(f) for f in broken.findings]}
    device = served.engine.device_health
    if device is not None and device.state not in ("ready", "degraded"):
        return 503, {"status": "restarting", "model": served.model_id, "npu": asdict(device)}
    return 200, {
        "status": "ok" if device is None or device.state == "ready" else device.state,
        "model": served.model_id,
        **served.facts,
        **({"npu": asdict(device)} if device is not None else {}),
        "version": __version__,
    }


@get(["/health", "/v1/health"])
async def health(request: Request[Any, Any, Any]) -> ASGIApp:
    """Tell whether the server can answer."""
    status, body = health_of(Context.of(request).state)
    return JsonReply(body, status)


def model_entry(served: ServedModel) -> dict[str, Any]:
    """Return the entry of the model list."""
    dims = served.plan.dims
    return {
        "id": served.model_id,
        "aliases": list(served.aliases),
        "tags": [],
        "object": "model",
        "created": served.created,
        "owned_by": "onebit",
        "meta": {
            "n_ctx": served.engine.context,
            "n_ctx_train": served.plan.context,
            "n_vocab": served.plan.vocab,
            "n_embd": dims.get("hidden", 0),
        },
    }


@get(["/v1/models", "/models"])
async def models(request: Request[Any, Any, Any]) -> ASGIApp:
    """List the one model that is served."""
    served = Context.of(request).state.require()
    return JsonReply({"object": "list", "data": [model_entry(served)]})


@get(["/v1/models/{model_id:path}", "/models/{model_id:path}"])
async def model(request: Request[Any, Any, Any]) -> ASGIApp:
    """Describe a model by its name."""
    served = Context.of(request).state.require()
    name = str(request.path_params["model_id"]).removeprefix("/")
    check_model(served, name, "refuse")
    return JsonReply(model_entry(served))


@get(["/props", "/v1/props"])
async def props(request: Request[Any, Any, Any]) -> ASGIApp:
    """Describe the server as llama-server does."""
    served = Context.of(request).state.require()
    template = served.text.template
    return JsonReply(
        {
            "default_generation_settings": {
                "n_ctx": served.engine.context,
                "params": {"seed": None, **served.text.defaults},
            },
            "total_slots": served.engine.max_sequences,
            "model_alias": served.model_id,
            "model_path": served.path,
            "chat_template": template.source if template else "",
            "bos_token": served.text.template_tokens.get("bos_token", ""),
            "eos_token": served.text.template_tokens.get("eos_token", ""),
            "build_info": f"onebit-{__version__}",
        }
    )


def _require_on(on: bool, name: str) -> None:
    """Raise ApiError 501 for a route that the config switched off."""
    if not on:
        raise ApiError(
            501,
            f"/{name} is switched off on this server (api.{name}: false, --no-{name}).",
            code="not_supported",
        )


@get(["/slots", "/v1/slots"])
async def slots(request: Request[Any, Any, Any]) -> ASGIApp:
    """List the places for sequences; which one a sequence has is of no meaning here."""
    context = Context.of(request)
    _require_on(context.api.slots, "slots")
    served = context.state.require()
    running = served.engine.stats().running
    return JsonReply(
        [
            {"id": i, "n_ctx": served.engine.context, "is_processing": i < running}
            for i in range(served.engine.max_sequences)
        ]
    )


@post(["/slots/{slot:int}", "/v1/slots/{slot:int}"])
async def slot_action(request: Request[Any, Any, Any]) -> ASGIApp:
    """Refuse slot files: prefixes are cached by content, not by slot."""
    raise ApiError(
        501,
        f"Slot {request.path_params['slot']} cannot be saved, restored or erased: onebit has no "
        "--slot-save-path; prefixes are cached by their content.",
        code="not_supported",
    )


@get(["/metrics"])
async def metrics(request: Request[Any, Any, Any]) -> ASGIApp:
    """Give all metrics in Prometheus' text format."""
    context = Context.of(request)
    _require_on(context.api.metrics, "metrics")
    text = context.metrics.text()

    async def reply(_scope: Scope, _receive: Receive, send: Send) -> None:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        await send_bytes(send, text, 200, {"content-type": kind})

    return reply


_REFUSED = {
    "embeddings": ["/v1/embeddings", "/embeddings", "/embedding"],
    "reranking": ["/v1/rerank", "/rerank", "/reranking", "/v1/reranking"],
    "infilling": ["/infill"],
    "audio": ["/v1/audio/transcriptions", "/v1/audio/speech"],
    "images": ["/v1/images/generations"],
    "the Anthropic API": ["/v1/messages", "/v1/messages/count_tokens"],
    "moderations": ["/v1/moderations"],
}


def _refused(what: str, paths: list[str]) -> Any:
    @post(paths, name=f"refused-{what}")
    async def refuse() -> ASGIApp:
        raise ApiError(
            501,
            f"This server generates text over the OpenAI API; {what} is not supported.",
            code="not_supported",
        )

    return refuse


INFO = [
    health,
    models,
    model,
    props,
    slots,
    slot_action,
    metrics,
    *(_refused(what, paths) for what, paths in _REFUSED.items()),
]
