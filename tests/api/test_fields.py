"""The policy on fields: honoured, accepted, refused by name, reported."""

from __future__ import annotations

from typing import Any

import pytest

from onebit.devices.null import NullScript, emit
from onebit.server.fields import NEUTRAL, NO_EFFECT
from tests.api.conftest import Running, Serve, ids
from tests.fixtures.tiny_text import END

HELLO = NullScript(next_token=emit(ids("Hello there."), END))
USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 3},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 3},
    "/v1/responses": {"input": "x", "max_output_tokens": 3},
    "/completion": {"prompt": "x", "n_predict": 3},
}


def alive(s: Running) -> None:
    body = {"prompt": "alive", "temperature": 0, "max_tokens": 5}
    texts = {s.post("/v1/completions", body).json()["choices"][0]["text"] for _ in range(2)}
    assert texts == {"Hello"}


class TestModel:
    """Case A01."""

    @pytest.mark.parametrize("name", ["nope:99b", "", "T0 ", "../T0", "t0"])
    @pytest.mark.parametrize("path", BODIES)
    def test_another_model(self, serve: Serve, path: str, name: str) -> None:
        reply = serve(HELLO).post(path, BODIES[path] | {"model": name})
        assert reply.status_code == 404
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "T0" in error["message"]

    @pytest.mark.parametrize("name", ["T0", "alias", None])
    @pytest.mark.parametrize("path", BODIES)
    def test_what_ran_is_named(self, serve: Serve, path: str, name: str | None) -> None:
        reply = serve(HELLO).post(path, BODIES[path] | {"model": name})
        assert reply.status_code == 200
        assert reply.json()["model"] == "T0"

    def test_mismatch_can_be_accepted(self, serve: Serve) -> None:
        s = serve(HELLO, api={"model_mismatch": "accept"})
        body = BODIES["/v1/completions"] | {"model": "gpt-4"}
        assert s.post("/v1/completions", body).json()["model"] == "T0"

    def test_the_list(self, serve: Serve) -> None:
        s = serve(HELLO)
        made = s.http.get("/v1/models").json()
        (entry,) = made["data"]
        assert (entry["id"], entry["object"], entry["owned_by"]) == ("T0", "model", "onebit")
        assert isinstance(entry["created"], int)
        assert entry["aliases"] == ["alias"]
        assert entry["meta"]["n_ctx"] == 4096
        assert s.http.get("/v1/models/alias").json()["id"] == "T0"
        assert s.http.get("/v1/models/a/b").status_code == 404
        assert s.client().models.list().data[0].id == "T0"


@pytest.mark.parametrize("name", sorted(NO_EFFECT))
@pytest.mark.parametrize("path", BODIES)
def test_what_changes_nothing_is_accepted(serve: Serve, path: str, name: str) -> None:
    reply = serve(HELLO).post(path, BODIES[path] | {name: "x"})
    assert reply.status_code == 200
    assert "x-onebit-ignored" not in reply.headers


@pytest.mark.parametrize("name", sorted(NEUTRAL))
@pytest.mark.parametrize("path", BODIES)
def test_what_would_change_the_answer_is_refused(serve: Serve, path: str, name: str) -> None:
    s = serve(HELLO)
    if (name, path) in (("n_predict", "/completion"), ("best_of", "/v1/completions")):
        return
    reply = s.post(path, BODIES[path] | {name: {"some": "thing"}})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    for neutral in NEUTRAL[name]:
        assert s.post(path, BODIES[path] | {name: neutral}).status_code == 200


class TestUnknown:
    @pytest.mark.parametrize("path", BODIES)
    def test_named_in_a_header(self, serve: Serve, path: str) -> None:
        reply = serve(HELLO).post(path, BODIES[path] | {"foo": 1, "bär\r\n": 2})
        assert reply.status_code == 200
        assert reply.headers["x-onebit-ignored"] == "foo, ?"

    def test_streams_too(self, serve: Serve) -> None:
        body = BODIES["/v1/chat/completions"] | {"foo": 1, "stream": True}
        reply = serve(HELLO).post("/v1/chat/completions", body)
        assert reply.headers["x-onebit-ignored"] == "foo"

    @pytest.mark.parametrize("path", BODIES)
    def test_refused_when_strict(self, serve: Serve, path: str) -> None:
        s = serve(HELLO, api={"strict_requests": True})
        reply = s.post(path, BODIES[path] | {"foo": 1})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert (error["param"], error["code"]) == ("foo", "unknown_parameter")
        assert s.post(path, BODIES[path]).status_code == 200

    def test_inside_messages(self, serve: Serve) -> None:
        turn = [{"role": "user", "content": "x", "mood": "good"}]
        body = {"messages": turn, "max_tokens": 2}
        reply = serve(HELLO).post("/v1/chat/completions", body)
        assert reply.headers["x-onebit-ignored"] == "messages[0].mood"


class TestAccepted:
    """Case A04: each takes effect or is refused."""

    @pytest.mark.parametrize("more", [{"response_format": {"type": "text"}}, {"n": 1}])
    def test_neutral(self, serve: Serve, more: dict[str, Any]) -> None:
        reply = serve(HELLO).post("/v1/chat/completions", {"messages": USER, **more})
        assert reply.status_code == 200

    def test_two_answers(self, serve: Serve) -> None:
        made = serve(HELLO).post("/v1/chat/completions", {"messages": USER, "n": 2}).json()
        assert [c["index"] for c in made["choices"]] == [0, 1]

    @pytest.mark.parametrize(
        ("more", "param"),
        [
            ({"n": 0}, "n"),
            ({"n": 99}, "n"),
            ({"n": 2**63}, "n"),
            ({"best_of": 2}, "best_of"),
            ({"response_format": {"type": "yaml"}}, "response_format.type"),
            ({"response_format": "json"}, "response_format"),
            (
                {"response_format": {"type": "json_schema"}},
                "response_format.json_schema.schema",
            ),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"reasoning_effort": "high"}, "reasoning_effort"),
        ],
    )
    def test_refused(self, serve: Serve, more: dict[str, Any], param: str) -> None:
        reply = serve(HELLO).post("/v1/chat/completions", {"messages": USER, **more})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


class TestRanges:
    """Case A06."""

    @pytest.mark.parametrize(
        ("more", "param", "quoted"),
        [
            ({"prompt": [-1]}, "prompt", "-1"),
            ({"prompt": [512]}, "prompt", "512"),
            ({"prompt": [4294967296]}, "prompt", "4294967296"),
            ({"prompt": [1.5]}, "prompt", "1.5"),
            ({"prompt": [True]}, "prompt", "True"),
            ({"prompt": []}, "prompt", "empty"),
            ({"prompt": {}}, "prompt", "object"),
            ({"prompt": ["x"] * 2049}, "prompt", "2049"),
            ({"prompt": None}, "prompt", "required"),
            ({"logit_bias": {"9999": 5}}, "logit_bias", "9999"),
            ({"logit_bias": {"-1": 5}}, "logit_bias", "-1"),
            ({"logit_bias": {"a": 1}}, "logit_bias", '"a"'),
            ({"logit_bias": {"1": 101}}, "logit_bias", "101"),
            ({"logit_bias": {"1": "x"}}, "logit_bias", "'x'"),
            ({"logit_bias": 7}, "logit_bias", "7"),
            ({"stop_token_ids": [151645]}, "stop_token_ids", "151645"),
            ({"temperature": -1}, "temperature", "-1"),
            ({"temperature": "0"}, "temperature", "'0'"),
            ({"temperature": True}, "temperature", "true"),
            ({"top_p": -1}, "top_p", "-1"),
            ({"top_p": 1.1}, "top_p", "1.1"),
            ({"top_k": 1.5}, "top_k", "1.5"),
            ({"min_p": 2}, "min_p", "2"),
            ({"seed": 0.5}, "seed", "0.5"),
            ({"seed": 2**70}, "seed", str(2**70)),
            ({"presence_penalty": 3}, "presence_penalty", "3"),
            ({"repetition_penalty": 0}, "repetition_penalty", "0"),
            ({"stop": [""]}, "stop", "empty"),
            ({"stop": 5}, "stop", "5"),
            ({"stop": [5]}, "stop", "texts"),
            ({"stream": "yes"}, "stream", "'yes'"),
            ({"model": 5}, "model", "5"),
            ({"n": "2"}, "n", "'2'"),
        ],
    )
    def test_refused_by_name(
        self, serve: Serve, more: dict[str, Any], param: str, quoted: str
    ) -> None:
        s = serve(HELLO)
        reply = s.post("/v1/completions", {"prompt": "x", "max_tokens": 3, **more})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert quoted in error["message"]
        alive(s)

    def test_infinity(self, serve: Serve) -> None:
        s = serve(HELLO)
        for text in ("1e999", "-1e999", "NaN", "Infinity"):
            raw = f'{{"prompt": "x", "temperature": {text}}}'
            reply = s.http.post("/v1/completions", content=raw)
            assert reply.status_code == 400
        alive(s)

    def test_an_empty_prompt(self, serve: Serve) -> None:
        """With a BOS there is something to continue; without one there is not."""
        s = serve(HELLO)
        assert s.post("/v1/completions", {"prompt": "", "max_tokens": 2}).status_code == 200
        bare = serve(HELLO, add_bos=False)
        reply = bare.post("/v1/completions", {"prompt": "", "max_tokens": 2})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")


def test_repetition_under_two_names(serve: Serve) -> None:
    s = serve(HELLO)
    body = {"prompt": "x", "max_tokens": 2}
    for more in ({"repeat_penalty": 1.1}, {"repeat_penalty": 1.1, "repetition_penalty": 1.1}):
        assert s.post("/v1/completions", body | more).status_code == 200
    reply = s.post("/v1/completions", body | {"repeat_penalty": 1.1, "repetition_penalty": 1.2})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "repeat_penalty")
