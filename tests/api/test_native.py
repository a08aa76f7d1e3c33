"""llama-server's own routes: /completion, /tokenize, /props, /slots, /metrics."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from onebit.devices.null import NullScript, emit
from onebit.engine import EngineLimits
from tests.api.conftest import Serve, ids
from tests.fixtures.tiny_text import BOS, END

HELLO = NullScript(next_token=emit(ids("Hi\nyou"), END))
ENDLESS = NullScript(next_token=emit(ids("abc ")))


class TestCompletion:
    def test_shape(self, serve: Serve) -> None:
        body = {"prompt": "xyz", "n_predict": 30, "temperature": 0, "return_tokens": True}
        made = serve(HELLO).post("/completion", body).json()
        assert made["content"] == "Hi\nyou"
        assert made["tokens"] == ids("Hi\nyou")
        assert made["stop"] is True
        assert made["stop_type"] == "eos"
        assert made["has_new_line"] is True
        assert made["truncated"] is False
        assert made["tokens_predicted"] == made["timings"]["predicted_n"] == 7
        assert made["tokens_evaluated"] == 4
        assert made["generation_settings"]["temperature"] == 0

    @pytest.mark.parametrize(
        ("more", "kind", "word"),
        [({"n_predict": 3}, "limit", ""), ({"stop": ["c a"]}, "word", "c a")],
    )
    def test_ends(self, serve: Serve, more: dict[str, Any], kind: str, word: str) -> None:
        made = serve(ENDLESS).post("/completion", {"prompt": "x", "temperature": 0, **more}).json()
        assert (made["stop_type"], made["stopping_word"]) == (kind, word)

    def test_without_limit_it_fills_the_context(self, serve: Serve) -> None:
        s = serve(ENDLESS, context=64)
        made = s.post("/completion", {"prompt": "x", "n_predict": -1, "temperature": 0}).json()
        assert made["tokens_predicted"] + made["tokens_evaluated"] == 64
        assert made["truncated"] is True
        assert made["stop_type"] == "limit"

    def test_stream(self, serve: Serve) -> None:
        s = serve(HELLO)
        body = {"prompt": "x", "temperature": 0}
        whole = s.post("/completion", body).json()
        reply = s.post("/completion", body | {"stream": True})
        chunks = [json.loads(b.removeprefix("data: ")) for b in reply.text.split("\n\n")[:-1]]
        assert [c["stop"] for c in chunks] == [False] * (len(chunks) - 1) + [True]
        assert all(c["tokens"] for c in chunks[:-1])
        assert "".join(c["content"] for c in chunks) == whole["content"]
        assert {"timings", "generation_settings"} <= set(chunks[-1])

    def test_fields_on_demand(self, serve: Serve) -> None:
        body = {"prompt": "x", "n_predict": 2, "response_fields": ["content", "stop_type"]}
        made = serve(ENDLESS).post("/completion", body).json()
        assert set(made) == {"content", "stop_type"}

    def test_probabilities(self, serve: Serve) -> None:
        body = {"prompt": "x", "n_predict": 3, "n_probs": 4, "temperature": 0}
        made = serve().post("/completion", body).json()["completion_probabilities"]
        assert len(made) == 3
        for one in made:
            assert len(one["top_logprobs"]) == 4
            assert one["logprob"] <= 0
            assert one["top_logprobs"][0]["id"] == one["id"]

    def test_lists_of_prompts(self, serve: Serve) -> None:
        s = serve()
        body = {"n_predict": 4, "temperature": 0}
        made = s.post("/completion", body | {"prompt": ["a", [BOS, *b"b"]]}).json()
        assert [m["index"] for m in made] == [0, 1]
        assert made[0]["content"] == s.post("/completion", body | {"prompt": "a"}).json()["content"]


class TestTokens:
    def test_round_trip(self, serve: Serve) -> None:
        s = serve(HELLO)
        text = "héllo <|start|> 😀"
        tokens = s.post("/tokenize", {"content": text}).json()["tokens"]
        assert BOS not in tokens
        assert s.post("/detokenize", {"tokens": tokens}).json()["content"] == text

    def test_special_and_pieces(self, serve: Serve) -> None:
        s = serve(HELLO)
        made = s.post("/tokenize", {"content": "a", "add_special": True}).json()
        assert made["tokens"] == [BOS, ord("a")]
        pieces = s.post("/tokenize", {"content": "a😀", "with_pieces": True}).json()["tokens"]
        assert pieces[0] == {"id": ord("a"), "piece": "a"}
        assert pieces[1]["piece"] == [0xF0]

    def test_counting_a_chat(self, serve: Serve) -> None:
        s = serve(HELLO)
        chat = [{"role": "user", "content": "hi"}]
        made = s.post("/tokenize", {"messages": chat}).json()
        prompt = s.post("/apply-template", {"messages": chat}).json()["prompt"]
        assert made["tokens"] == s.post("/tokenize", {"content": prompt}).json()["tokens"]
        assert made["count"] == len(made["tokens"])

    def test_counting_what_a_request_would_read(self, serve: Serve) -> None:
        """A count is that of the prompt that the request itself would have."""
        s = serve(HELLO, tool_format="hermes")
        tool = {"type": "function", "function": {"name": "f"}}
        for more in ({}, {"tools": [tool]}, {"tools": [tool], "tool_choice": "none"}):
            body = {"messages": [{"role": "user", "content": "hi"}], **more}
            read = s.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"]
            counted = s.post("/v1/chat/completions/input_tokens", body).json()
            assert counted["input_tokens"] == read
        body = {"input": "hi", "instructions": "Be short."}
        read = s.post("/v1/responses", body).json()["usage"]["input_tokens"]
        made = s.client().responses.input_tokens.count(**body)  # type: ignore[arg-type]
        assert (made.input_tokens, made.object) == (read, "response.input_tokens")

    def test_the_tokenizer_is_described_as_vllm_does(self, serve: Serve) -> None:
        s = serve(HELLO)
        made = s.http.get("/tokenizer_info").json()
        assert (made["bos_token"], made["eos_token"]) == ("<s>", "</s>")
        assert "message.role" in made["chat_template"]
        body = {"prompt": made["eos_token"], "add_special_tokens": False}
        tokens = s.post("/tokenize", body).json()["tokens"]
        assert s.post("/detokenize", {"tokens": tokens}).json()["prompt"] == "</s>"

    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [
            ("/tokenize", {}, "content"),
            ("/tokenize", {"content": 5}, "content"),
            ("/detokenize", {}, "tokens"),
            ("/detokenize", {"tokens": [512]}, "tokens"),
            ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
            ("/apply-template", {"messages": []}, "messages"),
        ],
    )
    def test_refused(self, serve: Serve, path: str, body: dict[str, Any], param: str) -> None:
        reply = serve(HELLO).post(path, body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


class TestServer:
    def test_props(self, serve: Serve) -> None:
        made = serve(HELLO, limits=EngineLimits(max_sequences=3)).http.get("/props").json()
        assert made["model_path"] == "dir/T0"
        assert made["total_slots"] == 3
        assert made["default_generation_settings"]["n_ctx"] == 4096
        assert "message.role" in made["chat_template"]

    def test_slots(self, serve: Serve) -> None:
        made = serve(HELLO, limits=EngineLimits(max_sequences=3)).http.get("/slots").json()
        assert made == [{"id": i, "n_ctx": 4096, "is_processing": False} for i in range(3)]

    def test_health_names_what_serves(self, serve: Serve) -> None:
        made = serve(HELLO).http.get("/v1/health").json()
        assert made["status"] == "ok"
        assert made["model"] == "T0"
        assert made["device"] == "null"

    def test_metrics_count_what_timings_say(self, serve: Serve) -> None:
        s = serve(ENDLESS, fresh=True)
        replies = [
            s.post("/v1/completions", {"prompt": f"{i} abc", "max_tokens": 5 + i}).json()
            for i in range(4)
        ]
        s.post("/v1/completions", {"prompt": "x", "n": 0})
        text = s.http.get("/metrics").text
        values = dict(re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE))
        timings = [r["timings"] for r in replies]
        prompt = sum(t["prompt_n"] + t["cache_n"] for t in timings)
        assert float(values["onebit_engine_prompt_tokens_total"]) == prompt
        predicted = sum(t["predicted_n"] for t in timings)
        assert float(values["onebit_engine_generated_tokens_total"]) == predicted
        assert float(values["onebit_time_to_first_token_seconds_count"]) == 4
        assert float(values['onebit_answers_total{reason="length"}']) == 4
        assert float(values['onebit_http_errors_total{status="400"}']) == 1
        label = 'onebit_http_requests_total{route="/v1/completions",status="200"}'
        assert float(values[label]) == 4
        assert "# HELP onebit_engine_pages_used" in text
        assert "# TYPE onebit_engine_step_rows histogram" in text
