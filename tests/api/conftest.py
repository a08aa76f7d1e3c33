"""A server on the null device, on a real socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from openai import OpenAI

from onebit.config import ServeConfig
from onebit.config.api import ApiConfig
from onebit.config.shutdown import ShutdownConfig
from onebit.devices.base import ProgramOptions
from onebit.devices.null import NullProgram, NullScript, open_null
from onebit.engine import Engine, EngineLimits
from onebit.server import ServedModel, Server, ServerState
from onebit.server.serve import make_server
from onebit.text import TextModel, load_text
from tests.fixtures.tiny_text import TEMPLATE, VOCAB, tiny_plan, write_text_files


@dataclass
class Running:
    """A server in a thread."""

    url: str
    port: int
    state: ServerState
    server: Server
    text: TextModel
    engine: Engine
    program: NullProgram
    thread: threading.Thread
    config: ServeConfig
    http: httpx.Client = field(init=False)
    clients: list[OpenAI] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)

    def client(self, **more: Any) -> OpenAI:
        made = OpenAI(base_url=f"{self.url}/v1", api_key="k", max_retries=0, timeout=60, **more)
        self.clients.append(made)
        return made

    def wait_idle(self) -> None:
        """Wait until no sequence runs or waits."""
        for _ in range(500):
            stats = self.engine.stats()
            if stats.running == stats.waiting == 0 and stats.finished == stats.requests:
                return
            threading.Event().wait(0.01)
        raise AssertionError(f"still busy: {self.engine.stats()}")

    def close(self) -> None:
        self.http.close()
        for client in self.clients:
            client.close()
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.engine.close()
        self.program.close()
        self.text.close()
        self.state.close()


Serve = Callable[..., Running]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start servers, one for each set of arguments; `fresh` ones are not shared by tests."""
    tmp_path = tmp_path_factory.mktemp("models")
    started: list[Running] = []
    shared: dict[str, Running] = {}

    def start(
        script: NullScript | None = None,
        *,
        api: dict[str, Any] | None = None,
        template: str | None = TEMPLATE,
        context: int = 4096,
        grace: float = 4.0,
        limits: EngineLimits | None = None,
        loaded: bool = True,
        fresh: bool = False,
        **plan: Any,
    ) -> Running:
        key = repr((script, api, template, context, grace, limits, loaded, plan))
        if not fresh and key in shared:
            return shared[key]
        directory = write_text_files(tmp_path / f"model{len(started)}", template)
        made = tiny_plan(context=context, **plan)
        text = load_text(directory, made)
        options = ProgramOptions(context=context, pages=2 * context // 32 + 64, max_rows=320)
        program = open_null(VOCAB, options, script)
        engine = Engine(program, limits or EngineLimits(), eos=made.tokens.eos)
        engine.start()
        state = ServerState()
        if loaded:
            state.set_served(
                ServedModel("T0", made, text, engine, ("alias",), {"device": "null"}, "dir/T0")
            )
        config = ServeConfig(
            api=ApiConfig(**(api or {})),
            shutdown=ShutdownConfig(grace=grace),
        )
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.listen(256)
        sock.setblocking(False)
        port = sock.getsockname()[1]
        server = make_server(state, config)
        thread = threading.Thread(target=server.run, args=([sock],), name="test-server")
        thread.start()
        while not server.started:
            threading.Event().wait(0.005)
        running = Running(
            f"http://127.0.0.1:{port}",
            port,
            state,
            server,
            text,
            engine,
            program,
            thread,
            config,
        )
        started.append(running)
        if not fresh:
            shared[key] = running
        return running

    yield start
    for running in started:
        running.close()


def ids(text: str) -> list[int]:
    """Return the tiny tokenizer's byte ids of `text`."""
    return list(text.encode())


def run_async(work: Any) -> Any:
    """Run a coroutine to its end."""
    return asyncio.run(work)
