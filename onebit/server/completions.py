"""Replies of `POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from onebit.server.chat import FINGERPRINT
from onebit.server.encode import DONE, encode_json, event
from onebit.server.errors import ApiError
from onebit.server.generation import Piece, Run
from onebit.server.job import Job
from onebit.server.logprobs import LegacyLogprobs, joined
from onebit.server.requests import CompletionRequest, Prompt
from onebit.server.usage import timings_of, usage_of


class _Legacy:
    """Text and log-probabilities of pieces, in the shapes of this API."""

    def __init__(self, job: Job, request: CompletionRequest) -> None:
        self._job = job
        self._request = request
        self._probs = [LegacyLogprobs(job.served.text) for _ in range(job.choices)]
        self._echoed = [not request.echo] * job.choices

    def take(self, piece: Piece) -> tuple[str, dict[str, Any] | None]:
        """Return the piece's text and log-probabilities; the echoed prompt comes first."""
        text, probs = piece.delta.text, list[dict[str, Any]]()
        prompt = piece.choice // self._job.n
        if not self._echoed[piece.choice]:
            self._echoed[piece.choice] = True
            text = self.prompt_text(prompt) + text
        keeper = self._probs[piece.choice]
        if piece.prompt_logprobs is not None:
            probs.append(keeper.add(piece.prompt_logprobs, self._job.requests[prompt].prompt))
        if piece.logprobs:
            probs.append(keeper.add(piece.logprobs, [e.token for e in piece.logprobs]))
        return text, joined(probs) if probs else None

    def prompt_text(self, prompt: int) -> str:
        """Return a prompt as the request gave it; token ids as their text."""
        given: Prompt = self._request.prompt[prompt]
        if isinstance(given, str):
            return given
        return self._job.served.text.decode(self._job.requests[prompt].prompt)


class CompletionCollector:
    """Builds a `text_completion`."""

    def __init__(self, job: Job, request: CompletionRequest) -> None:
        self._job = job
        self._legacy = _Legacy(job, request)
        self._created = int(time.time())
        self._texts: list[list[str]] = [[] for _ in range(job.choices)]
        self._probs: list[list[dict[str, Any]]] = [[] for _ in range(job.choices)]
        self._wants_probs = request.logprobs is not None

    def add(self, pieces: Sequence[Piece]) -> None:
        """Take pieces of answers."""
        for piece in pieces:
            text, probs = self._legacy.take(piece)
            self._texts[piece.choice].append(text)
            if probs is not None:
                self._probs[piece.choice].append(probs)

    def result(self, run: Run) -> dict[str, Any]:
        """Return the reply."""
        return {
            "id": self._job.id,
            "object": "text_completion",
            "created": self._created,
            "model": self._job.served.model_id,
            "system_fingerprint": FINGERPRINT,
            "choices": [
                {
                    "text": "".join(texts),
                    "index": i,
                    "logprobs": joined(self._probs[i]) if self._wants_probs else None,
                    "finish_reason": run.finishes[i].reason,
                }
                for i, texts in enumerate(self._texts)
            ],
            "usage": usage_of(self._job, run.finishes),
            "timings": timings_of(self._job, run.finishes),
        }


class CompletionStream:
    """Builds `text_completion` events."""

    def __init__(self, job: Job, request: CompletionRequest) -> None:
        self._job = job
        self._legacy = _Legacy(job, request)
        options = request.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._fields = {
            "id": job.id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": job.served.model_id,
            "system_fingerprint": FINGERPRINT,
        }
        head = b"data: " + encode_json(self._fields)[:-1] + b',"choices":[{"index":'
        self._open = job.choices
        self._heads = [head + b"%d" % i + b',"text":' for i in range(job.choices)]

    def events(self, pieces: Sequence[Piece], run: Run) -> list[bytes]:
        """Return the events for pieces of answers."""
        made: list[bytes] = []
        for piece in pieces:
            text, probs = self._legacy.take(piece)
            head = self._heads[piece.choice]
            shown = b',"logprobs":' + encode_json(probs)
            if piece.finish is not None:
                self._open -= 1
                if text and probs is None:
                    made.append(head + encode_json(text) + shown + b',"finish_reason":null}]}\n\n')
                    text = ""
                reason = b',"finish_reason":"%s"}]' % piece.finish.reason.encode()
                made.append(head + encode_json(text) + shown + reason + self._tail(run) + b"}\n\n")
            elif text or probs is not None:
                made.append(head + encode_json(text) + shown + b',"finish_reason":null}]}\n\n')
        return made

    def end(self, run: Run) -> list[bytes]:
        """Return the usage chunk, if asked for, and the end mark."""
        if not self._include_usage:
            return [DONE]
        last = {
            **self._fields,
            "choices": [],
            "usage": usage_of(self._job, run.finishes),
            "timings": timings_of(self._job, run.finishes),
        }
        return [event(last), DONE]

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends the stream by an error."""
        return event(error.body())

    def _tail(self, run: Run) -> bytes:
        """Return the timings, on the stream's last chunk only."""
        if self._open or self._include_usage:
            return b""
        return b',"timings":' + encode_json(timings_of(self._job, run.finishes))
