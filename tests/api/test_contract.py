"""What Lemonade's and llama.cpp's own tests ask of a text server, each line with its test.

The lines are those of sections 3 and 4 of the serving contract. Lines not here do not concern a
child that serves text (what Lemonade does by itself, embeddings, reranking, infill, slot files:
the last four are refused by name), or are kept otherwise on purpose:

- cached tokens of a repeated prompt: whole pages of 32, not the prompt less one token;
- `echo` and `best_of` work, where llama-server refuses them;
- `/metrics` and `/slots` are on unless the config switches them off;
- Anthropic's `/v1/messages`, optional there, is refused by name.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from onebit.devices.null import NullScript, emit
from onebit.engine import EngineLimits
from onebit.server.usage import timings
from tests.api.conftest import Serve, ids
from tests.api.test_streams import events
from tests.fixtures.tiny_text import BOS, END

HERE = Path(__file__).parent
HELLO = NullScript(next_token=emit(ids("Hello there."), END))
ENDLESS = NullScript(next_token=emit(ids("abc ")))
USER = [{"role": "user", "content": "hi"}]

LEMONADE = {
    "001 chat": "contract: test_a_chat_of_four_messages",
    "001b concurrency": "contract: test_five_chats_at_once",
    "002 chat stream": "contract: test_a_chat_of_four_messages",
    "003 chat stream, async": "completions: test_async_client",
    "004 completions": "completions: test_text_usage_and_end",
    "005 completions stream": "completions: test_streamed_text_is_the_same",
    "006 completions stream, async": "completions: test_async_client",
    "007 Responses": "responses: test_text",
    "008 Responses stream": "responses: test_stream",
    "009 completions stop": "completions: test_stop_texts",
    "010 chat stop": "chat: test_tokens_of_a_stop_text_are_left_out",
    "011 echo": "completion_logprobs: test_prompt_without_generation",
    "012 tools": "chat: test_a_call",
    "013 tools stream": "chat: test_streamed",
    "014 generation parameters": "contract: test_each_parameter_changes_the_text",
    "018d rerank on a chat model": "guards: test_not_supported_by_name",
    "023 slots": "native: test_slots",
    "023b cache": "contract: test_a_second_chat_reuses_the_first_ones_prefix",
    "024 tokenize": "native: test_special_and_pieces",
    "overflow in a stream": "contract: test_a_chat_that_is_too_long",
    "15 tools": "contract: test_fifteen_tools",
    "messages as a string": "chat: test_bad_messages",
    "/models": "fields: test_the_list",
    "killed child": "lifecycle: test_no_helper_outlives_a_killed_server",
}
LLAMA_CPP = {
    "health": "native: test_health_names_what_serves",
    "models and aliases": "fields: test_the_list",
    "props": "native: test_props",
    "slots": "native: test_slots",
    "native completion": "native: test_shape",
    "tokens only with return_tokens": "contract: test_tokens_on_demand",
    "response_fields": "native: test_fields_on_demand",
    "native stream": "native: test_stream",
    "max_tokens ends by length": "completions: test_exact",
    "stop, streamed": "completions: test_stop_texts",
    "same seed, same text": "completions: test_seeds",
    "any batch, same text": "streams: test_eight_at_once_equal_eight_alone",
    "prompt forms": "completions: test_prompt_forms_agree",
    "mixed prompt, media": "contract: test_mixed_prompts_and_media",
    "missing prompt": "fields: test_refused_by_name",
    "too long": "completions: test_too_long",
    "context full": "contract: test_a_full_context_ends_by_length",
    "n_predict -1": "native: test_without_limit_it_fills_the_context",
    "null is absent": "chat: test_null_is_absent",
    "wrong types and ranges": "fields: test_refused_by_name",
    "ignore_eos": "completions: test_ignore_eos",
    "n_probs": "native: test_probabilities",
    "chat logprobs": "chat: test_tokens_join_to_the_content",
    "top_logprobs without logprobs": "chat: test_top_without_logprobs",
    "logit_bias": "completions: test_bias_bans_and_forces",
    "penalties": "contract: test_each_parameter_changes_the_text",
    "more requests than slots": "contract: test_more_requests_than_places",
    "n": "completions: test_n_answers",
    "n beyond the slots": "fields: test_refused",
    "client gone": "streams: test_cancelled",
    "prefix cache": "completions: test_timings",
    "chat reply": "chat: test_shape",
    "content parts": "chat: test_parts_are_joined_by_a_line_break",
    "chat stream": "streams: test_deltas",
    "include_usage": "streams: test_with_usage",
    "timings_per_token": "progress: test_timings_per_token",
    "return_progress": "progress: test_it_rises_to_the_prompts_length",
    "comments in silence": "streams: test_a_silent_stream_gets_comments",
    "bad messages": "chat: test_bad_messages",
    "prefill": "chat: test_a_trailing_assistant_message_is_continued",
    "prefill and generation prompt": "chat: test_both_are_refused",
    "response_format": "grammar: test_a_schema_holds",
    "json_schema, grammar": "grammar: test_other_forms",
    "bad schema or grammar, both": "grammar: test_bad_ones",
    "suffix": "fields: test_what_would_change_the_answer_is_refused",
    "apply-template": "chat: test_prompt_tokens_are_the_templates",
    "input_tokens": "native: test_counting_what_a_request_would_read",
    "reasoning": "chat: test_split",
    "reasoning off": "chat: test_the_templates_switch",
    "tool_choice required": "grammar: test_a_forced_call",
    "tool_choice none": "chat: test_none_leaves_them_out",
    "tool turns": "chat: test_null_content_beside_tool_calls",
    "tool deltas": "chat: test_streamed",
    "Responses events": "responses: test_stream",
    "Responses has no end mark": "responses: test_the_wire_has_no_end_mark",
    "Anthropic": "guards: test_not_supported_by_name",
    "tokenize and back": "native: test_round_trip",
    "add_special": "native: test_special_and_pieces",
    "infill": "guards: test_not_supported_by_name",
    "metrics": "native: test_metrics_count_what_timings_say",
    "rate without the first token": "contract: test_the_rate_leaves_out_the_first_token",
    "keys": "guards: test_every_route_but_health",
    "both key headers": "guards: test_a_right_one",
    "OPTIONS": "guards: test_a_listed_origin",
}


@pytest.mark.parametrize("place", sorted({*LEMONADE.values(), *LLAMA_CPP.values()}))
def test_the_tests_are_there(place: str) -> None:
    file, name = place.split(": ")
    text = (HERE / f"test_{file}.py").read_text(encoding="utf-8")
    assert re.search(rf"^ *def {name}\(", text, re.MULTILINE)


FOUR = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Who won the world series in 2020?"},
    {"role": "assistant", "content": "The LA Dodgers won in 2020."},
    {"role": "user", "content": "Where was it played?"},
]


def test_a_chat_of_four_messages(serve: Serve) -> None:
    s = serve(ENDLESS)
    body = {"messages": FOUR, "max_completion_tokens": 10, "max_tokens": 10, "stream": False}
    made = s.post("/v1/chat/completions", body).json()
    assert len(made["choices"][0]["message"]["content"]) == 10
    usage = made["usage"]
    assert usage["completion_tokens"] == 10
    assert usage["total_tokens"] == usage["prompt_tokens"] + 10
    chunks = events(s, "/v1/chat/completions", body)[:-1]
    said = [c["choices"][0]["delta"].get("content") for c in chunks]
    assert sum(text is not None for text in said) > 2


@pytest.mark.parametrize("places", [1, 5])
def test_five_chats_at_once(serve: Serve, places: int) -> None:
    s = serve(HELLO, limits=EngineLimits(max_sequences=places))
    _at_once(s, 5)


def test_more_requests_than_places(serve: Serve) -> None:
    _at_once(serve(HELLO, limits=EngineLimits(max_sequences=2)), 12)


def _at_once(s: Any, count: int) -> None:
    texts: list[str] = []

    def ask() -> None:
        made = s.post("/v1/chat/completions", {"messages": USER, "max_tokens": 8}).json()
        assert "error" not in made
        texts.append(made["choices"][0]["message"]["content"])

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["Hello th"] * count


def test_each_parameter_changes_the_text(serve: Serve) -> None:
    s = serve()
    base = {"temperature": 0.7, "top_p": 0.9, "repeat_penalty": 1.1, "top_k": 40, "seed": 3}

    def text(**more: float) -> str:
        body = {"prompt": "a b c a b c", "max_tokens": 40, **base, **more}
        return str(s.post("/v1/completions", body).json()["choices"][0]["text"])

    plain = text()
    assert text() == plain
    others = [
        {"temperature": 1.5}, {"top_p": 0.05}, {"repeat_penalty": 3.0}, {"top_k": 1}, {"seed": 4},
        {"presence_penalty": 2}, {"frequency_penalty": 2}, {"min_p": 1},
    ]  # fmt: skip
    for other in others:
        assert text(**other) != plain, other


def test_a_second_chat_reuses_the_first_ones_prefix(serve: Serve) -> None:
    s = serve(HELLO, fresh=True)
    long = {"role": "system", "content": "rules " * 50}
    for turn, cached in (("one", False), ("two", True)):
        body = {"messages": [long, {"role": "user", "content": turn}]}
        made = s.post("/v1/chat/completions", body).json()
        hits = made["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert hits == made["timings"]["cache_n"]
        assert (hits >= 288) is cached


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_that_is_too_long(serve: Serve, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 99}], "stream": stream}
    reply = serve(HELLO, context=64).post("/v1/chat/completions", body)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "exceed_context_size_error")
    assert "context" in error["message"]


def test_fifteen_tools(serve: Serve) -> None:
    s = serve(HELLO, tool_format="hermes")
    tools = [{"type": "function", "function": {"name": f"tool_{i}"}} for i in range(15)]
    body = {"messages": USER, "tools": tools, "temperature": 0}
    *chunks, done = events(s, "/v1/chat/completions", body)
    assert done == "[DONE]"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_tokens_on_demand(serve: Serve) -> None:
    body = {"prompt": "x", "n_predict": 3, "temperature": 0}
    s = serve(ENDLESS)
    assert s.post("/completion", body).json()["tokens"] == []
    assert s.post("/completion", body | {"return_tokens": True}).json()["tokens"] == ids("abc")


def test_mixed_prompts_and_media(serve: Serve) -> None:
    s = serve()
    body = {"n_predict": 4, "temperature": 0}
    mixed = s.post("/completion", body | {"prompt": [BOS, *b"on", "e"]}).json()
    assert mixed["content"] == s.post("/completion", body | {"prompt": "one"}).json()["content"]
    media = {"prompt_string": "x", "multimodal_data": ["aGk="]}
    for prompt in (media, [media]):
        reply = s.post("/completion", body | {"prompt": prompt})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")


def test_a_full_context_ends_by_length(serve: Serve) -> None:
    body = {"messages": USER, "max_tokens": 4000}
    made = serve(ENDLESS, context=64).post("/v1/chat/completions", body).json()
    assert made["choices"][0]["finish_reason"] == "length"
    assert made["usage"]["total_tokens"] == 64


def test_the_rate_leaves_out_the_first_token() -> None:
    made = timings(10, 0, 50.0, 5, 100.0, 1)
    assert made["predicted_per_second"] == 40
    assert made["predicted_per_token_ms"] == 25
    assert timings(10, 0, 50.0, 1, 0.0, 1)["predicted_per_second"] == 0
