"""Builds a model directory beside its place and moves it there when it is whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onebit.findings import InputError, Where, error


@contextmanager
def new_directory(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary directory that becomes `target` when the block ends well.

    An older directory is kept until then, and put aside only for the moment of the exchange.

    Raises:
        InputError: `target` holds files and `force` is off, or it cannot be written.
    """
    where = Where(file=str(target))
    if target.exists() and not target.is_dir():
        raise InputError(error("convert.target", "is a file", "name a directory", where))
    if target.is_dir() and any(target.iterdir()) and not force:
        raise InputError(
            error("convert.exists", "is not empty", "choose another, or add --force", where)
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    except OSError as cause:
        what = f"cannot be written: {cause.strerror or cause}"
        raise InputError(error("convert.target", what, "choose another place", where)) from cause
    try:
        yield temporary
        temporary.chmod(0o755)
        _sync(temporary)
        _exchange(temporary, target)
    except OSError as cause:
        what = f"cannot be written: {cause.strerror or cause}"
        raise InputError(error("convert.target", what, "make room there", where)) from cause
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _exchange(made: Path, target: Path) -> None:
    if not target.exists():
        made.rename(target)
        return
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
    old = aside / "old"
    target.rename(old)
    try:
        made.rename(target)
    except OSError:
        old.rename(target)
        raise
    finally:
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON and flush it to disk; the same value gives the same bytes."""
    with path.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
