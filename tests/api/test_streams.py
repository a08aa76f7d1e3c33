"""Streams as bytes on the wire, cancellation, failures in the middle."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from onebit.devices.null import NullScript, emit
from onebit.engine import EngineLimits
from tests.api.conftest import Running, Serve, ids
from tests.fixtures.tiny_text import END, EOS

USER = [{"role": "user", "content": "hi"}]
HELLO = NullScript(next_token=emit(ids("Hello there."), END))
SLOW = NullScript(next_token=emit(ids("abc ")), seconds_per_step=0.01)


def events(s: Running, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the data of each event, checked to be whole and valid UTF-8."""
    made: list[Any] = []
    with s.http.stream("POST", path, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        raw = b"".join(reply.iter_raw())
    for block in raw.decode("utf-8", "strict").split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        assert block.startswith("data: ")
        data = block.removeprefix("data: ")
        made.append(data if data == "[DONE]" else json.loads(data))
    return made


class TestShape:
    """Case S03."""

    @pytest.mark.parametrize("options", [None, {"include_usage": False}, {}])
    def test_without_usage_every_chunk_has_a_choice(self, serve: Serve, options: object) -> None:
        body = {"messages": USER, "temperature": 0, "stream_options": options}
        *chunks, done = events(serve(HELLO), "/v1/chat/completions", body)
        assert done == "[DONE]"
        assert all(len(chunk["choices"]) == 1 for chunk in chunks)
        assert all("usage" not in chunk for chunk in chunks)
        assert "timings" in chunks[-1]
        assert all("timings" not in chunk for chunk in chunks[:-1])

    def test_with_usage(self, serve: Serve) -> None:
        body = {"messages": USER, "temperature": 0, "stream_options": {"include_usage": True}}
        *chunks, last, done = events(serve(HELLO), "/v1/chat/completions", body)
        assert done == "[DONE]"
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 13
        assert "timings" in last
        assert all(len(chunk["choices"]) == 1 for chunk in chunks)

    def test_deltas(self, serve: Serve) -> None:
        body = {"messages": USER, "temperature": 0}
        chunks = events(serve(HELLO), "/v1/chat/completions", body)[:-1]
        assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
        choices = [c["choices"][0] for c in chunks]
        assert choices[0]["delta"] == {"role": "assistant", "content": None}
        assert choices[-1]["delta"] == {}
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
        for choice in choices[1:-1]:
            assert list(choice["delta"]) == ["content"]
            assert choice["delta"]["content"]
        assert "".join(c["delta"].get("content") or "" for c in choices) == "Hello there."

    def test_options_without_a_stream(self, serve: Serve) -> None:
        body = {"messages": USER, "stream_options": {"include_usage": True}}
        reply = serve(HELLO).post("/v1/chat/completions", body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream_options")

    def test_several_answers(self, serve: Serve) -> None:
        body = {"messages": USER, "temperature": 0, "n": 3}
        chunks = events(serve(HELLO), "/v1/chat/completions", body)[:-1]
        for index in range(3):
            mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
            assert mine[0]["delta"] == {"role": "assistant", "content": None}
            assert "".join(c["delta"].get("content") or "" for c in mine) == "Hello there."
            assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert sum("timings" in c for c in chunks) == 1
        assert "timings" in chunks[-1]

    def test_done_is_a_write_of_its_own(self, serve: Serve) -> None:
        s = serve(HELLO)
        body = json.dumps({"messages": USER, "temperature": 0, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", s.port)) as sock:
            sock.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body) + body
            )
            raw = b""
            while part := sock.recv(65536):
                raw += part
        assert b"\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n" in raw


class TestCharacters:
    """Case S01."""

    EMOJI = "😀你"

    @pytest.mark.parametrize(
        ("tokens", "limit", "text"),
        [
            (list("😀你".encode()), 7, "😀你"),
            (list("😀你".encode()), 3, "\ufffd"),
            (list("a😀".encode()), 4, "a\ufffd"),
            ([0xFF, ord("a")], 2, "\ufffda"),
            (ids(" x"), 2, " x"),
            (ids(" \n "), 3, " \n "),
        ],
    )
    def test_streamed_is_whole(
        self, serve: Serve, tokens: list[int], limit: int, text: str
    ) -> None:
        s = serve(NullScript(next_token=emit(tokens, EOS)))
        body = {"prompt": "q", "temperature": 0, "max_tokens": limit}
        whole = s.post("/v1/completions", body).json()
        assert whole["choices"][0]["text"] == text
        assert whole["usage"]["completion_tokens"] == limit
        chunks = events(s, "/v1/completions", body)[:-1]
        assert "".join(c["choices"][0]["text"] for c in chunks) == text
        chat = {"messages": USER, "temperature": 0, "max_tokens": limit}
        streamed = events(s, "/v1/chat/completions", chat)[:-1]
        joined = "".join(c["choices"][0]["delta"].get("content") or "" for c in streamed)
        assert joined == text

    def test_a_forced_added_token(self, serve: Serve) -> None:
        """Case T02."""
        s = serve()
        token = s.text.tokenizer.token_to_id("ilÖveyou")
        body = {"prompt": "q", "temperature": 0, "max_tokens": 1, "logit_bias": {str(token): 100}}
        assert s.post("/v1/completions", body).json()["choices"][0]["text"] == "ilÖveyou"


class TestErrors:
    """Case S04."""

    @pytest.mark.parametrize(
        "more", [{"n": 0}, {"messages": [{"role": "x", "content": "a"}]}, {"temperature": "hot"}]
    )
    def test_before_a_stream(self, serve: Serve, more: dict[str, Any]) -> None:
        body = {"messages": USER, "stream": True, **more}
        reply = serve(HELLO).post("/v1/chat/completions", body)
        assert reply.status_code == 400
        assert reply.headers["content-type"] == "application/json"
        assert reply.json()["error"]["param"]

    def test_in_the_middle(self, serve: Serve) -> None:
        script = NullScript(next_token=emit(ids("abc ")), fail_at=(3,), seconds_per_step=0.01)
        s = serve(script, fresh=True)
        *chunks, last = events(s, "/v1/chat/completions", {"messages": USER, "temperature": 0})
        assert last["error"]["code"] == "device_error"
        assert last["error"]["type"] == "unavailable_error"
        assert all(c["choices"][0]["finish_reason"] is None for c in chunks)
        s.wait_idle()
        assert s.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status_code == 200

    def test_in_the_middle_of_an_answer_that_is_not_streamed(self, serve: Serve) -> None:
        s = serve(NullScript(fail_at=(2,)), fresh=True)
        reply = s.post("/v1/completions", {"prompt": "x", "max_tokens": 9})
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "device_error"

    def test_before_the_first_token_is_a_real_status(self, serve: Serve) -> None:
        s = serve(NullScript(fail_at=(0,)), fresh=True)
        reply = s.post("/v1/chat/completions", {"messages": USER, "stream": True})
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "device_error"

    def test_a_full_queue(self, serve: Serve) -> None:
        s = serve(SLOW, limits=EngineLimits(max_sequences=1, queue=1), fresh=True)
        body = {"prompt": "x", "max_tokens": 500, "stream": True}
        statuses: list[int] = []
        with httpx.Client(base_url=s.url) as client:
            opened = [client.build_request("POST", "/v1/completions", json=body) for _ in range(2)]
            first = client.send(opened[0], stream=True)
            chunks = first.iter_raw()  # kept: the connection closes with it
            next(chunks)
            waiting = threading.Thread(
                target=lambda: s.post("/v1/completions", {"prompt": "y", "max_tokens": 1})
            )
            waiting.start()
            while s.engine.stats().waiting == 0:
                time.sleep(0.005)
            refused = s.post("/v1/completions", body)
            statuses.append(refused.status_code)
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert int(refused.headers["retry-after"]) >= 1
            first.close()
            waiting.join()
        assert statuses == [429]
        s.wait_idle()


class TestDisconnect:
    """A client that goes away stops its sequence within one step."""

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
    def test_cancelled(self, serve: Serve, path: str, stream: bool) -> None:
        s = serve(SLOW, fresh=False)
        s.wait_idle()
        before = s.engine.stats()
        body = json.dumps(
            {"messages": USER, "prompt": "x", "stream": stream, "max_tokens": 3000, "n_predict": -1}
            if path == "/completion"
            else {"messages": USER, "prompt": "x", "stream": stream, "max_tokens": 3000}
        )
        connection = http.client.HTTPConnection("127.0.0.1", s.port)
        connection.request("POST", path, body)
        while s.engine.stats().running == 0:
            time.sleep(0.005)
        time.sleep(0.05)
        assert connection.sock is not None
        connection.sock.close()
        connection.close()
        begun = time.monotonic()
        s.wait_idle()
        assert time.monotonic() - begun < 0.5
        after = s.engine.stats()
        assert after.pages_used == 0
        assert after.generated_tokens - before.generated_tokens < 100

    def test_a_waiting_request_leaves_the_queue(self, serve: Serve) -> None:
        s = serve(SLOW, limits=EngineLimits(max_sequences=1, queue=4), fresh=True)
        first = http.client.HTTPConnection("127.0.0.1", s.port)
        first.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 900}))
        second = http.client.HTTPConnection("127.0.0.1", s.port)
        second.request("POST", "/v1/completions", json.dumps({"prompt": "y", "max_tokens": 900}))
        while s.engine.stats().waiting == 0:
            time.sleep(0.005)
        second.close()
        while s.engine.stats().waiting:
            time.sleep(0.005)
        first.close()
        s.wait_idle()


def test_a_silent_stream_gets_comments(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onebit.server.reply.PING_SECONDS", 0.05)
    s = serve(NullScript(next_token=emit(ids("ab"), EOS), seconds_per_step=0.2), fresh=True)
    with s.http.stream(
        "POST", "/v1/completions", json={"prompt": "x", "temperature": 0, "stream": True}
    ) as reply:
        raw = b"".join(reply.iter_raw()).decode()
    assert raw.count(":\n\n") >= 3
    assert raw.endswith("data: [DONE]\n\n")


class TestStress:
    """Case L02, and the greedy part of N04."""

    def test_a_stream_beside_many_others(self, serve: Serve) -> None:
        s = serve(NullScript(seconds_per_step=0.002))
        body = {"prompt": "alone", "temperature": 0, "max_tokens": 50}
        solo = s.post("/v1/completions", body).json()["choices"][0]["text"]
        slow: list[float] = []
        wrong: list[str] = []
        stop = threading.Event()

        def beside() -> None:
            with httpx.Client(base_url=s.url, timeout=30) as client:
                while not stop.is_set():
                    begun = time.monotonic()
                    assert client.get("/health").status_code == 200
                    slow.append(time.monotonic() - begun)
                    assert client.get("/v1/models").status_code == 200
                    other = {"prompt": "other", "temperature": 0, "max_tokens": 20}
                    text = client.post("/v1/completions", json=other).json()
                    wrong.append(text["choices"][0]["text"])

        threads = [threading.Thread(target=beside) for _ in range(4)]
        for thread in threads:
            thread.start()
        streamed = [
            "".join(c["choices"][0]["text"] for c in events(s, "/v1/completions", body)[:-1])
            for _ in range(10)
        ]
        stop.set()
        for thread in threads:
            thread.join()
        assert set(streamed) == {solo}
        assert len(set(wrong)) == 1
        assert sorted(slow)[len(slow) // 2] < 0.1

    def test_eight_at_once_equal_eight_alone(self, serve: Serve) -> None:
        s = serve()
        body = {"prompt": "the same", "temperature": 0, "max_tokens": 40, "cache_prompt": False}
        alone = {s.post("/v1/completions", body).json()["choices"][0]["text"] for _ in range(8)}
        texts: list[str] = []

        def ask() -> None:
            texts.append(s.post("/v1/completions", body).json()["choices"][0]["text"])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(texts) == 8
        assert set(texts) == alone
        assert len(alone) == 1
