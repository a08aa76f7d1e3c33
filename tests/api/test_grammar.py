"""Constrained output, where llguidance is installed, and its refusal where it is not."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from onebit.devices.null import NullScript, emit
from tests.api.conftest import Running, Serve, ids
from tests.fixtures.tiny_text import END, TEMPLATE

USER = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get", "parameters": SCHEMA}}
needs_llguidance = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="llguidance is not installed"
)


def ask(s: Running, **more: Any) -> Any:
    body = {"messages": USER, "max_tokens": 400, "seed": 3, **more}
    reply = s.post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


def fmt(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


@needs_llguidance
class TestWithLibrary:
    @pytest.mark.parametrize("temperature", [0, 1])
    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_a_schema_holds(self, serve: Serve, temperature: float, seed: int) -> None:
        made = ask(serve(), response_format=fmt(SCHEMA), temperature=temperature, seed=seed)
        if made["finish_reason"] == "length":  # a random number may be endless
            return
        value = json.loads(made["message"]["content"])
        assert set(value) == {"a", "b"}
        assert isinstance(value["a"], int)
        assert value["b"] in ("x", "yy")

    def test_it_ends_when_the_value_does(self, serve: Serve) -> None:
        script = NullScript(next_token=emit(ids('{"a": 1, "b": "x"} and more'), END))
        made = ask(serve(script), response_format=fmt(SCHEMA), temperature=0)
        assert json.loads(made["message"]["content"]) == {"a": 1, "b": "x"}
        assert made["finish_reason"] == "stop"

    def test_any_object(self, serve: Serve) -> None:
        script = NullScript(next_token=emit(ids('Sure: {"k": [1, 2]}'), END))
        made = ask(serve(script), response_format={"type": "json_object"}, temperature=0)
        assert made["message"]["content"].startswith("{")

    def test_other_forms(self, serve: Serve) -> None:
        s = serve()
        body = {"prompt": "x", "max_tokens": 400, "temperature": 0}
        for more in (
            {"grammar": 'root ::= "yes" | "no"'},
            {"grammar": 'start: "yes" | "no"'},
            {"json_schema": {"enum": ["yes", "no"]}},
        ):
            text = s.post("/completion", body | more).json()["content"]
            assert text.strip('"') in ("yes", "no")

    @pytest.mark.parametrize(
        ("more", "param"),
        [
            ({"response_format": fmt({"type": "nonsense"})}, "response_format"),
            ({"grammar": "root ::= ("}, "grammar"),
            ({"grammar": 'root ::= "a"', "json_schema": {"type": "object"}}, "json_schema"),
            ({"response_format": fmt(SCHEMA), "json_schema": {}}, "response_format"),
        ],
    )
    def test_bad_ones(self, serve: Serve, more: dict[str, Any], param: str) -> None:
        reply = serve().post("/v1/chat/completions", {"messages": USER, **more})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)

    @pytest.mark.parametrize("form", ["hermes", "llama3_json"])
    @pytest.mark.parametrize(
        "choice", ["required", {"type": "function", "function": {"name": "get"}}]
    )
    def test_a_forced_call(self, serve: Serve, form: str, choice: Any) -> None:
        made = ask(serve(tool_format=form), tools=[TOOL], tool_choice=choice, temperature=0, seed=2)
        if made["finish_reason"] == "length":
            return
        (call,) = made["message"]["tool_calls"]
        assert call["function"]["name"] == "get"
        assert set(json.loads(call["function"]["arguments"])) == {"a", "b"}
        assert made["finish_reason"] == "tool_calls"
        assert made["message"]["content"] == ""

    def test_thinking_is_free(self, serve: Serve) -> None:
        said = '<think>\nlet me see\n</think>{"a": 1, "b": "x"}'
        script = NullScript(next_token=emit(ids(said), END))
        made = ask(serve(script, thinks=True), response_format=fmt(SCHEMA), temperature=0)
        assert made["message"]["reasoning_content"] == "let me see"
        assert json.loads(made["message"]["content"]) == {"a": 1, "b": "x"}

    def test_a_closed_think_block_is_held_at_once(self, serve: Serve) -> None:
        template = TEMPLATE + "<think>\n\n</think>\n\n"
        made = ask(
            serve(thinks=True, template=template),
            response_format={"type": "json_schema", "json_schema": {"schema": {"enum": ["a"]}}},
            temperature=0,
        )
        assert made["message"]["content"] == '"a"'

    def test_batches_do_not_mix(self, serve: Serve) -> None:
        body = {"prompt": ["x", "y"], "n": 2, "json_schema": {"enum": ["yes", "no"]}, "seed": 1}
        made = serve().post("/v1/completions", body).json()
        assert all(c["text"] in ('"yes"', '"no"') for c in made["choices"])


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": fmt(SCHEMA)}, "response_format"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"json_schema": SCHEMA}, "json_schema"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_without_the_library_it_is_refused_by_name(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], param: str
) -> None:
    """Case A04: never a silent 200."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llguidance" else find(name)
    )
    s = serve(tool_format="hermes")
    reply = s.post("/v1/chat/completions", {"messages": USER, **more})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (param, "unsupported_parameter")
    assert "llguidance" in error["message"]
