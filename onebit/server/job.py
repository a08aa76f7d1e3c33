"""One API request, ready for the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from onebit.engine import GenerationRequest, PromptTooLong
from onebit.server.errors import ApiError, bad_request, from_onebit
from onebit.server.requests import Prompt, Sampling
from onebit.server.sampling import stop_ids
from onebit.server.state import ServedModel, ServerState
from onebit.text import OutputParser

LONG_TEXT = 8192
"""Characters from which a prompt is tokenised off the event loop."""


@dataclass(frozen=True)
class Job:
    """What a request asks of the engine, and how its answers are read."""

    served: ServedModel
    id: str
    """Id of the reply, for example `chatcmpl-...`."""
    requests: tuple[GenerationRequest, ...]
    """One for each prompt."""
    make_parser: Callable[[], OutputParser]
    """A fresh parser for each answer."""
    headers: dict[str, str] = field(default_factory=dict)
    """More reply headers."""

    @property
    def n(self) -> int:
        """Answers per prompt."""
        return self.requests[0].n

    @property
    def choices(self) -> int:
        """Answers in all; answer c of prompt p has index p * n + c."""
        return len(self.requests) * self.n


def check_model(served: ServedModel, name: str | None, mismatch: str) -> None:
    """Refuse a request for another model.

    Raises:
        ApiError: 404 with the names that are served.
    """
    if name is None or name in served.names or mismatch == "accept":
        return
    raise ApiError(
        404,
        f"The model {name[:100]!r} is not served here; served: {', '.join(served.names)}.",
        "model",
        "model_not_found",
    )


def check_fits(served: ServedModel, requests: Sequence[GenerationRequest]) -> None:
    """Refuse prompts that the context cannot hold, before anything is sent.

    Raises:
        ApiError: 400 with both numbers.
    """
    for request in requests:
        room = 0 if request.max_tokens == 0 else 1
        if len(request.prompt) + room > served.engine.context:
            raise from_onebit(PromptTooLong(len(request.prompt), served.engine.context))


async def encode_prompts(
    state: ServerState, served: ServedModel, prompts: Sequence[Prompt]
) -> list[list[int]]:
    """Return the ids of raw prompts; `bos` goes in front of text when the model wants it.

    Token ids are taken as they are. In a mix, the first piece counts as the beginning.

    Raises:
        ApiError: 400, a prompt has no tokens or an id is outside the vocabulary.
    """
    size = sum(len(p) for p in prompts)
    if size > LONG_TEXT:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(state.workers, _encode_all, served, prompts)
    return _encode_all(served, prompts)


def _encode_all(served: ServedModel, prompts: Sequence[Prompt]) -> list[list[int]]:
    return [_encode(served, prompt) for prompt in prompts]


def _encode(served: ServedModel, prompt: Prompt) -> list[int]:
    pieces = [prompt] if isinstance(prompt, str) else prompt
    ids: list[int] = []
    for at, piece in enumerate(pieces):
        if isinstance(piece, str):
            ids += served.text.encode(piece, add_special=at == 0)
        elif 0 <= piece < served.text.vocab:
            ids.append(piece)
        else:
            raise bad_request(
                "prompt",
                f"prompt holds token {piece}; token ids are 0 to {served.text.vocab - 1}.",
            )
    if not ids:
        raise bad_request("prompt", "The prompt is empty: it has no tokens.")
    return ids


def base_request(served: ServedModel, request: Sampling) -> GenerationRequest:
    """Return the part of the engine's request that is the same for every prompt."""
    return GenerationRequest(
        prompt=(),
        stop_ids=stop_ids(served, request),
        cache=request.cache_prompt,
        progress=request.stream and request.return_progress,
        token_timings=request.stream and request.timings_per_token,
    )


def with_prompts(
    base: GenerationRequest, prompts: Sequence[Sequence[int]], job_id: str
) -> tuple[GenerationRequest, ...]:
    """Return one engine request for each prompt."""
    return tuple(replace(base, prompt=prompt, id=job_id) for prompt in prompts)
