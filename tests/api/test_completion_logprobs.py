"""Log-probabilities of POST /v1/completions: of answers and prompts; what `best_of` picks."""

from __future__ import annotations

import pytest

from onebit.devices.null import NullScript, emit
from tests.api.conftest import Serve, ids
from tests.fixtures.tiny_text import BOS, EOS

PARIS = NullScript(next_token=emit(ids(" Paris"), EOS))


def test_answer(serve: Serve) -> None:
    client = serve().client()
    made = client.completions.create(
        model="T0", prompt="x", temperature=0, max_tokens=4, logprobs=3
    )
    probs = made.choices[0].logprobs
    assert probs is not None
    assert probs.tokens is not None
    assert probs.token_logprobs is not None
    assert probs.top_logprobs is not None
    assert len(probs.tokens) == len(probs.token_logprobs) == 4
    for value, top in zip(probs.token_logprobs, probs.top_logprobs, strict=True):
        assert value is not None
        assert value <= 0
        assert value == max(top.values())
        assert len(top) <= 3


def test_prompt_without_generation(serve: Serve) -> None:
    client = serve().client()
    made = client.completions.create(
        model="T0", prompt="hey you", echo=True, max_tokens=0, logprobs=1
    )
    choice = made.choices[0]
    assert choice.text == "hey you"
    assert made.usage is not None
    assert made.usage.completion_tokens == 0
    probs = choice.logprobs
    assert probs is not None
    assert probs.token_logprobs is not None
    assert probs.tokens is not None
    assert probs.token_logprobs[0] is None
    assert all(v is not None and v <= 0 for v in probs.token_logprobs[1:])
    assert len(probs.tokens) == 1 + len(ids("y you")) + 1  # BOS, "he", six bytes


def test_prompt_and_answer_agree_with_a_later_prompt(serve: Serve) -> None:
    """What was an answer's log-probability is the same as the prompt's one request later."""
    s = serve()
    body = {"prompt": [1, 2, 3], "temperature": 0, "max_tokens": 5, "logprobs": 0}
    made = s.post("/v1/completions", body | {"echo": True}).json()["choices"][0]
    answer = s.post(
        "/completion",
        {"prompt": [1, 2, 3], "temperature": 0, "n_predict": 5, "return_tokens": True},
    ).json()["tokens"]
    again = s.post(
        "/v1/completions",
        {"prompt": [1, 2, 3, *answer], "echo": True, "max_tokens": 0, "logprobs": 0},
    ).json()["choices"][0]
    first = made["logprobs"]["token_logprobs"]
    second = again["logprobs"]["token_logprobs"]
    assert len(first) == len(second) == 8
    assert first[0] is second[0] is None
    assert first[1:] == pytest.approx(second[1:], abs=1e-5)


def test_streamed_is_the_same(serve: Serve) -> None:
    s = serve()
    body = {"prompt": "x", "temperature": 0, "max_tokens": 40, "logprobs": 2, "echo": True}
    whole = s.post("/v1/completions", body).json()["choices"][0]
    stream = s.client().completions.create(model="T0", stream=True, **body)  # type: ignore[call-overload]
    text, tokens, offsets = "", list[str](), list[int]()
    for chunk in stream:
        text += chunk.choices[0].text
        if chunk.choices[0].logprobs is not None:
            tokens += chunk.choices[0].logprobs.tokens
            offsets += chunk.choices[0].logprobs.text_offset
    assert text == whole["text"]
    assert tokens == whole["logprobs"]["tokens"]
    assert offsets == whole["logprobs"]["text_offset"]


def test_out_of_range(serve: Serve) -> None:
    s = serve()
    for value in (-1, 21, 1.5, "1"):
        reply = s.post("/v1/completions", {"prompt": "x", "logprobs": value})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_token_has_an_entry(serve: Serve, stream: bool) -> None:
    """lm-eval sends max_tokens 1 with echo and takes all entries but the last as the prompt's."""
    s = serve(NullScript(next_token=emit([], EOS)))
    body = {"prompt": [BOS, 1, 2], "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    client = s.client()
    if stream:
        chunks = list(client.completions.create(model="T0", stream=True, **body))  # type: ignore[call-overload]
        parts = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
        tokens = [token for part in parts for token in part.tokens]
        scores = [score for part in parts for score in part.token_logprobs]
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = client.completions.create(model="T0", **body).choices[0]  # type: ignore[call-overload]
        tokens, scores = choice.logprobs.tokens, choice.logprobs.token_logprobs
        reason = choice.finish_reason
    assert reason == "stop"
    assert tokens == ["<s>", "\x01", "\x02", "</s>"]
    assert scores[0] is None
    assert scores[3] == pytest.approx(0, abs=1e-3)


def test_an_end_token_behind_a_stop_text_has_none(serve: Serve) -> None:
    body = {"prompt": "x", "stop": "ris", "logprobs": 0, "temperature": 0}
    choice = serve(PARIS).post("/v1/completions", body).json()["choices"][0]
    assert choice["text"] == " Pa"
    assert choice["logprobs"]["tokens"] == list(" Pa")


def test_every_answer_has_the_prompts(serve: Serve) -> None:
    s = serve()
    body = {"prompt": ["a" * 70, "b"], "n": 3, "echo": True, "logprobs": 0}
    limits = {"max_tokens": 2, "ignore_eos": True}
    choices = s.post("/v1/completions", body | limits).json()["choices"]
    assert [len(c["logprobs"]["tokens"]) for c in choices] == [73] * 3 + [4] * 3
    for first in (0, 3):
        length = len(choices[first]["logprobs"]["tokens"]) - 2
        prompts = {str(c["logprobs"]["token_logprobs"][:length]) for c in choices[first:][:3]}
        assert len(prompts) == 1


SAMPLED = {"prompt": ["a", "b"], "seed": 4, "max_tokens": 8, "temperature": 1.5, "ignore_eos": True}


class TestBestOf:
    def test_the_likeliest_are_sent(self, serve: Serve) -> None:
        s = serve()
        every = s.post("/v1/completions", SAMPLED | {"n": 6, "logprobs": 0}).json()
        best = s.post("/v1/completions", SAMPLED | {"n": 2, "best_of": 6}).json()
        assert [c["index"] for c in best["choices"]] == [0, 1, 2, 3]
        assert all(c["logprobs"] is None for c in best["choices"])
        texts: list[str] = []
        for prompt in (every["choices"][:6], every["choices"][6:]):
            scores = [sum(c["logprobs"]["token_logprobs"]) / 8 for c in prompt]
            assert len(set(scores)) == 6
            order = sorted(range(6), key=lambda i: -scores[i])
            texts += [prompt[i]["text"] for i in order[:2]]
        assert [c["text"] for c in best["choices"]] == texts
        assert best["usage"]["completion_tokens"] == 2 * 6 * 8

    def test_as_many_as_are_sent(self, serve: Serve) -> None:
        s = serve()
        plain = s.post("/v1/completions", SAMPLED | {"n": 2}).json()["choices"]
        same = s.post("/v1/completions", SAMPLED | {"n": 2, "best_of": 2}).json()["choices"]
        assert same == plain

    @pytest.mark.parametrize(
        "more",
        [{"best_of": 1, "n": 2}, {"best_of": 99}, {"best_of": 0}, {"best_of": 2, "stream": True}],
    )
    def test_refused(self, serve: Serve, more: dict[str, object]) -> None:
        reply = serve().post("/v1/completions", SAMPLED | more)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "best_of")
