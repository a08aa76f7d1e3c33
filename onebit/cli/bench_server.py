"""Measures a server through HTTP: start to ready, requests side by side, memory."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Any

from onebit.cli.bench_program import memory_of
from onebit.findings import DeviceError, error

READY_SECONDS = 300
REQUEST_SECONDS = 600
PROMPT_TOKENS = 32
"""Length of each of the prompts that run side by side."""
LONG_PROMPT = 512
ANSWER_TOKENS = 64


@dataclass(frozen=True, slots=True)
class ServerSpeed:
    """What one server reached."""

    ready: float
    """Seconds from the start of the process until /health answered 200."""
    first_token: float
    """Seconds of a request for one token after a long prompt."""
    total: dict[int, float]
    """Requests at once -> completion tokens per second, all together."""
    anonymous: int
    """Anonymous resident bytes after the long prompt."""


class Server:
    """A server process on a port of its own, from start to end."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Start it. `{port}` in an argument becomes the port."""
        self.port = _free_port()
        self._argv = [part.replace("{port}", str(self.port)) for part in argv]
        self._begun = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603 - the user names the program
            self._argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_ready(self) -> float:
        """Return the seconds from the process's start until it was ready.

        Raises:
            DeviceError: it ended, or took too long.
        """
        while time.monotonic() - self._begun < READY_SECONDS:
            if self._process.poll() is not None:
                raise self._failed(f"ended with status {self._process.returncode}")
            try:
                if self._ask("GET", "/health", None)[0] == 200:
                    return time.monotonic() - self._begun
            except (OSError, HTTPException):  # not listening yet
                pass
            time.sleep(0.01)
        raise self._failed(f"was not ready within {READY_SECONDS} s")

    def complete(self, prompt: list[int], tokens: int) -> int:
        """Return how many tokens a greedy completion of `prompt` gave."""
        body = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": False,
        }
        status, reply = self._ask("POST", "/v1/completions", body)
        if status != 200:
            raise self._failed(f"answered {status}: {json.dumps(reply)[:300]}")
        return int(reply["usage"]["completion_tokens"])

    @property
    def memory(self) -> dict[str, int]:
        """Memory of the process now, in bytes."""
        return memory_of(self._process.pid)

    def _ask(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_SECONDS)
        try:
            headers = {"Content-Type": "application/json"}
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, headers)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read() or b"null")
        finally:
            connection.close()

    def _failed(self, what: str) -> DeviceError:
        command = " ".join(self._argv)
        return DeviceError(error("bench.server", f"{what}: {command}", "run the command by hand"))


def measure_server(argv: Sequence[str], vocab: int, requests: Sequence[int]) -> ServerSpeed:
    """Start a server, measure it, stop it.

    Args:
        argv: Its command line.
        vocab: Prompts are random ids below this.
        requests: Numbers of requests to run at once.
    """
    source = random.Random(0)  # noqa: S311 - prompts, not secrets

    def prompt(tokens: int) -> list[int]:
        return [source.randrange(vocab // 2) for _ in range(tokens)]

    with Server(argv) as server:
        ready = server.wait_ready()
        server.complete(prompt(PROMPT_TOKENS), 4)
        begun = time.perf_counter()
        server.complete(prompt(LONG_PROMPT), 1)
        first_token = time.perf_counter() - begun
        anonymous = server.memory["anonymous"]
        total = {}
        for count in requests:
            prompts = [prompt(PROMPT_TOKENS) for _ in range(count)]
            with ThreadPoolExecutor(count) as pool:
                begun = time.perf_counter()
                made = sum(pool.map(lambda p: server.complete(p, ANSWER_TOKENS), prompts))
                total[count] = made / (time.perf_counter() - begun)
    return ServerSpeed(ready, first_token, total, anonymous)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
