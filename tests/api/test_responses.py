"""POST /v1/responses with the real client."""

from __future__ import annotations

from typing import Any

import pytest

from onebit.devices.null import NullScript, emit
from tests.api.conftest import Serve, ids
from tests.fixtures.tiny_text import END

HELLO = NullScript(next_token=emit(ids("Hello there."), END))
CALL = '<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>'
TOOL = {"type": "function", "name": "get", "parameters": {"type": "object"}}
ITEMS = [
    {"role": "user", "content": "one"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "two", "annotations": []}],
    },
    {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
]


def test_text(serve: Serve) -> None:
    client = serve(HELLO).client()
    made = client.responses.create(
        model="T0",
        input=ITEMS,  # type: ignore[arg-type]
        instructions="Be short.",
        temperature=0,
        max_output_tokens=20,
        store=False,
    )
    assert made.id.startswith("resp_")
    assert made.status == "completed"
    assert made.output_text == "Hello there."
    assert made.output[0].content[0].text == "Hello there."  # type: ignore[union-attr]
    assert made.usage is not None
    assert made.usage.output_tokens == 13
    assert made.usage.total_tokens == made.usage.input_tokens + 13
    assert made.usage.input_tokens_details.cached_tokens >= 0


def test_it_is_the_same_chat(serve: Serve) -> None:
    s = serve(HELLO)
    chat = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    count = s.post("/v1/chat/completions/input_tokens", {"messages": chat}).json()["input_tokens"]
    made = s.post("/v1/responses", {"input": ITEMS, "instructions": "Be short."}).json()
    assert made["usage"]["input_tokens"] == count
    assert "error" not in made


def test_stream(serve: Serve) -> None:
    client = serve(HELLO).client()
    events: list[Any] = list(
        client.responses.create(model="T0", input="hi", temperature=0, stream=True)
    )
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert deltas == events[-1].response.output_text == "Hello there."
    assert events[-1].response.usage.output_tokens == 13
    assert [e.sequence_number for e in events] == list(range(len(events)))
    ids_ = {e.item_id for e in events if hasattr(e, "item_id")}
    assert ids_ == {events[-1].response.output[0].id}


def test_the_wire_has_no_end_mark(serve: Serve) -> None:
    reply = serve(HELLO).post("/v1/responses", {"input": "x", "stream": True, "temperature": 0})
    blocks = reply.text.split("\n\n")[:-1]
    assert all(block.startswith("event: response.") for block in blocks)
    assert "[DONE]" not in reply.text


def test_cut_by_the_limit(serve: Serve) -> None:
    body = {"input": "x", "max_output_tokens": 3, "temperature": 0}
    made = serve(HELLO).post("/v1/responses", body).json()
    assert made["status"] == "incomplete"
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}


class TestTools:
    script = NullScript(next_token=emit(ids(CALL), END))

    def test_call(self, serve: Serve) -> None:
        client = serve(self.script, tool_format="hermes").client()
        made = client.responses.create(
            model="T0",
            input="x",
            tools=[TOOL],  # type: ignore[list-item]
            temperature=0,
        )
        (item,) = made.output
        assert item.type == "function_call"
        assert (item.name, item.arguments) == ("get", '{"a": 1}')
        assert item.call_id

    def test_streamed(self, serve: Serve) -> None:
        client = serve(self.script, tool_format="hermes").client()
        events: list[Any] = list(
            client.responses.create(
                model="T0",
                input="x",
                tools=[TOOL],  # type: ignore[list-item]
                temperature=0,
                stream=True,
            )
        )
        kinds = [e.type for e in events]
        assert "response.function_call_arguments.delta" in kinds
        assert "response.output_text.delta" not in kinds
        assert events[-1].response.output[0].arguments == '{"a": 1}'

    def test_results_come_back(self, serve: Serve) -> None:
        s = serve(self.script, tool_format="hermes")
        turns = [
            {"role": "user", "content": "x"},
            {"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ]
        assert s.post("/v1/responses", {"input": turns, "tools": [TOOL]}).status_code == 200


def test_reasoning_is_an_item(serve: Serve) -> None:
    script = NullScript(next_token=emit(ids("<think>\nhm\n</think>\n\nFour."), END))
    made = serve(script, thinks=True).post("/v1/responses", {"input": "x", "temperature": 0})
    output = made.json()["output"]
    assert output[0]["content"][0]["text"] == "Four."
    assert output[1]["type"] == "reasoning"
    assert output[1]["content"][0]["text"] == "hm"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "image"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": "x"}}, "text.format"),
        ({"reasoning": {"effort": "high"}}, "reasoning_effort"),
        ({"temperature": "x"}, "temperature"),
    ],
)
def test_refused(serve: Serve, more: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        reply = serve(HELLO).post("/v1/responses", {"input": "x", "stream": stream, **more})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
