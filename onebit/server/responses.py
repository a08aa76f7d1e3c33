"""Replies of `POST /v1/responses`: the answer as items and events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from onebit.server.chat import ChatAnswer
from onebit.server.encode import named_event
from onebit.server.errors import ApiError
from onebit.server.generation import Piece, Run
from onebit.server.job import Job
from onebit.server.usage import timings_of, usage_of


class _Builder:
    """The response object and its items."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.answer = ChatAnswer()
        self.tail = job.id.rpartition("-")[2]
        self._created = int(time.time())

    def response(self, status: str, output: list[Any], run: Run | None = None) -> dict[str, Any]:
        """Return the response object; with `run`, its usage."""
        made: dict[str, Any] = {
            "id": f"resp_{self.tail}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self.job.served.model_id,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        if run is not None:
            usage = usage_of(self.job, run.finishes)
            made["usage"] = {
                "input_tokens": usage["prompt_tokens"],
                "output_tokens": usage["completion_tokens"],
                "total_tokens": usage["total_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens_details": {"reasoning_tokens": 0},
            }
            made["timings"] = timings_of(self.job, run.finishes)
            if self.answer.reason == "length":
                made["incomplete_details"] = {"reason": "max_output_tokens"}
        return made

    def status(self) -> str:
        """Return how the response ended."""
        return "incomplete" if self.answer.reason == "length" else "completed"

    def message(self, text: str, status: str = "completed") -> dict[str, Any]:
        """Return the message item."""
        parts = [self.part(text)] if status == "completed" else []
        return {
            "id": f"msg_{self.tail}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": parts,
        }

    def part(self, text: str) -> dict[str, Any]:
        """Return the message's one part."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def reasoning(self) -> dict[str, Any]:
        """Return the reasoning item."""
        return {
            "id": f"rs_{self.tail}",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": self.answer.reasoning}],
            "status": "completed",
        }

    def call(self, index: int, status: str = "completed") -> dict[str, Any]:
        """Return the item of one tool call."""
        call = self.answer.calls[index]
        return {
            "id": f"fc_{self.tail}{index}",
            "type": "function_call",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"] if status == "completed" else "",
            "status": status,
        }

    def output(self) -> list[dict[str, Any]]:
        """Return all items of the finished answer: what it says before what it thought."""
        made: list[dict[str, Any]] = []
        if self.answer.text or not self.answer.calls:
            made.append(self.message(self.answer.text))
        made += [self.call(i) for i in range(len(self.answer.calls))]
        if self.answer.reasoning:
            made.append(self.reasoning())
        return made


class ResponsesCollector:
    """Builds a `response`."""

    def __init__(self, job: Job) -> None:
        self._builder = _Builder(job)

    def add(self, pieces: Sequence[Piece]) -> None:
        """Take pieces of the answer."""
        for piece in pieces:
            self._builder.answer.add(piece)

    def result(self, run: Run) -> dict[str, Any]:
        """Return the reply."""
        return self._builder.response(self._builder.status(), self._builder.output(), run)


class ResponsesStream:
    """Builds the events of a response, from `response.created` to `response.completed`."""

    def __init__(self, job: Job) -> None:
        self._builder = _Builder(job)
        self._number = 0
        self._begun = False
        self._message = -1
        """Output index of the message item; -1 before it exists."""
        self._items = 0

    def events(self, pieces: Sequence[Piece], _run: Run) -> list[bytes]:
        """Return the events for pieces of the answer."""
        made: list[bytes] = []
        self._begin(made)
        for piece in pieces:
            self._builder.answer.add(piece)
            if piece.delta.text:
                self._text(piece.delta.text, made)
        return made

    def end(self, run: Run) -> list[bytes]:
        """Return the closing events; this API has no end mark."""
        made: list[bytes] = []
        builder = self._builder
        if self._message < 0 and not builder.answer.calls:
            self._open_message(made)
        if self._message >= 0:
            self._close_message(made)
        for i in range(len(builder.answer.calls)):
            self._call(i, made)
        if builder.answer.reasoning:
            self._item(builder.reasoning(), made)
        status = builder.status()
        response = builder.response(status, builder.output(), run)
        made.append(self._event(f"response.{status}", response=response))
        return [b"".join(made)]

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends the stream by an error."""
        body = error.body()["error"]
        return self._event("error", code=body["code"], message=body["message"], param=body["param"])

    def _begin(self, made: list[bytes]) -> None:
        if self._begun:
            return
        self._begun = True
        response = self._builder.response("in_progress", [])
        made.append(self._event("response.created", response=response))
        made.append(self._event("response.in_progress", response=response))

    def _text(self, text: str, made: list[bytes]) -> None:
        if self._message < 0:
            self._open_message(made)
        made.append(self._part_event("response.output_text.delta", delta=text, logprobs=[]))

    def _open_message(self, made: list[bytes]) -> None:
        self._message, self._items = self._items, self._items + 1
        item = self._builder.message("", "in_progress")
        made.append(
            self._event("response.output_item.added", output_index=self._message, item=item)
        )
        made.append(self._part_event("response.content_part.added", part=self._builder.part("")))

    def _close_message(self, made: list[bytes]) -> None:
        text = self._builder.answer.text
        made.append(self._part_event("response.output_text.done", text=text, logprobs=[]))
        made.append(self._part_event("response.content_part.done", part=self._builder.part(text)))
        item = self._builder.message(text)
        made.append(self._event("response.output_item.done", output_index=self._message, item=item))

    def _call(self, index: int, made: list[bytes]) -> None:
        at, item = self._items, self._builder.call(index)
        opened = self._builder.call(index, "in_progress")
        made.append(self._event("response.output_item.added", output_index=at, item=opened))
        place = {"output_index": at, "item_id": item["id"]}
        made.append(
            self._event("response.function_call_arguments.delta", delta=item["arguments"], **place)
        )
        made.append(
            self._event(
                "response.function_call_arguments.done",
                arguments=item["arguments"],
                name=item["name"],
                **place,
            )
        )
        made.append(self._event("response.output_item.done", output_index=at, item=item))
        self._items += 1

    def _item(self, item: dict[str, Any], made: list[bytes]) -> None:
        for kind in ("response.output_item.added", "response.output_item.done"):
            made.append(self._event(kind, output_index=self._items, item=item))
        self._items += 1

    def _part_event(self, kind: str, **members: Any) -> bytes:
        item_id = f"msg_{self._builder.tail}"
        return self._event(
            kind, item_id=item_id, output_index=self._message, content_index=0, **members
        )

    def _event(self, kind: str, **members: Any) -> bytes:
        made = named_event({"type": kind, "sequence_number": self._number, **members})
        self._number += 1
        return made
