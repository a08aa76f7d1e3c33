"""What `serve`, `forward-serve` and `demo` share: resolve, take the port, load, answer."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from onebit.cli.logs import set_up_logs
from onebit.cli.output import ProgressBar, say, show_findings
from onebit.cli.port import bind, check_public, listen, url_of
from onebit.cli.ready import process_age, ready_line
from onebit.config import LoadedConfig
from onebit.findings import Finding, OnebitError, Severity, error

if TYPE_CHECKING:
    from onebit.engine import Engine
    from onebit.routes import Resolution, Session, World
    from onebit.server import ServerState

log = logging.getLogger("onebit.serve")


def serve(
    loaded: LoadedConfig,
    machine: Callable[[], World],
    *,
    on_ready: Callable[[str, str], None] | None = None,
) -> int:
    """Serve a model until a signal ends it; returns the exit status.

    A busy port is found first, then everything that can be refused is refused; only then does
    the port answer (503) while the weights are loaded.

    Args:
        loaded: The config.
        machine: Gives the machine to serve on.
        on_ready: Told the model's name and the URL once requests are answered.

    Raises:
        OnebitError: a refusal, or a port that is taken.
    """
    set_up_logs(loaded.config.logging)
    sock = bind(loaded)
    try:
        check_public(loaded, sock)
        # The server's libraries take a fifth of the start to import; resolving needs none of them.
        threading.Thread(target=import_module, args=("onebit.server",), daemon=True).start()
        from onebit.routes import resolve

        resolution = resolve(loaded, machine())
        if loaded.config.api.keys_file is not None:
            import_module("onebit.server.keys").api_keys(loaded.config.api)
        listen(loaded, sock)
        return _serve(_Loading(loaded, resolution, url_of(sock), on_ready), sock)
    finally:
        sock.close()


def _serve(loading: _Loading, sock: socket.socket) -> int:
    loading.thread.start()
    from onebit.server import run_server

    try:
        status = run_server(loading.state, loading.loaded.config, sock, failed=loading.failed)
    finally:
        loading.close()
    show_findings(loading.findings)
    return 1 if loading.findings else status


class _Loading:
    """Loads the model in a thread of its own and tells the server how it goes."""

    def __init__(
        self,
        loaded: LoadedConfig,
        resolution: Resolution,
        url: str,
        on_ready: Callable[[str, str], None] | None,
    ) -> None:
        from onebit.server import ServerState

        self.loaded, self.resolution, self.url = loaded, resolution, url
        self.on_ready = on_ready
        self.state: ServerState = ServerState()
        self.findings: tuple[Finding, ...] = ()
        self.failed = threading.Event()
        self.session: Session | None = None
        self.engine: Engine | None = None
        self.thread = threading.Thread(target=self.run, name="onebit-load", daemon=True)

    def run(self) -> None:
        try:
            self.say_ready(self.load())
        except OnebitError as problem:
            self.fail(problem.findings)
        except Exception as problem:
            what = f"internal error while loading: {type(problem).__name__}: {problem}"
            self.fail((error("serve.internal", what, "report this as a bug in onebit"),))

    def fail(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        self.state.set_failure(findings)
        self.failed.set()

    def load(self) -> Session:
        from onebit.engine import Engine
        from onebit.server import ServedModel

        with ProgressBar() as bar:

            def progress(doing: str, done: int, total: int) -> None:
                self.state.set_progress(done / total if total else 0.0, doing)
                bar(doing, done, total)

            session = self.session = self.resolution.open(progress)
        device = session.resolution.device
        log.info("device %s: %s", session.program.info.device, device.why)
        for finding in session.resolution.findings:
            if finding.severity is Severity.WARNING:
                log.warning("%s", finding)
        engine = Engine(session.program, session.limits, eos=session.plan.tokens.eos)
        engine.start()
        self.engine = engine
        self.state.set_served(
            ServedModel(
                model_id=session.resolution.name,
                plan=session.plan,
                text=session.text,
                engine=engine,
                facts=session.facts,
                path=str(self.loaded.config.model),
            )
        )
        return session

    def say_ready(self, session: Session) -> None:
        name, logs = session.resolution.name, self.loaded.config.logging
        say(ready_line(logs, name, session.facts, self.url, process_age()))
        if self.on_ready is not None:
            self.on_ready(name, self.url)

    def close(self) -> None:
        """Free what was loaded. A load that still runs ends with the process."""
        if self.engine is not None:
            self.engine.close()
        if self.session is not None:
            self.session.close()
        self.state.close()
