"""Loading, draining and signals. Case L04; sections 1 and 2 of the child contract."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from onebit.devices.null import NullScript, emit
from onebit.findings import error
from onebit.server import ServedModel
from tests.api.conftest import Running, Serve, ids
from tests.fixtures.tiny_text import END, tiny_plan

USER = [{"role": "user", "content": "hi"}]
HELLO = NullScript(next_token=emit(ids("Hello"), END))
SLOW = NullScript(next_token=emit(ids("abc ")), seconds_per_step=0.02)


def served(s: Running) -> ServedModel:
    return ServedModel("T0", tiny_plan(), s.text, s.engine, (), {"device": "null"})


class TestLoading:
    def test_503_until_a_token_can_be_made(self, serve: Serve) -> None:
        s = serve(HELLO, loaded=False, fresh=True)
        s.state.set_progress(0.4, "mapping the container")
        health = s.http.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "loading"
        assert health.json()["progress"] == {"done": 0.4, "doing": "mapping the container"}
        for reply in (
            s.http.get("/v1/models"),
            s.http.get("/props"),
            s.post("/v1/chat/completions", {"messages": USER}),
            s.post("/v1/completions", {"prompt": "x", "stream": True}),
        ):
            assert reply.status_code == 503
            assert reply.headers["retry-after"] == "1"
            assert reply.json()["error"]["type"] == "unavailable_error"
        assert s.http.get("/metrics").status_code == 200
        s.state.set_served(served(s))
        assert s.http.get("/health").json()["status"] == "ok"
        reply = s.post("/v1/completions", {"prompt": "x", "temperature": 0})
        assert reply.json()["choices"][0]["text"] == "Hello"

    def test_a_failed_load_ends_the_server(self, serve: Serve) -> None:
        s = serve(HELLO, loaded=False, fresh=True)
        s.state.set_failure((error("test.broken", "it is broken", "mend it"),))
        assert s.http.get("/health").status_code == 503
        s.http.close()
        s.server.failed.set()
        s.thread.join(2)
        assert not s.thread.is_alive()

    def test_a_dead_engine_shows(self, serve: Serve) -> None:
        s = serve(NullScript(dead_from=1), fresh=True)
        assert s.post("/v1/completions", {"prompt": "x", "max_tokens": 5}).status_code == 503
        health = s.http.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "failed"


class TestHealthUnderLoad:
    def test_it_answers_within_100_ms(self, serve: Serve) -> None:
        s = serve(NullScript(seconds_per_row=0.001), context=8192, fresh=True)
        stop = threading.Event()

        def load() -> None:
            with httpx.Client(base_url=s.url, timeout=60) as client:
                count = 0
                while not stop.is_set():
                    count += 1
                    body = {"prompt": f"{count} " + "word " * 600, "max_tokens": 4}
                    assert client.post("/v1/completions", json=body).status_code == 200

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        times = []
        for _ in range(40):
            begun = time.monotonic()
            assert s.http.get("/health").status_code == 200
            times.append(time.monotonic() - begun)
            time.sleep(0.02)
        stop.set()
        for thread in threads:
            thread.join()
        assert sorted(times)[35] < 0.1

    def test_a_template_that_never_ends_harms_nobody_else(self, serve: Serve) -> None:
        """Case X01: a budget error within 1 s of processor time while other requests flow."""
        loops = "".join("{% for " + c + " in range(999) %}" for c in "abc")
        template = (
            "{% if messages[0].content == 'go' %}" + loops + "{% endfor %}" * 3 + "{% endif %}ok"
        )
        s = serve(HELLO, template=template)
        replies: list[httpx.Response] = []
        body = {"messages": [{"role": "user", "content": "go"}]}
        bad = threading.Thread(
            target=lambda: replies.append(httpx.post(f"{s.url}/v1/chat/completions", json=body))
        )
        begun = time.monotonic()
        bad.start()
        waits = list[float]()
        while bad.is_alive():
            asked = time.monotonic()
            reply = s.post("/v1/completions", {"prompt": "x", "temperature": 0})
            assert reply.json()["choices"][0]["text"] == "Hello"
            waits.append(time.monotonic() - asked)
        # Bounds for a busy machine; on an idle one the template ends after 0.4 s.
        assert time.monotonic() - begun < 4
        assert len(waits) >= 3
        assert sorted(waits)[len(waits) // 2] < 0.5
        assert replies[0].status_code == 400
        assert replies[0].json()["error"]["code"] == "template_budget"
        good = s.post("/v1/chat/completions", {"messages": USER, "temperature": 0})
        assert good.json()["choices"][0]["message"]["content"] == "Hello"


class TestDrain:
    def read(self, s: Running, body: dict[str, Any], out: list[str]) -> None:
        with httpx.stream("POST", f"{s.url}/v1/completions", json=body, timeout=30) as reply:
            for line in reply.iter_lines():
                if line:
                    out.append(line.removeprefix("data: "))

    def begin(self, s: Running, tokens: int) -> tuple[threading.Thread, list[str]]:
        out: list[str] = []
        body = {"prompt": "x", "temperature": 0, "max_tokens": tokens, "stream": True}
        reader = threading.Thread(target=self.read, args=(s, body, out))
        reader.start()
        while not out:
            time.sleep(0.005)
        return reader, out

    def end(self, s: Running) -> None:
        s.server.loop.call_soon_threadsafe(s.server.end)

    def test_a_running_stream_finishes(self, serve: Serve) -> None:
        s = serve(SLOW, fresh=True)
        reader, out = self.begin(s, 50)
        self.end(s)
        time.sleep(0.1)
        assert httpx.get(f"{s.url}/health").status_code == 503
        refused = httpx.post(f"{s.url}/v1/completions", json={"prompt": "y"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        reader.join(10)
        assert out[-1] == "[DONE]"
        assert json.loads(out[-2])["choices"][0]["finish_reason"] == "length"
        s.thread.join(5)
        assert not s.thread.is_alive()

    def test_what_takes_longer_than_the_grace_is_told(self, serve: Serve) -> None:
        s = serve(SLOW, fresh=True, grace=0.2)
        reader, out = self.begin(s, 3000)
        begun = time.monotonic()
        self.end(s)
        reader.join(10)
        s.thread.join(5)
        assert time.monotonic() - begun < 2
        assert json.loads(out[-1])["error"]["code"] == "shutting_down"
        assert not any('"finish_reason":"' in line for line in out)


PROGRAM = """
import json, socket, sys, time
from onebit.config import ServeConfig
from onebit.config.shutdown import ShutdownConfig
from onebit.devices.base import ProgramOptions
from onebit.devices.null import NullScript, emit, open_null
from onebit.engine import Engine
from onebit.server import ServedModel, ServerState, run_server
from onebit.text import load_text
from tests.fixtures.tiny_text import VOCAB, tiny_plan

directory, fd, grace, load = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
plan = tiny_plan()
text = load_text(directory, plan)
script = NullScript(next_token=emit(list(b"abc ")), seconds_per_step=0.02)
program = open_null(VOCAB, ProgramOptions(context=4096, pages=300, max_rows=300), script)
engine = Engine(program, eos=plan.tokens.eos)
engine.start()
state = ServerState()
if load == "yes":
    state.set_served(ServedModel("T0", plan, text, engine))
config = ServeConfig(shutdown=ShutdownConfig(grace=grace))
status = run_server(state, config, socket.socket(fileno=fd))
engine.close()
text.close()
state.close()
sys.exit(status)
"""


class Child:
    """The server in a process of its own, as a supervisor starts it."""

    def __init__(self, directory: Path, grace: float, load: str) -> None:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.listen(64)
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(directory), str(sock.fileno()), str(grace), load],
            pass_fds=[sock.fileno()],
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        )
        sock.close()
        self.wait(200 if load == "yes" else 503)

    def wait(self, status: int) -> None:
        for _ in range(600):
            assert self.process.poll() is None
            try:
                if httpx.get(f"{self.url}/health", timeout=1).status_code == status:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise AssertionError("not ready")

    def stream(self) -> tuple[threading.Thread, list[str]]:
        out: list[str] = []

        def read() -> None:
            body = {"prompt": "x", "stream": True, "temperature": 0}
            try:
                with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=30) as r:
                    out.extend(line for line in r.iter_lines() if line)
            except httpx.HTTPError:
                out.append("broken")

        thread = threading.Thread(target=read)
        thread.start()
        while True:
            text = httpx.get(f"{self.url}/metrics").text
            if "onebit_engine_running 1.0" in text:
                return thread, out
            time.sleep(0.01)


@pytest.fixture
def child(tmp_path: Path, serve: Serve) -> Iterator[Any]:
    from tests.fixtures.tiny_text import write_text_files

    directory = write_text_files(tmp_path / "model")
    children: list[Child] = []

    def start(grace: float = 4.0, load: str = "yes") -> Child:
        children.append(Child(directory, grace, load))
        return children[-1]

    yield start
    for one in children:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_idle(self, child: Any, number: int) -> None:
        c = child()
        helpers = psutil.Process(c.process.pid).children()
        begun = time.monotonic()
        c.process.send_signal(number)
        assert c.process.wait(5) == 0
        assert time.monotonic() - begun < 2
        psutil.wait_procs(helpers, timeout=3)
        assert not any(h.is_running() for h in helpers)

    def test_with_a_stream(self, child: Any) -> None:
        c = child(grace=0.5)
        thread, out = c.stream()
        c.process.send_signal(signal.SIGTERM)
        assert c.process.wait(5) == 0
        thread.join(5)
        assert "shutting_down" in out[-1]

    def test_while_loading(self, child: Any) -> None:
        c = child(load="no")
        c.process.send_signal(signal.SIGTERM)
        assert c.process.wait(3) == 0

    def test_a_second_one_ends_at_once(self, child: Any) -> None:
        c = child(grace=30)
        thread, _out = c.stream()
        c.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        begun = time.monotonic()
        c.process.send_signal(signal.SIGTERM)
        assert c.process.wait(5) == 1
        assert time.monotonic() - begun < 1
        thread.join(5)

    def test_no_helper_outlives_a_killed_server(self, child: Any) -> None:
        c = child()
        helpers = psutil.Process(c.process.pid).children(recursive=True)
        assert helpers
        c.process.kill()
        c.process.wait()
        gone, alive = psutil.wait_procs(helpers, timeout=3)
        assert not alive
        assert len(gone) == len(helpers)
