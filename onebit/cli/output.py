"""How the commands talk: findings, tables, sizes, progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import click
from pydantic import BaseModel

from onebit.findings import Finding


def say(text: str = "") -> None:
    """Print a line of the result to stdout."""
    click.echo(text)


def fail(text: str) -> None:
    """Print a line about a failure to stderr."""
    click.echo(f"onebit: {text}", err=True)


def show_findings(findings: Iterable[Finding], *, err: bool = True) -> None:
    """Print findings, one a line."""
    for finding in findings:
        click.echo(_one_line(str(finding)), err=err)


def _one_line(text: str) -> str:
    """Keep control characters of hostile names off the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def say_json(value: BaseModel | Any) -> None:
    """Print a value as JSON to stdout."""
    data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def size(count: int) -> str:
    """Return a number of bytes as people read it: 98.4 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def table(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Return rows with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return [
        indent
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


class ProgressBar:
    """A progress bar on stderr where that is a terminal, silent elsewhere."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._shown = (-1, "")

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._on and self._shown[0] >= 0:
            click.echo("\r\x1b[K", nl=False, err=True)

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Show how far `doing` is; `total` 0 means that nobody knows."""
        percent = min(100, 100 * done // total) if total else 0
        if not self._on or self._shown == (percent, doing):
            return
        self._shown = (percent, doing)
        bar = "#" * (percent // 4) if total else ""
        click.echo(f"\r\x1b[K{doing} [{bar:<25}] {percent:3d} %", nl=False, err=True)
