"""Where values come from: the config file, the environment, the command line.

Each source is a pydantic-settings source that also remembers, for every dotted path it sets,
the place a person would look at.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

from onebit.config.serve import ServeConfig
from onebit.config.walk import AMBIENT, ENV_PREFIX, Leaf, leaves
from onebit.config.yaml_lines import Keys, YamlDocument
from onebit.findings import Finding, Where, error


class Source(BaseModel):
    """Where one value was set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["default", "file", "env", "flag"]
    name: str = Field(default="", description="File, variable or flag.")
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        if self.kind == "default":
            return "default"
        if self.kind == "file":
            return self.name if self.line is None else f"{self.name}:{self.line}"
        return f"{self.kind} {self.name}"

    def where(self, field: str) -> Where:
        """Return the place as a finding states it."""
        if self.kind == "file":
            return Where(file=self.name, line=self.line, column=self.column, field=field)
        return Where(field=field if self.kind == "default" else f"{field} ({self})")


class Layer(PydanticBaseSettingsSource):
    """One source: nested values, and the `Source` of every path in them."""

    def __init__(self, values: dict[str, Any], sources: dict[Keys, Source]) -> None:
        super().__init__(ServeConfig)
        self.values = values
        self.sources = sources

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return one top-level value (part of the pydantic-settings protocol)."""
        return self.values.get(field_name), field_name, isinstance(field.annotation, type)

    def __call__(self) -> dict[str, Any]:
        """Return all values of this source, nested."""
        return self.values

    def source_of(self, keys: Keys) -> Source | None:
        """Return where `keys`, or the nearest parent of it that stands here, was set."""
        for end in range(len(keys), 0, -1):
            if keys[:end] in self.sources:
                return self.sources[keys[:end]]
        return None


def file_layer(document: YamlDocument) -> Layer:
    """Make the layer of a config file; its relative paths start at the file's directory."""
    values = document.values
    base = document.path.parent
    for leaf in leaves():
        if leaf.is_path:
            _rebase(values, leaf.keys, base)
    name = str(document.path)
    return Layer(
        values,
        {
            keys: Source(kind="file", name=name, line=place[0], column=place[1])
            for keys, place in document.places.items()
        },
    )


def _rebase(values: dict[str, Any], keys: tuple[str, ...], base: Path) -> None:
    holder: Any = values
    for key in keys[:-1]:
        holder = holder.get(key) if isinstance(holder, dict) else None
    if isinstance(holder, dict) and isinstance(holder.get(keys[-1]), str) and holder[keys[-1]]:
        holder[keys[-1]] = str(base / Path(holder[keys[-1]]).expanduser())


def env_layer(environ: Mapping[str, str]) -> tuple[Layer, list[Finding]]:
    """Make the layer of the ONEBIT_* variables; unknown ones come back as findings."""
    known = {leaf.env: leaf for leaf in leaves()}
    values: dict[str, Any] = {}
    sources: dict[Keys, Source] = {}
    findings: list[Finding] = []
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in AMBIENT:
            continue
        found = _env_path(name, known)
        if found is None:
            findings.append(_unknown_variable(name, known))
            continue
        _put(values, found, environ[name])
        sources[found] = Source(kind="env", name=name)
    return Layer(values, sources), findings


def _env_path(name: str, known: Mapping[str, Leaf]) -> tuple[str, ...] | None:
    if name in known:
        return known[name].keys
    for variable, leaf in known.items():
        if leaf.is_mapping and name.startswith(f"{variable}__"):
            return (*leaf.keys, name[len(variable) + 2 :])
    return None


def _unknown_variable(name: str, known: Mapping[str, Leaf]) -> Finding:
    near = difflib.get_close_matches(name, [*known, *AMBIENT], n=1)
    mend = f"did you mean {near[0]}? " if near else ""
    return error(
        "config.unknown_variable",
        "no setting has this environment variable",
        f"{mend}unset {name}, or see `onebit schema serve-config`",
        Where(file="environment", field=name),
    )


def flag_layer(flags: Mapping[tuple[str, ...], tuple[str, Any]]) -> Layer:
    """Make the layer of the command line from path -> (flag as typed, value)."""
    values: dict[str, Any] = {}
    sources: dict[Keys, Source] = {}
    for keys, (flag, value) in flags.items():
        _put(values, keys, value)
        sources[keys] = Source(kind="flag", name=flag)
        if isinstance(value, dict):
            sources |= {(*keys, key): Source(kind="flag", name=flag) for key in value}
    return Layer(values, sources)


def _put(values: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        values = values.setdefault(key, {})
    values[keys[-1]] = value


def set_paths(values: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Walk the leaf paths that nested `values` set; a mapping field's own keys are leaves."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            for rest in set_paths(value):
                yield (key, *rest)
        else:
            yield (key,)
