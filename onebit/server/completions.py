"""Replies of `POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from onebit.engine import ProgressEvent
from onebit.server.chat import END, FINGERPRINT, GOES_ON
from onebit.server.encode import DONE, encode_json, event
from onebit.server.errors import ApiError
from onebit.server.generation import Piece, Run
from onebit.server.job import Job
from onebit.server.logprobs import LegacyLogprobs, joined
from onebit.server.requests import CompletionRequest, Prompt
from onebit.server.usage import progress_of, spent_so_far, timings_of, usage_of


class _Legacy:
    """Text and log-probabilities of pieces, in the shapes of this API."""

    def __init__(self, job: Job, request: CompletionRequest) -> None:
        self._job = job
        self._request = request
        self._probs = [LegacyLogprobs(job.served.text) for _ in range(job.choices)]
        self._echoed = [not request.echo] * job.choices

    def take(self, piece: Piece) -> tuple[str, dict[str, Any] | None]:
        """Return the piece's text and log-probabilities; the echoed prompt comes first.

        The end token has log-probabilities and no text: harnesses count on an entry for every
        token that was generated.
        """
        text, probs = piece.delta.text, list[dict[str, Any]]()
        prompt = piece.choice // self._job.n
        if not self._echoed[piece.choice]:
            self._echoed[piece.choice] = True
            text = self.prompt_text(prompt) + text
        keeper = self._probs[piece.choice]
        if piece.prompt_logprobs is not None:
            probs.append(keeper.add(piece.prompt_logprobs, self._job.requests[prompt].prompt))
        if scored := piece.scored:
            probs.append(keeper.add(scored, [e.token for e in scored]))
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
        self._wanted = request.n
        self._scores = [_Score() for _ in range(job.choices)]

    def add(self, pieces: Sequence[Piece]) -> None:
        """Take pieces of answers."""
        for piece in pieces:
            self._scores[piece.choice].add(piece)
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
                    "text": "".join(self._texts[i]),
                    "index": index,
                    "logprobs": joined(self._probs[i]) if self._wants_probs else None,
                    "finish_reason": run.finishes[i].reason,
                }
                for index, i in enumerate(self._chosen())
            ],
            "usage": usage_of(self._job, run.finishes),
            "timings": timings_of(self._job, run.finishes),
        }

    def _chosen(self) -> list[int]:
        """Return the answers to send: of `best_of` to each prompt the `n` likeliest, best first."""
        made, n = self._job.n, self._wanted
        if n == made:
            return list(range(self._job.choices))
        prompts = [range(first, first + made) for first in range(0, self._job.choices, made)]
        return [
            i
            for answers in prompts
            for i in sorted(answers, key=lambda i: -self._scores[i].mean)[:n]
        ]


class _Score:
    """The mean log-probability of an answer's tokens, by which `best_of` chooses."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, piece: Piece) -> None:
        self._sum += sum(entry.logprob for entry in piece.scored)
        self._count += len(piece.scored)

    @property
    def mean(self) -> float:
        return self._sum / max(self._count, 1)


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
            head = self._heads[piece.choice]
            if piece.progress is not None:
                news = self._progress(piece.choice, piece.progress)
                made.append(head + b'"","logprobs":null' + GOES_ON + news + END)
                continue
            text, probs = self._legacy.take(piece)
            shown = b',"logprobs":' + encode_json(probs)
            goes_on = shown + GOES_ON + spent_so_far(piece.timings) + END
            if piece.finish is not None:
                self._open -= 1
                if text and probs is None:
                    made.append(head + encode_json(text) + goes_on)
                    text = ""
                reason = b',"finish_reason":"%s"}]' % piece.finish.reason.encode()
                made.append(head + encode_json(text) + shown + reason + self._tail(run) + END)
            elif text or probs is not None:
                made.append(head + encode_json(text) + goes_on)
        return made

    def _progress(self, choice: int, news: ProgressEvent) -> bytes:
        total = len(self._job.requests[choice // self._job.n].prompt)
        return b',"prompt_progress":' + encode_json(progress_of(news, total))

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
        """Return the timings, on the stream's last chunk only unless every chunk has them."""
        every = self._job.requests[0].token_timings
        if not every and (self._open or self._include_usage):
            return b""
        return b',"timings":' + encode_json(timings_of(self._job, run.finishes))
