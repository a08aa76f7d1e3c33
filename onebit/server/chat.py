"""Replies of `POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from onebit import __version__
from onebit.engine import TokenLogprob
from onebit.server.encode import DONE, encode_json, event
from onebit.server.errors import ApiError
from onebit.server.generation import Piece, Run
from onebit.server.job import Job
from onebit.server.logprobs import chat_logprobs
from onebit.server.usage import progress_of, spent_so_far, timings_of, usage_of
from onebit.text import ToolDelta

GOES_ON = b',"finish_reason":null}]'
END = b"}\n\n"
FINGERPRINT = f"onebit-{__version__}"


class ChatAnswer:
    """One answer, put together from its pieces."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.logprobs: list[TokenLogprob] = []
        self.reason = "stop"

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """The text of its think block."""
        return "".join(self._reasoning)

    def add(self, piece: Piece) -> None:
        """Take a piece."""
        self._text.append(piece.delta.text)
        self._reasoning.append(piece.delta.reasoning)
        self.logprobs += piece.logprobs
        for call in piece.delta.tools:
            self._add_call(call)
        if piece.finish is not None:
            self.reason = piece.finish.reason

    def _add_call(self, call: ToolDelta) -> None:
        if call.index == len(self.calls):
            self.calls.append(
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": ""},
                }
            )
        self.calls[call.index]["function"]["arguments"] += call.arguments


class ChatCollector:
    """Builds a `chat.completion`."""

    def __init__(self, job: Job, *, logprobs: bool) -> None:
        self._job = job
        self._logprobs = logprobs
        self._created = int(time.time())
        self.answers = [ChatAnswer() for _ in range(job.choices)]

    def add(self, pieces: Sequence[Piece]) -> None:
        """Take pieces of answers."""
        for piece in pieces:
            self.answers[piece.choice].add(piece)

    def result(self, run: Run) -> dict[str, Any]:
        """Return the reply."""
        return {
            "id": self._job.id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._job.served.model_id,
            "system_fingerprint": FINGERPRINT,
            "choices": [self._choice(i, answer) for i, answer in enumerate(self.answers)],
            "usage": usage_of(self._job, run.finishes),
            "timings": timings_of(self._job, run.finishes),
        }

    def _choice(self, index: int, answer: ChatAnswer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = answer.calls
        made = {"index": index, "message": message, "finish_reason": answer.reason}
        if self._logprobs:
            made["logprobs"] = chat_logprobs(self._job.served.text, answer.logprobs)
        return made


class ChatStream:
    """Builds `chat.completion.chunk` events. The text of a chunk is put into a ready frame."""

    def __init__(self, job: Job, *, logprobs: bool, include_usage: bool) -> None:
        self._job = job
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._fields = {
            "id": job.id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": job.served.model_id,
            "system_fingerprint": FINGERPRINT,
        }
        head = b"data: " + encode_json(self._fields)[:-1] + b',"choices":[{"index":'
        self._heads = [head + b"%d" % i + b',"delta":' for i in range(job.choices)]
        self._begun = [False] * job.choices
        self._open = job.choices

    def events(self, pieces: Sequence[Piece], run: Run) -> list[bytes]:
        """Return the events for pieces of answers."""
        made: list[bytes] = []
        for piece in pieces:
            self._piece(piece, made, run)
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

    def _piece(self, piece: Piece, made: list[bytes], run: Run) -> None:
        head, delta, logprobs = self._heads[piece.choice], piece.delta, piece.logprobs
        if piece.progress is not None:
            total = len(self._job.requests[0].prompt)
            news = b',"prompt_progress":' + encode_json(progress_of(piece.progress, total))
            made.append(head + self._opening(piece.choice) + GOES_ON + news + END)
        elif not self._begun[piece.choice] and (delta or logprobs or piece.finish):
            made.append(head + self._opening(piece.choice) + GOES_ON + END)
        tail = GOES_ON + spent_so_far(piece.timings) + END
        if delta.reasoning:
            text = b'{"reasoning_content":' + encode_json(delta.reasoning) + b"}"
            made.append(head + text + tail)
        if delta.text:
            text = b'{"content":' + encode_json(delta.text) + b"}"
            made.append(head + text + self._probs(logprobs) + tail)
            logprobs = []
        made += [head + encode_json({"tool_calls": [_call(c)]}) + tail for c in delta.tools]
        if piece.finish is not None:
            self._open -= 1
            reason = b',"finish_reason":"%s"}]' % piece.finish.reason.encode()
            spent = self._final_timings(run)
            made.append(head + b"{}" + self._probs(logprobs) + reason + spent + END)
        elif logprobs and not delta.text:
            made.append(head + b"{}" + self._probs(logprobs) + tail)

    def _opening(self, choice: int) -> bytes:
        """Return the first delta of an answer; after it an empty one."""
        if self._begun[choice]:
            return b"{}"
        self._begun[choice] = True
        return b'{"role":"assistant","content":null}'

    def _final_timings(self, run: Run) -> bytes:
        """Return the timings for the chunk that ends an answer, if that is their place."""
        every = self._job.requests[0].token_timings
        if not every and (self._open or self._include_usage):
            return b""
        return b',"timings":' + encode_json(timings_of(self._job, run.finishes))

    def _probs(self, entries: list[TokenLogprob]) -> bytes:
        if not self._logprobs or not entries:
            return b""
        return b',"logprobs":' + encode_json(chat_logprobs(self._job.served.text, entries))


def _call(call: ToolDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": call.arguments}
    if call.id is None:
        return {"index": call.index, "function": function}
    function["name"] = call.name
    return {"index": call.index, "id": call.id, "type": "function", "function": function}
