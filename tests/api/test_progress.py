"""`return_progress` and `timings_per_token`, as llama-server has them."""

from __future__ import annotations

from typing import Any

import pytest

from onebit.devices.null import NullScript, emit
from tests.api.conftest import Running, Serve, ids
from tests.api.test_streams import events
from tests.fixtures.tiny_text import END

HELLO = NullScript(next_token=emit(ids("Hello there."), END))
LONG = "long " * 200
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "temperature": 0},
    "/v1/completions": {"prompt": LONG, "temperature": 0},
    "/completion": {"prompt": LONG, "temperature": 0},
}


def chunks_of(s: Running, path: str, more: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for c in events(s, path, BODIES[path] | more) if c != "[DONE]"]


@pytest.mark.parametrize("path", BODIES)
class TestProgress:
    def test_it_rises_to_the_prompts_length(self, serve: Serve, path: str) -> None:
        s = serve(HELLO, fresh=True)
        for again in (False, True):
            chunks = chunks_of(s, path, {"return_progress": True})
            reports = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
            assert len(reports) >= 2
            assert all("prompt_progress" in c for c in chunks[: len(reports)])
            first, last = reports[0], reports[-1]
            assert first["cache"] == first["processed"]
            assert (first["cache"] > 0) is again
            assert {(r["total"], r["cache"]) for r in reports} == {(last["total"], first["cache"])}
            done = [r["processed"] for r in reports]
            assert done == sorted(set(done))
            assert last["processed"] == last["total"] > 1000
            assert all(r["time_ms"] >= 0 for r in reports)

    def test_the_text_is_the_same(self, serve: Serve, path: str) -> None:
        s = serve(HELLO)
        plain, shown = (chunks_of(s, path, more) for more in ({}, {"return_progress": True}))
        rest = [c for c in shown if "prompt_progress" not in c]
        if path == "/v1/chat/completions":
            choices = [c["choices"][0] for c in shown]
            assert choices[0]["delta"] == {"role": "assistant", "content": None}
            assert all("role" not in c["delta"] for c in choices[1:])
            plain = plain[1:]
        assert [_said(c) for c in rest] == [_said(c) for c in plain]

    def test_only_on_demand_and_in_streams(self, serve: Serve, path: str) -> None:
        s = serve(HELLO)
        assert not any("prompt_progress" in c for c in chunks_of(s, path, {}))
        reply = s.post(path, BODIES[path] | {"return_progress": True, "timings_per_token": True})
        assert reply.status_code == 200
        assert "x-onebit-ignored" not in reply.headers
        assert "prompt_progress" not in reply.json()


def _said(chunk: dict[str, Any]) -> Any:
    if "choices" not in chunk:
        return chunk["content"], chunk["stop"]
    choice = chunk["choices"][0]
    return choice.get("text"), choice.get("delta"), choice["finish_reason"]


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
@pytest.mark.parametrize("path", BODIES)
def test_timings_per_token(serve: Serve, path: str, options: dict[str, Any]) -> None:
    s = serve(HELLO)
    if path == "/completion" and options:
        return
    chunks = chunks_of(s, path, {"timings_per_token": True, **options})
    if path == "/v1/chat/completions":
        assert "timings" not in chunks[0]
        chunks = chunks[1:]
    assert all("timings" in c for c in chunks)
    counts = [c["timings"]["predicted_n"] for c in chunks]
    assert counts == sorted(counts)
    assert counts[0] <= 2
    assert counts[-1] == 13
    for chunk in chunks:
        timings = chunk["timings"]
        assert timings["prompt_n"] + timings["cache_n"] > 1000
        assert all(value >= 0 for value in timings.values())


def test_several_prompts_and_answers(serve: Serve) -> None:
    body = {"prompt": [LONG, "short"], "n": 2, "temperature": 0, "return_progress": True}
    chunks = [c for c in events(serve(HELLO), "/v1/completions", body) if c != "[DONE]"]
    totals = {
        c["choices"][0]["index"]: c["prompt_progress"]["total"]
        for c in chunks
        if "prompt_progress" in c
    }
    assert totals == {0: 1001, 2: 6}
    text = dict.fromkeys(range(4), "")
    for chunk in chunks:
        text[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert set(text.values()) == {"Hello there."}
