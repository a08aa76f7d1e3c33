"""Imports between the rooms run one way only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import onebit

PACKAGE = Path(onebit.__file__).parent
ORDER = (
    ("findings",),
    ("config", "container"),
    ("plan", "ops"),
    ("families",),
    ("devices",),
    ("forward",),
    ("engine", "text"),
    ("manifest",),
    ("convert",),
    ("routes",),
    ("server",),
    ("cli",),
)
"""Each room may import those above it, and what stands beside it as `BESIDE` says."""
BESIDE = {("ops", "plan")}
LEVEL = {room: n for n, rooms in enumerate(ORDER) for room in rooms}
ANYWHERE = {"resources"}


def imported_rooms(file: Path) -> set[str]:
    """Return the onebit rooms that a file imports, anywhere in it."""
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("onebit."):
            rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("onebit.")}
    return rooms


def test_every_room_is_in_the_order() -> None:
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms == set(LEVEL)


@pytest.mark.parametrize("room", sorted(LEVEL))
def test_imports_run_downwards(room: str) -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {other}"
        for file in sorted((PACKAGE / room).rglob("*.py"))
        for other in sorted(imported_rooms(file) - ANYWHERE - {room})
        if not (LEVEL[other] < LEVEL[room] or (room, other) in BESIDE)
    ]
    assert not wrong
