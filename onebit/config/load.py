"""Builds a `ServeConfig` from file, environment and flags, with the source of every value."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError

from onebit.config.serve import LAYERS, ServeConfig
from onebit.config.sources import Layer, Source, env_layer, file_layer, flag_layer, set_paths
from onebit.config.walk import Leaf, leaves
from onebit.config.yaml_lines import Keys, read_yaml
from onebit.findings import Finding, UsageError, Where, error

DEFAULT = Source(kind="default")


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A config and where each of its values was set."""

    config: ServeConfig
    sources: dict[str, Source] = field(default_factory=dict)
    """Dotted name -> source, for every setting that somebody set."""

    def source(self, name: str) -> Source:
        """Return where the setting `name` got its value."""
        return self.sources.get(name, DEFAULT)


def load_config(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[tuple[str, ...], tuple[str, Any]] | None = None,
) -> LoadedConfig:
    """Build the config: flags over environment over file over defaults.

    Args:
        file: serve.yaml, if any.
        environ: environment variables; only those that start with ONEBIT_ are looked at.
        flags: path in the config -> (flag as typed, value).

    Raises:
        UsageError: unknown keys (with the nearest valid name), values out of range or of the
            wrong type, an unreadable file: every finding at once, each with its place.
    """
    flagged = flag_layer(flags or {})
    from_env, findings = env_layer(environ or {})
    layers = [flagged, from_env]
    if file is not None:
        layers.append(file_layer(read_yaml(file)))
    token = LAYERS.set(tuple(layers))
    try:
        config = ServeConfig()
    except ValidationError as problem:
        findings += [_finding(item, layers) for item in problem.errors(include_url=False)]
    finally:
        LAYERS.reset(token)
    if findings:
        raise UsageError(findings)
    return LoadedConfig(config, _sources(layers))


def _sources(layers: list[Layer]) -> dict[str, Source]:
    names = {leaf.keys: leaf.name for leaf in leaves()}
    sources: dict[str, Source] = {}
    for layer in reversed(layers):
        for path in set_paths(layer.values):
            keys = next((path[:end] for end in range(1, len(path) + 1) if path[:end] in names), ())
            source = layer.source_of(path)
            if keys and source is not None:
                sources[names[keys]] = source
                sources[".".join(path)] = source
    return sources


def _finding(item: Any, layers: list[Layer]) -> Finding:
    """Turn one pydantic error into a finding that names the place and the mend."""
    loc: Keys = item["loc"]
    keys = _real_keys(loc)
    source = next((s for layer in layers if (s := layer.source_of(keys)) is not None), DEFAULT)
    name = ".".join(str(key) for key in keys)
    where = source.where(name)
    if item["type"] == "extra_forbidden":
        return _unknown_key(name, keys, where)
    leaf = next((leaf for leaf in leaves() if leaf.keys == keys[: len(leaf.keys)]), None)
    what = item["msg"].removeprefix("Value error, ")
    what = f"{what[:1].lower()}{what[1:]}"
    if leaf is None:
        what = f"expected a group of settings, {what}" if "valid dictionary" in what else what
        return error("config.bad_value", what, f"write KEY: VALUE lines under {name}", where)
    given = "" if _is_secret(leaf) else f", got {_short(item['input'])}"
    return error("config.bad_value", f"{what}{given}", f"{_describe(leaf)}", where)


def _real_keys(loc: Keys) -> Keys:
    """Cut off what pydantic adds behind the field (union branches, `[key]`)."""
    for leaf in leaves():
        if loc[: len(leaf.keys)] == leaf.keys:
            end = len(leaf.keys)
            if leaf.is_mapping or leaf.is_list:
                end = min(len(loc), end + 1)
            return loc[:end]
    return loc


def _unknown_key(name: str, keys: Keys, where: Where) -> Finding:
    meant = _nearest(name, keys)
    mend = f"did you mean `{meant}`?" if meant else "see `onebit schema serve-config`"
    return error("config.unknown_key", f"there is no setting `{name}`", mend, where)


def _nearest(name: str, keys: Keys) -> str | None:
    """Return the setting that `name` may have meant: same last word, sibling, then any."""
    last = str(keys[-1])
    for leaf in leaves():
        if leaf.keys[-1] == last:
            return leaf.name
    near = difflib.get_close_matches(last, _children(keys[:-1]), n=1, cutoff=0.6)
    if near:
        return ".".join([*map(str, keys[:-1]), near[0]])
    by_last = {leaf.keys[-1]: leaf.name for leaf in leaves()}
    near = difflib.get_close_matches(last, by_last, n=1, cutoff=0.8)
    if near:
        return by_last[near[0]]
    by_name = {leaf.name.replace(".", "_"): leaf.name for leaf in leaves()}
    near = difflib.get_close_matches(name.replace(".", "_"), by_name, n=1, cutoff=0.6)
    return by_name[near[0]] if near else None


def _children(keys: Keys) -> list[str]:
    model: Any = ServeConfig
    for key in keys:
        model = model.model_fields[str(key)].annotation
    return list(model.model_fields) if issubclass(model, BaseModel) else []


def _is_secret(leaf: Leaf) -> bool:
    return "SecretStr" in str(leaf.field.annotation)


def _describe(leaf: Leaf) -> str:
    return f"{leaf.name}: {leaf.field.description}"


def _short(value: Any) -> str:
    text = "(hidden)" if isinstance(value, SecretStr) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
