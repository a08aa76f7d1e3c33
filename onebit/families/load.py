"""Finds and reads family manifests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from onebit.families.model import Family
from onebit.findings import InputError, Where, error
from onebit.resources import resource_dir

# libyaml's loader where PyYAML was built with it: ten times as fast, and as safe.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_family(path: Path) -> Family:
    """Read one manifest.

    Raises:
        InputError: not YAML, or not a family manifest; one finding for each wrong field.
    """
    data = _merged(path, ())
    try:
        return Family.model_validate(data)
    except ValidationError as cause:
        raise InputError(
            [
                error(
                    "family.field",
                    problem["msg"],
                    "see `onebit schema family`",
                    Where(file=str(path), field=".".join(str(p) for p in problem["loc"])),
                )
                for problem in cause.errors()
            ]
        ) from cause


def _merged(path: Path, chain: tuple[str, ...]) -> dict[str, Any]:
    """Return a manifest's data with those it extends merged in."""
    where = Where(file=str(path))
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - safe ones
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise InputError(
            error("family.unreadable", f"cannot be read: {cause}", "mend the YAML", where)
        ) from cause
    if not isinstance(data, dict):
        raise InputError(error("family.unreadable", "is not a mapping", "mend the YAML", where))
    base = data.get("extends")
    if base is None:
        return data
    if not isinstance(base, str) or base in chain:
        what = f"extends {base!r}: a loop, or not a name"
        raise InputError(error("family.extends", what, "name another family's file", where))
    return _merge(_merged(path.parent / f"{base}.yaml", (*chain, base)), data)


def _merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


@cache
def load_families() -> dict[str, Family]:
    """Return all packaged families by name, in name order."""
    folder = resource_dir("manifests") / "families"
    families = (load_family(path) for path in sorted(folder.glob("*.yaml")))
    return {family.family: family for family in families}


def family_for(model_type: str) -> Family | None:
    """Return the family that matches a config.json's `model_type`, or None."""
    for family in load_families().values():
        if model_type in family.match.model_type:
            return family
    return None


def family_for_arch(arch: str) -> Family | None:
    """Return the family whose `gguf` section takes a GGUF's `general.architecture`, or None."""
    for family in load_families().values():
        if family.gguf is not None and arch in family.gguf.arch:
            return family
    return None
