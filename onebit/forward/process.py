"""One worker process, seen from the server: start, ask, watch, end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from onebit.findings import DeviceError, Finding
from onebit.forward.channel import Link, Message, StepMemory

log = logging.getLogger("onebit.npu")


class WorkerGone(Exception):
    """The worker ended or was ended; the text says how."""


class WorkerProcess:
    """A running worker. Start it from a thread that outlives it: it dies with that thread."""

    def __init__(
        self, memory: StepMemory, inherited: Sequence[int], threads: int, stall: float
    ) -> None:
        """Start the process.

        Args:
            memory: Shared with it.
            inherited: Descriptors to keep open in it.
            threads: Threads of its NumPy.
            stall: Seconds without a heartbeat after which it counts as hung.
        """
        self._memory, self._stall = memory, stall
        self._asking = threading.Lock()
        ours, theirs = socket.socketpair()
        self._link = Link(ours)
        ends = (theirs.fileno(), memory.descriptor)
        argv = [sys.executable, "-m", "onebit.forward.worker", *map(str, ends), str(os.getpid())]
        counts = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(threads))
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(*ends, *inherited),
            env={**os.environ, **counts},  # the worker sees what the server sees
        )
        theirs.close()
        if self._process.stdout is None:
            raise RuntimeError("the worker's output was not opened")
        relay = threading.Thread(
            target=_relay, args=(self._process.stdout,), name="onebit-npu-log", daemon=True
        )
        relay.start()

    def ask(self, message: Message) -> Message:
        """Send a message and return the reply.

        Raises:
            WorkerGone: it ended, or gave no sign of life for too long and was killed.
            WorkerFailed: it answers with findings.
        """
        try:
            with self._asking:
                self._link.send(message)
                reply = self._await()
        except (OSError, EOFError, ValueError):
            raise WorkerGone(self.wait(5)) from None
        if "error" in reply:
            findings = [Finding.model_validate(data) for data in reply["error"]]
            raise WorkerFailed(findings, broken=bool(reply.get("broken", True)))
        return reply

    def _await(self) -> Message:
        beat, seen = self._memory.beat, time.monotonic()
        while True:
            reply = self._link.receive(min(self._stall, 1.0))
            if reply is not None:
                return reply
            if self._memory.beat != beat:
                beat, seen = self._memory.beat, time.monotonic()
            elif time.monotonic() - seen >= self._stall:
                self.kill()
                what = f"no sign of life for {self._stall:g} s: it was killed"
                raise WorkerGone(what)

    def wait(self, timeout: float | None = None) -> str:
        """Wait for its end, kill it after `timeout`, and return how it ended."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it had to be killed"
        if status < 0:
            return f"ended by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def close(self, patience: float) -> None:
        """Let it end by itself within `patience` seconds, then kill it. Safe to call twice."""
        if not self._asking.acquire(timeout=patience):
            self.kill()  # whoever asks sees the end of the socket now
            self._asking.acquire()
        self._link.close()
        self._asking.release()
        self.wait(patience)

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid


class WorkerFailed(DeviceError):
    """The worker answered with findings. `broken`: it ends by itself, and its KV is lost."""

    def __init__(self, findings: Sequence[Finding], *, broken: bool) -> None:
        self.broken = broken
        super().__init__(findings)


def _relay(output: IO[bytes]) -> None:
    """Pass on what the worker and XRT print, line by line."""
    with output:
        for line in output:
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                level = logging.WARNING if "ERROR" in text else logging.INFO
                log.log(level, "NPU process: %s", text)
