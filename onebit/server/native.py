"""Replies of `POST /completion`, llama-server's own form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onebit.engine import TokenLogprob
from onebit.server.encode import event
from onebit.server.errors import ApiError
from onebit.server.generation import Piece, Run
from onebit.server.job import Job
from onebit.server.logprobs import chat_logprobs
from onebit.server.requests import NativeRequest
from onebit.server.usage import progress_of, timings_of, timings_so_far


class _Answer:
    def __init__(self) -> None:
        self.text: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []


def _stop_type(run: Run, choice: int) -> str:
    finish = run.finishes[choice]
    if finish.stop_text is not None:
        return "word"
    return "eos" if finish.reason == "stop" else "limit"


def _settings(job: Job, request: NativeRequest) -> dict[str, Any]:
    sampling = job.requests[0].sampling
    return {
        "n_predict": -1 if job.requests[0].max_tokens is None else job.requests[0].max_tokens,
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": request.stop,
        "ignore_eos": sampling.ignore_eos,
        "n_probs": request.n_probs,
        "n_ctx": job.served.engine.context,
    }


def _last(job: Job, request: NativeRequest, run: Run, choice: int) -> dict[str, Any]:
    """Return the members that tell how an answer ended."""
    finish = run.finishes[choice]
    prompt = len(job.requests[choice].prompt)
    return {
        "index": choice,
        "id_slot": 0,
        "stop": True,
        "model": job.served.model_id,
        "tokens_predicted": finish.completion_tokens,
        "tokens_evaluated": prompt,
        "tokens_cached": prompt + finish.completion_tokens,
        "generation_settings": _settings(job, request),
        "truncated": finish.context_full,
        "stop_type": _stop_type(run, choice),
        "stopping_word": finish.stop_text or "",
        "timings": timings_of(job, run.finishes),
    }


class NativeCollector:
    """Builds the reply; a list of replies for a list of prompts."""

    def __init__(self, job: Job, request: NativeRequest) -> None:
        self._job = job
        self._request = request
        self._answers = [_Answer() for _ in range(job.choices)]

    def add(self, pieces: Sequence[Piece]) -> None:
        """Take pieces of answers."""
        for piece in pieces:
            answer = self._answers[piece.choice]
            answer.text.append(piece.delta.text)
            answer.tokens += piece.tokens
            answer.logprobs += piece.logprobs

    def result(self, run: Run) -> Any:
        """Return the reply."""
        made = [self._one(run, i) for i in range(len(self._answers))]
        return made[0] if len(made) == 1 else made

    def _one(self, run: Run, index: int) -> dict[str, Any]:
        answer, request = self._answers[index], self._request
        text = "".join(answer.text)
        made: dict[str, Any] = {
            "content": text,
            "tokens": answer.tokens if request.return_tokens else [],
            "has_new_line": "\n" in text,
            **_last(self._job, request, run, index),
        }
        if request.n_probs:
            made["completion_probabilities"] = _probs(self._job, answer.logprobs)
        if request.response_fields is not None:
            made = {key: made[key] for key in request.response_fields if key in made}
        return made


class NativeStream:
    """Builds the events; the last one of each answer has `stop: true`."""

    def __init__(self, job: Job, request: NativeRequest) -> None:
        self._job = job
        self._request = request

    def events(self, pieces: Sequence[Piece], run: Run) -> list[bytes]:
        """Return the events for pieces of answers."""
        made: list[bytes] = []
        for piece in pieces:
            chunk: dict[str, Any] = {
                "index": piece.choice,
                "content": piece.delta.text,
                "tokens": piece.tokens,
                "stop": False,
            }
            if piece.progress is not None:
                total = len(self._job.requests[piece.choice].prompt)
                chunk["prompt_progress"] = progress_of(piece.progress, total)
            if piece.timings is not None:
                chunk["timings"] = timings_so_far(piece.timings)
            if self._request.n_probs and piece.logprobs:
                chunk["completion_probabilities"] = _probs(self._job, piece.logprobs)
            if piece.finish is not None:
                chunk |= _last(self._job, self._request, run, piece.choice)
            made.append(event(chunk))
        return made

    def end(self, _run: Run) -> list[bytes]:
        """Return nothing: this form has no end mark."""
        return []

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends the stream by an error."""
        return event(error.body())


def _probs(job: Job, entries: list[TokenLogprob]) -> list[dict[str, Any]]:
    made = []
    for shown, entry in zip(
        chat_logprobs(job.served.text, entries)["content"], entries, strict=True
    ):
        top = [
            {"id": token, **one}
            for (token, _), one in zip(entry.top, shown["top_logprobs"], strict=True)
        ]
        made.append({"id": entry.token, **shown, "top_logprobs": top})
    return made
