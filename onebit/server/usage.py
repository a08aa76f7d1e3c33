"""Token counts and timings of a reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onebit.engine import ProgressEvent, Timings
from onebit.server.encode import encode_json
from onebit.server.generation import Finish
from onebit.server.job import Job


def usage_of(job: Job, finishes: Mapping[int, Finish]) -> dict[str, Any]:
    """Return OpenAI's `usage`; a prompt with several answers counts once."""
    prompt = sum(len(request.prompt) for request in job.requests)
    completion = sum(f.completion_tokens for f in finishes.values())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": _cached(job, finishes)},
    }


def timings_of(job: Job, finishes: Mapping[int, Finish]) -> dict[str, Any]:
    """Return llama-server's `timings`. All values are finite.

    The generation rate leaves out the first token, whose time is part of the prompt's.
    """
    prompt = sum(len(request.prompt) for request in job.requests)
    cached = _cached(job, finishes)
    predicted = sum(f.completion_tokens for f in finishes.values())
    prompt_ms = max((f.timings.prompt_ms for f in finishes.values()), default=0.0)
    predicted_ms = max((f.timings.predicted_ms for f in finishes.values()), default=0.0)
    return timings(prompt - cached, cached, prompt_ms, predicted, predicted_ms, len(finishes))


def spent_so_far(spent: Timings | None) -> bytes:
    """Return the `timings` member of an unfinished answer's event; nothing unless asked for."""
    return b"" if spent is None else b',"timings":' + encode_json(timings_so_far(spent))


def timings_so_far(spent: Timings) -> dict[str, Any]:
    """Return the `timings` of one answer that is not finished."""
    return timings(
        spent.prompt_n, spent.cache_n, spent.prompt_ms, spent.predicted_n, spent.predicted_ms, 1
    )


def progress_of(event: ProgressEvent, total: int) -> dict[str, Any]:
    """Return llama-server's `prompt_progress`."""
    return {
        "total": total,
        "cache": event.cached,
        "processed": event.processed,
        "time_ms": round(event.ms, 3),
    }


def timings(
    prompt_n: int, cache_n: int, prompt_ms: float, predicted_n: int, predicted_ms: float, first: int
) -> dict[str, Any]:
    """Return a `timings` object; `first` tokens belong to the prompt's time."""
    prompt_ms, predicted_ms = max(prompt_ms, 0.001), max(predicted_ms, 0.001)
    timed = max(predicted_n - first, 0)
    return {
        "cache_n": cache_n,
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": round(prompt_ms / max(prompt_n, 1), 3),
        "prompt_per_second": round(1000 * prompt_n / prompt_ms, 3),
        "predicted_n": predicted_n,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": round(predicted_ms / max(timed, 1), 3),
        "predicted_per_second": round(1000 * timed / predicted_ms, 3) if timed else 0.0,
    }


def _cached(job: Job, finishes: Mapping[int, Finish]) -> int:
    return sum(finishes[i].timings.cache_n for i in range(0, job.choices, job.n) if i in finishes)
