"""How a program's process and the server talk: messages on a socket, arrays in shared memory.

Messages are JSON objects, one a line. A step's rows and logits lie in an anonymous memory file
that both map, so nothing large is copied; it goes when both ends are gone.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import socket
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.devices.base import ProgramOptions, StepBatch

Message = dict[str, Any]
_ALIGN = 64


class Link:
    """One end of the socket. `receive` is for one thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._held = bytearray()
        # poll, not select: a busy server's descriptors go beyond 1024.
        self._readable = select.poll()
        self._readable.register(end, select.POLLIN)

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            OSError: the other end is gone.
        """
        self._end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout: float) -> Message | None:
        """Return the next message, or None when none came within `timeout` seconds.

        Raises:
            EOFError: the other end is gone.
        """
        until = time.monotonic() + timeout
        while b"\n" not in self._held:
            left = until - time.monotonic()
            if not self._readable.poll(max(left, 0) * 1000):
                return None
            try:
                piece = self._end.recv(1 << 16)
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise EOFError
            self._held += piece
        line, _, rest = self._held.partition(b"\n")
        self._held = rest
        message: Message = json.loads(line)
        return message

    def close(self) -> None:
        """Close this end."""
        self._end.close()


class StepMemory:
    """A step's rows, logits and the worker's heartbeat, seen by both processes."""

    def __init__(self, descriptor: int, options: ProgramOptions, vocab: int) -> None:
        """Map the memory file; see `create`."""
        self.descriptor = descriptor
        self._width = -(-options.context // options.page_size)
        rows = options.max_rows
        sizes = [
            8,
            4 * rows,
            4 * rows,
            4 * rows,
            4 * rows,
            4 * rows * self._width,
            4 * rows * vocab,
        ]
        places, at = [], 0
        for size in sizes:
            places.append(at)
            at += -(-size // _ALIGN) * _ALIGN
        os.ftruncate(descriptor, at)
        memory = mmap.mmap(descriptor, at)

        def array(index: int, dtype: type[np.generic]) -> NDArray[Any]:
            count = sizes[index] // np.dtype(dtype).itemsize
            return np.frombuffer(memory, dtype, count, places[index])

        self._beat: NDArray[np.int64] = array(0, np.int64)
        self._rows: list[NDArray[np.int32]] = [array(i, np.int32) for i in range(1, 5)]
        self._tables: NDArray[np.int32] = array(5, np.int32)
        self._logits: NDArray[np.float32] = array(6, np.float32).reshape(rows, vocab)

    @classmethod
    def create(cls, options: ProgramOptions, vocab: int) -> StepMemory:
        """Make a new memory file; pages are taken only when touched."""
        return cls(os.memfd_create("onebit-step", os.MFD_CLOEXEC), options, vocab)

    @property
    def beat(self) -> int:
        """How often the worker said that it goes on."""
        return int(self._beat[0])

    def touch(self) -> None:
        """Say that the worker goes on."""
        self._beat[0] += 1

    def write(self, batch: StepBatch) -> Message:
        """Put a batch into the memory and return the message that describes it."""
        arrays = (batch.tokens, batch.positions, batch.sequences, batch.logits_for)
        for place, values in zip(self._rows, arrays, strict=True):
            place[: values.size] = values
        sequences, width = batch.page_tables.shape
        self._tables[: sequences * width] = batch.page_tables.reshape(-1)
        return {
            "step": [batch.tokens.size, batch.logits_for.size, sequences, width],
        }

    def read(self, message: Message) -> StepBatch:
        """Return the batch that a message describes; views of the memory."""
        rows, wanted, sequences, width = message["step"]
        tokens, positions, indexes, logits_for = self._rows
        return StepBatch(
            tokens=tokens[:rows],
            positions=positions[:rows],
            sequences=indexes[:rows],
            page_tables=self._tables[: sequences * width].reshape(sequences, width),
            logits_for=logits_for[:wanted],
        )

    def answer(self, logits: NDArray[np.float32]) -> None:
        """Put a step's logits into the memory."""
        self._logits[: len(logits)] = logits

    def logits(self, count: int) -> NDArray[np.float32]:
        """Return the first `count` rows of logits, valid until the next step."""
        return self._logits[:count]

    def close(self) -> None:
        """Close the descriptor; the mapping goes with its last view."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
