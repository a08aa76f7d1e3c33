"""What the server serves: nothing yet, a model, or a failure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from onebit.engine import Engine
from onebit.findings import Finding
from onebit.plan import Plan
from onebit.server.errors import ApiError, loading_error
from onebit.server.grammar import GrammarMaker
from onebit.text import TextModel


@dataclass(frozen=True)
class ServedModel:
    """A loaded model, ready to answer. Its engine runs; its maker closes everything."""

    model_id: str
    """Name under which it is served, in every reply."""
    plan: Plan
    text: TextModel
    engine: Engine
    aliases: tuple[str, ...] = ()
    """Other names that requests may use."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """For /health and the log: route, device, kernels, numerics and the like; JSON values."""
    path: str = ""
    """The model as its user named it; shown by /props."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a request may use."""
        return (self.model_id, *self.aliases)


class ServerState:
    """Shared by the routes. The setters may be called from any thread."""

    def __init__(self) -> None:
        self._served: ServedModel | None = None
        self.progress: float = 0.0
        """Part of the loading that is done, 0 to 1."""
        self.doing: str = "starting"
        """What the loading is at."""
        self.failure: tuple[Finding, ...] = ()
        self.draining = False
        self.started = time.time()
        self.grammar: GrammarMaker | None = None
        # Templates are rendered one after the other, off the event loop.
        self.renderer = ThreadPoolExecutor(1, "onebit-template")
        # Long texts are tokenised off the event loop.
        self.workers = ThreadPoolExecutor(2, "onebit-text")

    @property
    def served(self) -> ServedModel | None:
        """The loaded model, once loading has finished."""
        return self._served

    def set_progress(self, done: float, doing: str) -> None:
        """Say how far the loading has come."""
        self.progress, self.doing = min(max(done, 0.0), 1.0), doing

    def set_served(self, served: ServedModel) -> None:
        """Begin to answer requests."""
        self.grammar = GrammarMaker(served.text)
        self._served = served

    def set_failure(self, findings: tuple[Finding, ...]) -> None:
        """Say that loading failed; the server is about to end."""
        self.failure = findings

    def require(self) -> ServedModel:
        """Return the loaded model.

        Raises:
            ApiError: 503, still loading or shutting down.
        """
        if self.draining:
            raise ApiError(
                503,
                "The server is shutting down.",
                code="shutting_down",
                headers={"retry-after": "1"},
            )
        if self._served is None:
            raise loading_error()
        return self._served

    def close(self) -> None:
        """Free the threads. The model belongs to its maker."""
        self.renderer.shutdown(wait=False, cancel_futures=True)
        self.workers.shutdown(wait=False, cancel_futures=True)
