"""What a route is asked: one config, one model, one machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from onebit.config import LoadedConfig, RouteName, ServeConfig
from onebit.config.walk import leaves
from onebit.manifest import ContainerManifest, inspect_directory
from onebit.routes.model_path import ModelPath
from onebit.routes.resolution import RouteTrial, Setting
from onebit.routes.world import World


@dataclass(frozen=True)
class Request:
    """The input of every route. What several routes look at is read once."""

    loaded: LoadedConfig
    model: ModelPath
    world: World
    trials: tuple[RouteTrial, ...] = ()
    """Routes tried before, in order."""
    named: str = ""
    """Name of what the model was made of, where that is not the path's own."""
    inspect: Callable[[Path], ContainerManifest] = inspect_directory
    """Reads a directory; `validate --deep` puts a thorough one here."""

    @property
    def config(self) -> ServeConfig:
        """The config alone."""
        return self.loaded.config

    @property
    def directory(self) -> Path:
        """The model directory."""
        return self.model.path

    @cached_property
    def files(self) -> frozenset[str]:
        """Names in the model directory; empty for a GGUF or an unreadable directory."""
        if self.model.kind != "directory":
            return frozenset()
        try:
            return frozenset(entry.name for entry in self.directory.iterdir())
        except OSError:
            return frozenset()

    @cached_property
    def model_config(self) -> Mapping[str, Any]:
        """config.json, or nothing where it cannot be read: `manifest` says what is wrong then."""
        try:
            value = json.loads((self.directory / "config.json").read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @cached_property
    def manifest(self) -> ContainerManifest:
        """The directory, read and checked."""
        return self.inspect(self.directory)

    @property
    def name(self) -> str:
        """Name under which the model is served."""
        return self.config.alias or self.named or self.model.name

    def settings(self) -> tuple[Setting, ...]:
        """Return every setting with its value and source; secrets are not shown."""
        return settings_of(self.loaded)


def settings_of(loaded: LoadedConfig) -> tuple[Setting, ...]:
    """Return every setting of a config with its value and source; secrets are not shown."""
    rows = []
    for leaf in leaves():
        value = leaf.value(loaded.config)
        if leaf.name == "api.keys":
            value = [f"({len(value)} hidden)"] if value else []
        elif isinstance(value, Path):
            value = str(value)
        rows.append(Setting(name=leaf.name, value=value, source=str(loaded.source(leaf.name))))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a route takes a model, and why or why not."""

    taken: bool
    why: str

    def trial(self, route: RouteName) -> RouteTrial:
        """Return it as a line of the trace."""
        return RouteTrial(route=route, taken=self.taken, why=self.why)
