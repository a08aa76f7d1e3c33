"""A chat template, rendered in a process of its own. See `render_worker`."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WALL_SECONDS = 2.0
"""Longest wait for one render; the worker limits its own processor time well below."""
START_SECONDS = 20.0
"""Longest wait for a fresh worker: it has to import Jinja, maybe on a busy machine."""


class TemplateError(Exception):
    """A template did not render.

    `kind`: `syntax`, `refused` (it called raise_exception), `security`, `budget` or `failed`.
    """

    def __init__(self, kind: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.line = line


class ChatTemplate:
    """A compiled chat template. Thread-safe: renders run one after the other.

    Raises:
        TemplateError: (constructor) the template is not valid Jinja.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.variables: frozenset[str] = frozenset(self._start()["variables"])
            """Names that the template reads and does not set itself."""
        except TemplateError:
            self._stop()
            raise

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the prompt.

        Raises:
            TemplateError: the template refused, failed or ran out of its budget.
        """
        request = json.dumps({"variables": dict(variables)}).encode() + b"\n"
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            text = self._ask(request, WALL_SECONDS)["text"]
            assert isinstance(text, str)
            return text

    def close(self) -> None:
        """End the worker. Safe to call twice; a later render starts a new one."""
        with self._lock:
            self._stop()

    def _start(self) -> dict[str, Any]:
        self._stop()
        worker = Path(__file__).with_name("render_worker.py")
        self._process = subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, "-P", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        return self._ask(json.dumps({"template": self.source}).encode() + b"\n", START_SECONDS)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()

    def _ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        """Send one line and return the reply; a silent or dead worker is ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            left = memoryview(request)
            while left:  # an unbuffered pipe may take a part only
                left = left[process.stdin.write(left) :]
            line = _read_line(process.stdout.fileno(), process.stdout, seconds)
        except BrokenPipeError:
            line = b""
        if not line:
            self._stop()
            raise TemplateError("budget", "it needs too much time or memory")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise TemplateError(reply["error"], reply["message"], reply.get("line"))
        return reply


def _read_line(fd: int, stream: Any, seconds: float) -> bytes:
    """Return one line from an unbuffered pipe, or b"" when none came in time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    end, parts = time.monotonic() + seconds, list[bytes]()
    while True:
        left = end - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return b""
        part = stream.read(1 << 16)
        if not part:
            return b""
        parts.append(part)
        if part.endswith(b"\n"):
            return b"".join(parts)
