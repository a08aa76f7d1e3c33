"""Value types that more than one concern uses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: Any) -> Any:
    """Turn "2GiB", "512 MB" or 1048576 into bytes; other types go through to pydantic."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError('expected a number of bytes, or one with a unit such as "512MiB" or "2GB"')
    return int(float(match[1]) * _UNITS[match[2].lower()])


def split_list(value: Any) -> Any:
    """Turn "a, b" into ["a", "b"]: environment variables and single flags hold lists so."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _expand(value: Any) -> Any:
    return Path(value).expanduser() if isinstance(value, str | Path) and str(value) else value


Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": _SIZE.pattern}]}),
]
"""A number of bytes; text may carry a unit."""
FilePath = Annotated[Path, BeforeValidator(_expand)]
"""A path; `~` is the home directory. Relative to the config file when written there."""


class Section(BaseModel):
    """Base of the config's sections: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
