"""POST /v1/chat/completions with the real client."""

from __future__ import annotations

import json

import httpx
import pytest

from onebit.devices.null import NullScript, emit
from tests.api.conftest import Running, Serve, ids
from tests.fixtures.tiny_text import END, TEMPLATE

HELLO = NullScript(next_token=emit(ids("Hello there."), END))
USER = [{"role": "user", "content": "hi"}]


def chat(s: Running, messages: object = USER, **more: object) -> httpx.Response:
    body = {"messages": messages, "temperature": 0, "max_tokens": 40, **more}
    return s.post("/v1/chat/completions", body)


def prompt_of(s: Running, messages: object, **more: object) -> str:
    return str(s.post("/apply-template", {"messages": messages, **more}).json()["prompt"])


def test_shape(serve: Serve) -> None:
    made = chat(serve(HELLO)).json()
    assert made["object"] == "chat.completion"
    assert made["id"].startswith("chatcmpl-")
    assert made["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there."},
            "finish_reason": "stop",
        }
    ]
    assert "error" not in made
    assert "timings" in made


def test_prompt_tokens_are_the_templates(serve: Serve) -> None:
    """Case T05: what the template renders is what is counted, with one BOS."""
    s = serve(HELLO)
    prompt = prompt_of(s, USER)
    assert prompt == "<s><|start|>user\nhi<|end|><|start|>assistant\n"
    tokens = s.post("/tokenize", {"content": prompt}).json()["tokens"]
    assert chat(s).json()["usage"]["prompt_tokens"] == len(tokens)
    counted = s.post("/v1/chat/completions/input_tokens", {"messages": USER}).json()
    assert counted["input_tokens"] == len(tokens)


class TestContent:
    """Case A02."""

    def test_parts_are_joined_by_a_line_break(self, serve: Serve) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        s = serve(HELLO)
        for role in ("system", "user"):
            chat_ = [{"role": role, "content": parts}, *USER]
            assert chat(s, chat_).status_code == 200
            assert prompt_of(s, chat_) == prompt_of(s, [{"role": role, "content": "a\nb"}, *USER])

    def test_null_is_absent(self, serve: Serve) -> None:
        reply = chat(
            serve(HELLO), temperature=None, max_tokens=None, stop=None, seed=None, tools=None
        )
        assert reply.status_code == 200

    def test_null_content_beside_tool_calls(self, serve: Serve) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        turns = [
            *USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
        ]
        assert chat(serve(HELLO), turns).status_code == 200

    @pytest.mark.parametrize(
        ("messages", "param"),
        [
            (
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                "messages[0].content[0].type",
            ),
            (None, "messages"),
            ("text", "messages"),
            ([], "messages"),
            ([123], "messages[0]"),
            ([{}], "messages[0].role"),
            ([{"role": 1, "content": "x"}], "messages[0].role"),
            ([{"role": "user", "content": 1}], "messages[0].content"),
            ([{"role": "user", "content": None}], "messages[0]"),
            ([{"role": "robot", "content": "x"}], "messages[0].role"),
            (
                [
                    *USER,
                    {"role": "assistant", "content": "a"},
                    {"role": "assistant", "content": "b"},
                ],
                "messages",
            ),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_bad_messages(self, serve: Serve, messages: object, param: str, stream: bool) -> None:
        reply = chat(serve(HELLO), messages, stream=stream)
        assert reply.status_code == 400
        assert reply.headers["content-type"] == "application/json"
        assert reply.json()["error"]["param"] == param

    def test_developer_is_system(self, serve: Serve) -> None:
        s = serve(HELLO)
        asked = [{"role": "developer", "content": "x"}, *USER]
        assert prompt_of(s, asked) == prompt_of(s, [{"role": "system", "content": "x"}, *USER])


class TestContinuation:
    turns = (*USER, {"role": "assistant", "content": "Well, "})

    def test_a_trailing_assistant_message_is_continued(self, serve: Serve) -> None:
        s = serve(HELLO)
        expected = "<s><|start|>user\nhi<|end|><|start|>assistant\nWell, "
        assert prompt_of(s, self.turns) == expected
        explicit = {"continue_final_message": True, "add_generation_prompt": False}
        assert prompt_of(s, self.turns, **explicit) == expected
        assert chat(s, self.turns).json()["choices"][0]["message"]["content"] == "Hello there."

    def test_a_new_turn_on_demand(self, serve: Serve) -> None:
        prompt = prompt_of(serve(HELLO), self.turns, add_generation_prompt=True)
        assert prompt.endswith("Well, <|end|><|start|>assistant\n")

    def test_both_are_refused(self, serve: Serve) -> None:
        both = {"continue_final_message": True, "add_generation_prompt": True}
        reply = chat(serve(HELLO), self.turns, **both)
        assert (reply.status_code, reply.json()["error"]["param"]) == (
            400,
            "continue_final_message",
        )


class TestLogprobs:
    def test_tokens_join_to_the_content(self, serve: Serve) -> None:
        s = serve(HELLO)
        made = chat(s, logprobs=True, top_logprobs=2).json()["choices"][0]
        content = made["logprobs"]["content"]
        assert "".join(c["token"] for c in content) == made["message"]["content"]
        assert all(len(c["top_logprobs"]) == 2 for c in content)
        assert all(c["logprob"] <= 0 for c in content)
        assert bytes(b for c in content for b in c["bytes"]).decode() == "Hello there."
        stream = s.client().chat.completions.create(
            model="T0",
            messages=USER,  # type: ignore[arg-type]
            temperature=0,
            logprobs=True,
            top_logprobs=2,
            stream=True,
        )
        streamed = [
            entry.model_dump()
            for chunk in stream
            for choice in chunk.choices
            if choice.logprobs is not None and choice.logprobs.content is not None
            for entry in choice.logprobs.content
        ]
        assert [e["token"] for e in streamed] == [e["token"] for e in content]
        assert [e["logprob"] for e in streamed] == [e["logprob"] for e in content]

    def test_tokens_of_a_stop_text_are_left_out(self, serve: Serve) -> None:
        made = chat(serve(HELLO), logprobs=True, stop="th").json()["choices"][0]
        assert made["message"]["content"] == "Hello "
        assert "".join(c["token"] for c in made["logprobs"]["content"]) == "Hello "

    def test_top_without_logprobs(self, serve: Serve) -> None:
        reply = chat(serve(HELLO), top_logprobs=2)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "top_logprobs")

    def test_half_characters_carry_their_bytes(self, serve: Serve) -> None:
        s = serve(NullScript(next_token=emit(list("a😀b".encode()), END)))
        made = chat(s, logprobs=True).json()["choices"][0]
        content = made["logprobs"]["content"]
        assert bytes(b for c in content for b in c["bytes"]).decode() == "a😀b"
        assert len(content) == 6


THINK = NullScript(next_token=emit([*ids("<think>\nhm\n</think>\n\nFour.")], END))


class TestReasoning:
    def test_split(self, serve: Serve) -> None:
        made = chat(serve(THINK, thinks=True)).json()["choices"][0]["message"]
        assert made == {"role": "assistant", "content": "Four.", "reasoning_content": "hm"}

    def test_streamed(self, serve: Serve) -> None:
        s = serve(THINK, thinks=True)
        stream = s.client().chat.completions.create(
            model="T0",
            messages=USER,
            temperature=0,
            stream=True,  # type: ignore[arg-type]
        )
        text = reasoning = ""
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
        assert (text, reasoning) == ("Four.", "hm")

    def test_not_split_on_demand_or_for_others(self, serve: Serve) -> None:
        whole = "<think>\nhm\n</think>\n\nFour."
        for s, more in (
            (serve(THINK, thinks=True), {"reasoning_format": "none"}),
            (serve(THINK), {}),
        ):
            message = chat(s, **more).json()["choices"][0]["message"]
            assert message == {"role": "assistant", "content": whole}

    def test_a_prompt_that_opens_the_block(self, serve: Serve) -> None:
        script = NullScript(next_token=emit(ids("so\n</think>\n\nFour."), END))
        template = TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
        made = chat(serve(script, thinks=True, template=template)).json()["choices"][0]["message"]
        assert made == {"role": "assistant", "content": "Four.", "reasoning_content": "so"}

    def test_the_templates_switch(self, serve: Serve) -> None:
        template = TEMPLATE + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
        s = serve(HELLO, thinks=True, template=template)
        closed = "<think>\n\n</think>\n\n"
        assert not prompt_of(s, USER).endswith(closed)
        for off in (
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
            {"reasoning_effort": "none"},
        ):
            assert prompt_of(s, USER, **off).endswith(closed)
            assert chat(s, **off).json()["choices"][0]["message"]["content"] == "Hello there."


TOOL = {
    "type": "function",
    "function": {"name": "get", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "get", "arguments": {"city": "Köln"}}\n</tool_call>'
CALLS = NullScript(next_token=emit([*ids(f"Look: {CALL}")], END))


class TestTools:
    def test_a_call(self, serve: Serve) -> None:
        s = serve(CALLS, tool_format="hermes")
        made = chat(s, tools=[TOOL], max_tokens=200).json()["choices"][0]
        assert made["finish_reason"] == "tool_calls"
        message = made["message"]
        assert message["content"] == "Look:"
        (call,) = message["tool_calls"]
        assert call["type"] == "function"
        assert call["id"].startswith("call_")
        assert call["function"]["name"] == "get"
        assert json.loads(call["function"]["arguments"]) == {"city": "Köln"}

    def test_streamed(self, serve: Serve) -> None:
        s = serve(CALLS, tool_format="hermes")
        stream = s.client().chat.completions.create(
            model="T0",
            messages=USER,
            tools=[TOOL],
            temperature=0,
            stream=True,  # type: ignore[call-overload]
        )
        chunks = list(stream)
        deltas = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
        assert deltas[0].id
        assert deltas[0].function.name == "get"
        assert all(d.id is None and d.function.name is None for d in deltas[1:])
        assert json.loads("".join(d.function.arguments for d in deltas)) == {"city": "Köln"}
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Look:"

    def test_the_template_gets_them(self, serve: Serve) -> None:
        s = serve(HELLO, tool_format="hermes")
        assert '"name": "get"' in prompt_of(s, USER, tools=[TOOL])
        made = chat(s, tools=[TOOL]).json()
        assert "tool_calls" not in made["choices"][0]["message"]

    def test_none_leaves_them_out(self, serve: Serve) -> None:
        s = serve(CALLS, tool_format="hermes")
        made = chat(s, tools=[TOOL], tool_choice="none", max_tokens=200).json()["choices"][0]
        assert "tool_calls" not in made["message"]
        assert made["message"]["content"].startswith("Look: <tool_call>")

    @pytest.mark.parametrize(
        ("more", "param"),
        [
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
            (
                {
                    "tools": [TOOL],
                    "tool_choice": {"type": "function", "function": {"name": "other"}},
                },
                "tool_choice",
            ),
            ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
            ({"tools": [{"type": "function"}]}, "tools[0].function"),
            ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ],
    )
    def test_refused(self, serve: Serve, more: dict[str, object], param: str) -> None:
        reply = chat(serve(CALLS, tool_format="hermes"), **more)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)

    def test_a_template_without_tools(self, serve: Serve) -> None:
        s = serve(HELLO, template="{{ messages[0].content }}", tool_format="hermes")
        reply = chat(s, tools=[TOOL])
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")


class TestTemplates:
    """Case X01."""

    def test_a_request_cannot_bring_one(self, serve: Serve) -> None:
        s = serve(HELLO)
        for more in (
            {"chat_template": "{{ 1 }}"},
            {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        ):
            reply = chat(s, **more)
            assert reply.status_code == 400
            assert reply.json()["error"]["param"] == "chat_template"

    def test_its_own_refusal(self, serve: Serve) -> None:
        template = "{{ raise_exception('System role not supported') }}"
        reply = chat(serve(HELLO, template=template))
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "messages")
        assert error["message"] == "System role not supported"

    def test_none(self, serve: Serve) -> None:
        s = serve(HELLO, template=None)
        assert chat(s).json()["error"]["code"] == "no_chat_template"
        assert s.post("/v1/completions", {"prompt": "x", "temperature": 0}).status_code == 200

    def test_an_unread_variable_is_named(self, serve: Serve) -> None:
        reply = chat(serve(HELLO), chat_template_kwargs={"mood": "good"})
        assert reply.status_code == 200
        assert reply.headers["x-onebit-ignored"] == "chat_template_kwargs.mood"
