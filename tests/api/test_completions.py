"""POST /v1/completions with the real client."""

from __future__ import annotations

import asyncio
import math

import openai
import pytest
from openai import AsyncOpenAI

from onebit.devices.null import NullScript, emit
from tests.api.conftest import Serve, ids
from tests.fixtures.tiny_text import BOS, EOS

PARIS = NullScript(next_token=emit(ids(" Paris, yes"), EOS))
ENDLESS = NullScript(next_token=emit(ids("abc ")))


def test_text_usage_and_end(serve: Serve) -> None:
    made = serve(PARIS).client().completions.create(model="T0", prompt="x", temperature=0)
    assert made.choices[0].text == " Paris, yes"
    assert made.choices[0].finish_reason == "stop"
    assert made.object == "text_completion"
    assert made.id.startswith("cmpl-")
    assert made.model == "T0"
    assert made.system_fingerprint
    assert made.usage is not None
    assert made.usage.prompt_tokens == 2  # BOS and one byte
    assert made.usage.completion_tokens == len(ids(" Paris, yes")) + 1
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens


def test_timings(serve: Serve) -> None:
    s = serve(ENDLESS)
    made = s.post("/v1/completions", {"prompt": "x" * 99, "max_tokens": 5}).json()
    timings = made["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == made["usage"]["prompt_tokens"] == 100
    assert timings["predicted_n"] == 5
    assert all(math.isfinite(value) and value >= 0 for value in timings.values())
    assert timings["prompt_ms"] > 0
    assert timings["predicted_ms"] > 0
    again = s.post("/v1/completions", {"prompt": "x" * 99, "max_tokens": 5}).json()
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == again["timings"]["cache_n"] > 0
    off = {"prompt": "x" * 99, "max_tokens": 5, "cache_prompt": False}
    assert s.post("/v1/completions", off).json()["timings"]["cache_n"] == 0


def test_prompt_forms_agree(serve: Serve) -> None:
    client = serve().client()

    def text(prompt: object) -> list[str]:
        made = client.completions.create(
            model="T0",
            prompt=prompt,  # type: ignore[arg-type]
            temperature=0,
            max_tokens=6,
        )
        assert [c.index for c in made.choices] == list(range(len(made.choices)))
        return [choice.text for choice in made.choices]

    one, two = text("one"), text("two")
    assert one != two
    assert text(["one", "two"]) == one + two
    assert text([BOS, *b"one"]) == one
    assert text([[BOS, *b"one"], [BOS, *b"two"]]) == one + two
    assert text(["one", [BOS, *b"two"]]) == one + two


def test_long_lists_of_prompts(serve: Serve) -> None:
    client = serve().client()
    prompts = [f"prompt {i}" for i in range(40)]
    made = client.completions.create(model="T0", prompt=prompts, temperature=0, max_tokens=3)
    alone = [
        client.completions.create(model="T0", prompt=p, temperature=0, max_tokens=3).choices[0].text
        for p in prompts[::13]
    ]
    assert [made.choices[i].text for i in range(0, 40, 13)] == alone


def test_n_answers(serve: Serve) -> None:
    client = serve().client()
    made = client.completions.create(
        model="T0", prompt=["a", "b"], n=3, temperature=1, seed=5, max_tokens=6
    )
    assert [c.index for c in made.choices] == [0, 1, 2, 3, 4, 5]
    assert len({c.text for c in made.choices}) > 3


def test_stop_texts(serve: Serve) -> None:
    client = serve(ENDLESS).client()
    for stop in ("c a", ["zz", "c a"]):
        made = client.completions.create(model="T0", prompt="x", stop=stop, temperature=0)
        assert made.choices[0].text == "ab"
        assert made.choices[0].finish_reason == "stop"
        assert made.usage is not None
        assert made.usage.completion_tokens == 5
        stream = client.completions.create(
            model="T0", prompt="x", stop=stop, temperature=0, stream=True
        )
        chunks = list(stream)
        assert "".join(c.choices[0].text for c in chunks) == "ab"
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_stop_token_ids(serve: Serve) -> None:
    body = {"prompt": "x", "temperature": 0, "stop_token_ids": [ord("c")]}
    made = serve(ENDLESS).post("/v1/completions", body).json()
    assert made["choices"][0] == {
        "text": "ab",
        "index": 0,
        "logprobs": None,
        "finish_reason": "stop",
    }


def test_streamed_text_is_the_same(serve: Serve) -> None:
    client = serve().client()
    whole = client.completions.create(model="T0", prompt="x", temperature=0, max_tokens=64)
    stream = client.completions.create(
        model="T0", prompt="x", temperature=0, max_tokens=64, stream=True
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert {(c.id, c.created, c.model) for c in chunks} == {(chunks[0].id, chunks[0].created, "T0")}
    reasons = [c.choices[0].finish_reason for c in chunks]
    assert reasons[-1] == "length"
    assert set(reasons[:-1]) == {None}


def test_async_client(serve: Serve) -> None:
    s = serve(PARIS)

    async def work() -> tuple[str, str]:
        async with AsyncOpenAI(base_url=f"{s.url}/v1", api_key="k", max_retries=0) as client:
            whole = await client.completions.create(model="T0", prompt="x", temperature=0)
            stream = await client.completions.create(
                model="T0", prompt="x", temperature=0, stream=True
            )
            return whole.choices[0].text, "".join([c.choices[0].text async for c in stream])

    assert asyncio.run(work()) == (" Paris, yes", " Paris, yes")


class TestLimits:
    """Case A07."""

    @pytest.mark.parametrize(
        ("limits", "count"),
        [
            ({"max_tokens": 3}, 3),
            ({"max_completion_tokens": 3}, 3),
            ({"max_tokens": 7, "max_completion_tokens": 3}, 3),
            ({}, 64 - 2),
            ({"max_tokens": None}, 64 - 2),
        ],
    )
    def test_exact(self, serve: Serve, limits: dict[str, int], count: int) -> None:
        s = serve(ENDLESS, context=64)
        made = s.post("/v1/completions", {"prompt": "x", "temperature": 0, **limits}).json()
        assert made["usage"]["completion_tokens"] == count
        assert made["choices"][0]["finish_reason"] == "length"
        assert len(made["choices"][0]["text"]) == count

    def test_an_end_token_on_the_last_step_is_an_end(self, serve: Serve) -> None:
        s = serve(NullScript(next_token=emit(ids("ab"), EOS)))
        body = {"prompt": "x", "temperature": 0, "max_tokens": 3}
        made = s.post("/v1/completions", body).json()
        assert made["choices"][0]["finish_reason"] == "stop"
        assert made["usage"]["completion_tokens"] == 3

    @pytest.mark.parametrize("value", [0, -1, 1.5, "3", True, 1e30])
    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_bad_values(self, serve: Serve, name: str, value: object) -> None:
        s = serve(ENDLESS)
        reply = s.post("/v1/completions", {"prompt": "x", name: value})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] in (name, "max_tokens")

    def test_ignore_eos(self, serve: Serve) -> None:
        s = serve(NullScript(next_token=emit(ids("ab"), EOS)))
        body = {"prompt": "x", "temperature": 0, "max_tokens": 9, "ignore_eos": True}
        made = s.post("/v1/completions", body).json()
        assert made["usage"]["completion_tokens"] == 9
        assert made["choices"][0]["finish_reason"] == "length"

    def test_too_long(self, serve: Serve) -> None:
        s = serve(context=64)
        for stream in (False, True):
            reply = s.post("/v1/completions", {"prompt": "x" * 64, "stream": stream})
            assert reply.status_code == 400
            error = reply.json()["error"]
            assert error["type"] == "exceed_context_size_error"
            assert error["code"] == "context_length_exceeded"
            assert (error["n_prompt_tokens"], error["n_ctx"]) == (65, 64)
            assert "exceeds the available context size" in error["message"]
            assert "65" in error["message"]
            assert "64" in error["message"]


def test_bias_bans_and_forces(serve: Serve) -> None:
    s = serve(ENDLESS)
    body = {"prompt": "x", "temperature": 0, "max_tokens": 4}
    banned = s.post("/v1/completions", body | {"logit_bias": {str(ord("b")): -100}}).json()
    assert "b" not in banned["choices"][0]["text"]
    forced = s.post("/v1/completions", body | {"logit_bias": {str(ord("z")): 100}}).json()
    assert forced["choices"][0]["text"] == "zzzz"
    pairs = s.post("/v1/completions", body | {"logit_bias": [["b", False], [122, 1.5]]}).json()
    assert "b" not in pairs["choices"][0]["text"]


def test_seeds(serve: Serve) -> None:
    """Case N04."""
    s = serve()

    def text(**more: object) -> str:
        body = {"prompt": "x", "max_tokens": 12, "temperature": 1, **more}
        return str(s.post("/v1/completions", body).json()["choices"][0]["text"])

    same = {text(seed=42) for _ in range(3)}
    assert len(same) == 1
    assert text(seed=43) not in same
    assert len({text() for _ in range(3)}) == 3
    assert len({text(temperature=0, top_p=p) for p in (0.0, 0.1, 1.0)}) == 1
    assert text(top_p=0.0) == text(temperature=0)


def test_errors_are_the_clients_own_kinds(serve: Serve) -> None:
    client = serve().client()
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="T0", prompt="x", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nope", prompt="x")
    assert missing.value.code == "model_not_found"
