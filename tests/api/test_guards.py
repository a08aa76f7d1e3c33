"""Who may ask, and what bodies are taken. Cases X02 and X03."""

from __future__ import annotations

import json
import logging
import socket
import time
from typing import Any

import httpx
import pytest

from onebit.config.api import ApiConfig
from onebit.devices.null import NullScript, emit
from onebit.findings import UsageError
from onebit.server import ServerState, create_app
from onebit.server.guards import is_loopback
from onebit.server.routes_generate import GENERATE
from onebit.server.routes_info import INFO
from onebit.server.routes_text import TEXT
from tests.api.conftest import Running, Serve, ids
from tests.fixtures.tiny_text import END

HELLO = NullScript(next_token=emit(ids("Hello"), END))
USER = [{"role": "user", "content": "hi"}]
KEYED = {"keys": ("sk-one", "sk-two")}
ROUTES = sorted(
    (method, path)
    for handler in [*GENERATE, *TEXT, *INFO]
    for path in handler.paths
    for method in handler.http_methods
    if method in ("GET", "POST")
)


def alive(s: Running) -> None:
    reply = s.post("/v1/completions", {"prompt": "x", "temperature": 0, "max_tokens": 9})
    assert reply.json()["choices"][0]["text"] == "Hello"


def raw_request(s: Running, head: bytes, body: bytes = b"", wait: float = 5.0) -> bytes:
    """Send bytes and return what comes back until the server closes or falls silent."""
    with socket.create_connection(("127.0.0.1", s.port), wait) as sock:
        sock.sendall(head + body)
        sock.settimeout(wait)
        got = b""
        try:
            while part := sock.recv(65536):
                got += part
                if b"\r\n\r\n" in got and b"content-length" in got.lower():
                    head_, _, rest = got.partition(b"\r\n\r\n")
                    length = int(head_.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    if len(rest) >= length:
                        break
        except TimeoutError:
            pass
        return got


class TestKeys:
    @pytest.mark.parametrize(("method", "path"), ROUTES)
    @pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": ""}])
    def test_every_route_but_health(
        self, serve: Serve, method: str, path: str, headers: dict[str, str]
    ) -> None:
        s = serve(HELLO, api=KEYED)
        path = path.replace("{slot:int}", "0").replace("{model_id:path}", "T0")
        reply = s.http.request(method, path, headers=headers, json={} if method == "POST" else None)
        if path in ("/health", "/v1/health"):
            assert reply.status_code == 200
        else:
            assert reply.status_code == 401
            assert reply.json()["error"]["code"] == "invalid_api_key"
            assert reply.json()["error"]["type"] == "authentication_error"

    @pytest.mark.parametrize(
        "target",
        [
            "//v1/chat/completions",
            "/v1/../v1/models",
            "/v1/models/",
            "/V1/models",
            "/v1/%6dodels",
            "/health/../v1/models",
            "/health/",
            "/v1/health/x",
            "/nope",
            "/",
            "/openapi.json",
            "*",
        ],
    )
    @pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE", "TRACE"])
    def test_other_spellings(self, serve: Serve, method: str, target: str) -> None:
        s = serve(HELLO, api=KEYED)
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            "Content-Length: 0\r\n\r\n"
        )
        status = int(raw_request(s, head.encode()).split(b" ")[1])
        assert status in (400, 401)

    @pytest.mark.parametrize(
        "headers",
        [
            {"authorization": "Bearer sk-one"},
            {"authorization": "bearer sk-two"},
            {"x-api-key": "sk-two"},
        ],
    )
    def test_a_right_one(self, serve: Serve, headers: dict[str, str]) -> None:
        s = serve(HELLO, api=KEYED)
        assert s.http.get("/v1/models", headers=headers).status_code == 200

    def test_a_client_with_a_key_where_none_is_asked(self, serve: Serve) -> None:
        assert serve(HELLO).client().models.list().data

    def test_keys_are_not_logged(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        s = serve(HELLO, api=KEYED, fresh=True)
        secret = {"prompt": "my secret prompt", "max_tokens": 2}
        s.post("/v1/completions", secret, headers={"authorization": "Bearer sk-one"})
        s.post("/v1/completions?k=sk-one", secret, headers={"x-api-key": "sk-wrong"})
        ours = [r for r in caplog.records if r.name.startswith("onebit")]
        assert len(ours) >= 2
        said = " ".join(f"{r.getMessage()} {r.__dict__}" for r in ours)
        assert "sk-" not in said
        assert "secret" not in said

    def test_a_key_file(self, tmp_path: Any) -> None:
        path = tmp_path / "keys"
        with pytest.raises(UsageError):
            create_app(ServerState(), ApiConfig(keys_file=path))
        path.write_text("# ours\n\n")
        with pytest.raises(UsageError):
            create_app(ServerState(), ApiConfig(keys_file=path))


class TestBrowsers:
    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""]
    )
    def test_a_foreign_host(self, serve: Serve, host: str) -> None:
        s = serve(HELLO)
        for path in ("/health", "/v1/models"):
            reply = s.http.get(path, headers={"host": host})
            assert reply.status_code == 403
            assert reply.json()["error"]["type"] == "permission_error"

    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "localhost", "localhost:9", "[::1]:9", "127.8.8.8", "a.localhost"]
    )
    def test_a_host_of_this_machine(self, serve: Serve, host: str) -> None:
        assert serve(HELLO).http.get("/health", headers={"host": host}).status_code == 200

    @pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://evil.localhost.x"])
    def test_a_foreign_origin(self, serve: Serve, origin: str) -> None:
        s = serve(HELLO)
        reply = s.post("/v1/completions", {"prompt": "x"}, headers={"origin": origin})
        assert reply.status_code == 403
        preflight = s.http.options(
            "/v1/completions",
            headers={"origin": origin, "access-control-request-method": "POST"},
        )
        assert preflight.status_code == 403
        assert "access-control-allow-origin" not in preflight.headers

    def test_a_local_origin(self, serve: Serve) -> None:
        headers = {"origin": "http://localhost:3000"}
        reply = serve(HELLO).http.get("/v1/models", headers=headers)
        assert reply.status_code == 200
        assert "access-control-allow-origin" not in reply.headers

    def test_a_listed_origin(self, serve: Serve) -> None:
        s = serve(HELLO, api={"cors_origins": ("https://ui.example",), **KEYED})
        headers = {"origin": "https://ui.example"}
        preflight = s.http.options(
            "/v1/completions", headers={**headers, "access-control-request-method": "POST"}
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://ui.example"
        reply = s.http.get("/v1/models", headers={**headers, "x-api-key": "sk-one"})
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == "https://ui.example"
        assert s.http.get("/v1/models", headers=headers).status_code == 401

    def test_what_counts_as_loopback(self) -> None:
        assert all(map(is_loopback, ["127.0.0.1", "::1", "localhost", "127.1.2.3"]))
        assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.0.1", "example.org", ""]))


class TestBodies:
    @pytest.mark.parametrize("depth", [3_000, 100_000])
    @pytest.mark.parametrize("name", ["tools", "ignored"])
    def test_deep_nesting(self, serve: Serve, depth: int, name: str) -> None:
        s = serve(HELLO)
        head = json.dumps({"messages": USER})[:-1]
        body = f'{head}, "{name}": {"[" * depth}{"]" * depth}}}'
        reply = s.http.post("/v1/chat/completions", content=body)
        assert reply.status_code == 400
        assert "nested" in reply.json()["error"]["message"]
        alive(s)

    def test_brackets_in_text_do_not_nest(self, serve: Serve) -> None:
        s = serve(HELLO)
        text = '[{"\\' * 400
        assert s.post("/v1/completions", {"prompt": text, "max_tokens": 1}).status_code == 200

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"  ",
            b"{",
            b"[]",
            b"null",
            b'"x"',
            b'{"prompt": "x"} junk',
            b'{"prompt": "x", "prompt": "y"}',
            b'{"prompt": "\\ud83d"}',
            b'{"prompt": "\\ude00\\ud83d"}',
            b'{"\\ud83d": 1, "prompt": "x"}',
            b'{"prompt": "\xff"}',
            b"\xff\xfe",
            b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        ],
    )
    def test_broken(self, serve: Serve, body: bytes) -> None:
        s = serve(HELLO)
        reply = s.http.post("/v1/completions", content=body)
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert "\ufffd" not in error["message"]
        alive(s)

    def test_paired_surrogates(self, serve: Serve) -> None:
        s = serve(HELLO)
        reply = s.http.post(
            "/v1/completions", content=b'{"prompt": "\\ud83d\\ude00", "max_tokens": 1}'
        )
        assert reply.json()["usage"]["prompt_tokens"] == 5

    def test_duplicate_messages(self, serve: Serve) -> None:
        raw = '{"messages": [{"role": "user", "content": "a"}], "messages": []}'
        reply = serve(HELLO).http.post("/v1/chat/completions", content=raw)
        assert reply.json()["error"]["code"] == "duplicate_key"

    def test_an_announced_size(self, serve: Serve) -> None:
        """Refused before a byte of the body is there."""
        s = serve(HELLO)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1%s\r\n\r\n"
        head %= b"0" * 10
        begun = time.monotonic()
        got = raw_request(s, head)
        assert got.startswith(b"HTTP/1.1 413 ")
        assert time.monotonic() - begun < 1
        assert b'"code":"body_too_large"' in got
        alive(s)

    def test_a_chunked_body_without_end(self, serve: Serve) -> None:
        s = serve(HELLO, api={"max_body": 100_000})

        def chunks() -> Any:
            for _ in range(16_384):
                yield b"x" * 65_536

        try:
            reply = s.http.post("/v1/completions", content=chunks())
            assert reply.status_code == 413
        except httpx.WriteError:  # the server closed while the body was still being sent
            pass
        alive(s)

    def test_a_slow_body(self, serve: Serve) -> None:
        s = serve(HELLO, api={"body_timeout": 0.3})
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
        got = raw_request(s, head)
        assert got.startswith(b"HTTP/1.1 408 ")
        alive(s)

    def test_expect_continue(self, serve: Serve) -> None:
        s = serve(HELLO)
        body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        with socket.create_connection(("127.0.0.1", s.port), 5) as sock:
            sock.sendall(head)
            assert sock.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n")
            sock.sendall(body)
            assert b" 200 OK" in sock.recv(65536)


class TestHeads:
    def test_too_large(self, serve: Serve) -> None:
        s = serve(HELLO)
        got = raw_request(s, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        assert got.startswith(b"HTTP/1.1 431 ")
        alive(s)

    def test_too_slow(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("onebit.server.protocol.HEAD_SECONDS", 0.2)
        s = serve(HELLO)
        begun = time.monotonic()
        assert raw_request(s, b"GET /health HTTP/1.1\r\nHost: ") == b""
        assert time.monotonic() - begun < 2

    def test_silent_connections_end(self, serve: Serve) -> None:
        s = serve(HELLO, api={"idle_timeout": 1})
        begun = time.monotonic()
        assert raw_request(s, b"") == b""
        assert time.monotonic() - begun < 3

    def test_no_http(self, serve: Serve) -> None:
        s = serve(HELLO)
        got = raw_request(s, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 400 ")
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


class TestFrameworkErrors:
    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/nope", 404),
            ("POST", "/v1/nope", 404),
            ("GET", "/v1/completions", 405),
            ("PUT", "/v1/completions", 405),
            ("POST", "/health", 405),
            ("GET", "/v1/models/%00", 404),
            ("POST", "/slots/x", 404),
        ],
    )
    def test_shape(self, serve: Serve, method: str, path: str, status: int) -> None:
        reply = serve(HELLO).http.request(method, path)
        assert reply.status_code == status
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}

    def test_an_unexpected_error(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        s = serve(HELLO)

        def fail(*_: object) -> None:
            raise RuntimeError("/secret/path")

        monkeypatch.setattr("onebit.server.routes_generate.chat_job", fail)
        reply = s.post("/v1/chat/completions", {"messages": USER})
        assert reply.status_code == 500
        assert reply.json()["error"]["type"] == "server_error"
        assert "secret" not in reply.text
        assert "Traceback" not in reply.text

    @pytest.mark.parametrize(
        "path",
        [
            "/v1/embeddings",
            "/embeddings",
            "/v1/rerank",
            "/infill",
            "/v1/messages",
            "/slots/0?action=erase",
        ],
    )
    def test_not_supported_by_name(self, serve: Serve, path: str) -> None:
        reply = serve(HELLO).post(path, {"input": "x", "documents": ["a"]})
        assert reply.status_code == 501
        assert reply.json()["error"]["type"] == "not_supported_error"
        if "slots" in path:
            assert "--slot-save-path" in reply.json()["error"]["message"]


class TestRequestId:
    def test_in_every_reply(self, serve: Serve) -> None:
        s = serve(HELLO, api=KEYED)
        seen = {s.http.get(p).headers["x-request-id"] for p in ("/health", "/v1/models", "/nope")}
        assert len(seen) == 3

    def test_a_callers_own(self, serve: Serve) -> None:
        s = serve(HELLO)
        own = s.http.get("/health", headers={"x-request-id": "abc-1"})
        assert own.headers["x-request-id"] == "abc-1"
        bad = s.http.get("/health", headers={"x-request-id": "a b\tc"})
        assert bad.headers["x-request-id"] != "a b\tc"
