"""Private add-ons: Python packages that serve model types of their own.

A package offers one through an entry point of the group `onebit.routes`; the entry point is an
object (or a class that is made without arguments) with the attributes of `Addon`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

import yaml

from onebit.devices.base import Program, ProgramOptions
from onebit.findings import Refusal, Where, error
from onebit.plan.model import Plan
from onebit.resources import resource_dir

GROUP = "onebit.routes"


@dataclass(frozen=True, slots=True)
class AddonModel:
    """What an add-on opened: the plan facts that serving needs, and the running program."""

    plan: Plan
    """Names dims (`vocab`, `context`) and special tokens; its op lists may be empty."""
    program: Program


class Addon(Protocol):
    """What a private add-on offers."""

    name: str
    model_types: Collection[str]
    """The `model_type` values of config.json that it serves."""
    optional: bool
    """Whether a failure of it leaves the model to the next route, with its reason in the trace;
    else the failure refuses the model."""
    honours: Collection[str]
    """Dotted names of settings that it honours beside those of every route: `threads`, ..."""

    def decline(self, directory: Path, config: Mapping[str, Any]) -> str | None:
        """Return why this directory is not for it, or None."""
        ...

    def check(self, options: Mapping[str, str]) -> Sequence[str]:
        """Return what is wrong with `npu.options`: unknown keys, bad values."""
        ...

    def open(
        self,
        directory: Path,
        options: Mapping[str, str],
        settings: Mapping[str, Any],
        program: ProgramOptions,
    ) -> AddonModel:
        """Load the model.

        Args:
            directory: The model directory.
            options: `npu.options`, checked.
            settings: Values of the settings that `honours` names.
            program: Context, KV pages and rows to plan for.
        """
        ...


@dataclass(frozen=True, slots=True)
class InstalledAddon:
    """One entry point, loaded or not."""

    name: str
    package: str
    addon: Addon | None
    problem: str = ""
    """Why it could not be loaded."""


def installed_addons() -> list[InstalledAddon]:
    """Load every add-on that is installed, by name."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return [load_addon(point) for point in points]


def load_addon(point: EntryPoint) -> InstalledAddon:
    """Load one entry point; a failure becomes its `problem`."""
    package = point.dist.name if point.dist is not None else point.value
    try:
        offered = point.load()
        addon = offered() if isinstance(offered, type) else offered
    except Exception as problem:  # an add-on's own code: whatever it raises is its problem
        return InstalledAddon(point.name, package, None, f"{type(problem).__name__}: {problem}")
    return InstalledAddon(point.name, package, addon)


@dataclass(frozen=True, slots=True)
class KnownAddon:
    """An add-on that onebit knows of, installed or not."""

    package: str
    model_types: tuple[str, ...]


def known_addons(path: Path | None = None) -> list[KnownAddon]:
    """Read manifests/addons.yaml: which package serves which model types.

    Raises:
        Refusal: the file is broken.
    """
    path = path or resource_dir("manifests") / "addons.yaml"
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))["addons"]
        return [KnownAddon(row["package"], tuple(row["model_types"])) for row in rows]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as problem:
        raise Refusal(
            error(
                "addons.unreadable",
                f"cannot be read as a list of add-ons: {problem}",
                "reinstall onebit",
                Where(file=str(path)),
            )
        ) from problem
