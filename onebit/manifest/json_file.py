"""Reads a JSON object from a model directory, with findings that name the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onebit.container import strict_json
from onebit.findings import InputError, Where, error

MAX_BYTES = 256 << 20
_BOM = b"\xef\xbb\xbf"


def read_json_object(path: Path, mend: str) -> dict[str, Any]:
    """Return the object in a JSON file. A byte order mark in front is accepted.

    Args:
        path: The file.
        mend: What to do when it is missing or broken.

    Raises:
        InputError: missing, unreadable, empty, too large, not JSON, a name twice in an object,
            or not an object.
    """
    where = Where(file=str(path))
    raw = _read(path, mend)
    if not raw.strip():
        raise InputError(error("json.empty", "the file is empty", mend, where))
    try:
        duplicated: list[strict_json.StrictObject] = []
        value = strict_json.parse(raw, duplicated)
    except strict_json.StrictJsonError as cause:
        place = _place(path, raw, cause.offset)
        raise InputError(
            error(f"json.{cause.kind}", f"is not sound JSON: {cause}", mend, place)
        ) from cause
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise InputError(error("json.not_object", f"holds a {kind}, not an object", mend, where))
    if duplicated:
        duplicates = list(_duplicates(value, ""))
        raise InputError(
            [
                error(
                    "json.duplicate",
                    "this name stands twice in its object",
                    mend,
                    Where(file=str(path), field=name),
                )
                for name in duplicates[:20]
            ]
        )
    return value


def _read(path: Path, mend: str) -> bytes:
    where = Where(file=str(path))
    try:
        if not path.is_file():
            what = "is a directory" if path.is_dir() else "is not there"
            raise InputError(error("file.missing", what, mend, where))
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(
                error("file.too_large", f"has {size:,} bytes; at most {MAX_BYTES:,}", mend, where)
            )
        raw = path.read_bytes()
    except OSError as cause:
        what = f"cannot be read: {cause.strerror or cause}"
        raise InputError(
            error("file.unreadable", what, "check the file's owner and mode", where)
        ) from cause
    return raw.removeprefix(_BOM)


def _place(path: Path, raw: bytes, offset: int | None) -> Where:
    if offset is None:
        return Where(file=str(path))
    before = raw[:offset]
    line_start = before.rfind(b"\n") + 1
    column = len(before[line_start:].decode("utf-8", "replace")) + 1
    return Where(file=str(path), line=before.count(b"\n") + 1, column=column)


def _duplicates(value: Any, prefix: str) -> Any:
    """Yield the dotted names that stand twice, at any depth."""
    stack: list[tuple[Any, str]] = [(value, prefix)]
    while stack:
        item, at = stack.pop()
        if isinstance(item, strict_json.StrictObject):
            yield from (f"{at}{name}" for name in item.duplicates)
        if isinstance(item, dict):
            stack.extend((v, f"{at}{k}.") for k, v in item.items() if isinstance(v, dict | list))
        elif isinstance(item, list):
            stack.extend((v, f"{at}{i}.") for i, v in enumerate(item) if isinstance(v, dict | list))
