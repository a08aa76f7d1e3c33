"""Runs the application on a socket until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from onebit.config import ServeConfig
from onebit.server.app import create_app
from onebit.server.protocol import LimitedProtocol
from onebit.server.state import ServerState

log = logging.getLogger("onebit.server")

CLOSE_SECONDS = 2
"""After the engine has ended, replies get this long to be written out."""


def run_server(
    state: ServerState,
    config: ServeConfig,
    sock: socket.socket,
    *,
    failed: threading.Event | None = None,
) -> int:
    """Answer requests on a listening socket until SIGTERM or SIGINT, or a failed load.

    The first signal stops admission, lets running answers finish within `shutdown.grace` and
    ends the rest with a clear error; a second one ends the process at once with status 1.

    Args:
        state: What is served; may be set while this runs.
        config: `api`, `host` and `shutdown` are read.
        sock: Bound and listening; closed at the end.
        failed: Set when loading has failed for good.

    Returns:
        The exit status: 0 after a signal, 1 after a failed load.

    Raises:
        UsageError: the key file cannot be read.
    """
    server = make_server(state, config, failed)
    server.run(sockets=[sock])
    return 1 if server.failed.is_set() else 0


def make_server(
    state: ServerState, config: ServeConfig, failed: threading.Event | None = None
) -> Server:
    """Return a server that has not started. See `run_server`.

    Raises:
        UsageError: the key file cannot be read.
    """
    settings = uvicorn.Config(
        create_app(state, config.api, host=config.host),
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        loop="uvloop",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=math.ceil(config.api.idle_timeout),
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    return Server(settings, state, config.shutdown.grace, failed or threading.Event())


class Server(uvicorn.Server):
    """uvicorn's server with onebit's way to end.

    Args:
        config: uvicorn's settings.
        state: What is served.
        grace: Seconds that running answers get.
        failed: Set when loading has failed.
    """

    def __init__(
        self, config: uvicorn.Config, state: ServerState, grace: float, failed: threading.Event
    ) -> None:
        super().__init__(config)
        self.state = state
        self.grace = grace
        self.failed = failed
        self.loop: asyncio.AbstractEventLoop
        """The loop that it runs in, once it has started."""
        self._ending: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `startup`: uvicorn would raise them again at the end."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen; take the signals when this is the main thread."""
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self.loop.add_signal_handler(number, self._signalled)

    async def on_tick(self, counter: int) -> bool:
        """Look ten times a second whether to go on."""
        return self.failed.is_set() or await super().on_tick(counter)

    def end(self) -> None:
        """Begin to end: no new requests, running ones get their grace. Call in the loop."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    def _signalled(self) -> None:
        if self._ending is not None:
            log.warning("second signal: ending at once")
            logging.shutdown()
            os._exit(1)
        log.info("signal: finishing what runs, at most %g s", self.grace)
        self.end()

    async def _end(self) -> None:
        self.state.draining = True
        served = self.state.served
        if served is not None:
            finished = await asyncio.to_thread(served.engine.drain, self.grace)
            if not finished:
                log.warning("some answers were ended before they had finished")
        self.should_exit = True
