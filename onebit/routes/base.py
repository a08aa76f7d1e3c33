"""The `Route` protocol."""

from __future__ import annotations

from typing import Protocol

from onebit.config import RouteName
from onebit.routes.request import Request, Verdict
from onebit.routes.resolution import Resolution


class Route(Protocol):
    """One way to serve a model."""

    name: RouteName

    def examine(self, request: Request) -> Verdict:
        """Say whether this route takes the model. Quick: names of files and config.json only."""
        ...

    def resolve(self, request: Request) -> Resolution:
        """Decide everything about a model that this route takes.

        Raises:
            Refusal: the model cannot be served as it was asked; every finding at once.
        """
        ...
