"""A YAML file as plain values plus the line and column of every key.

PyYAML composes the nodes (safe scalars only); this file walks them, so that a duplicate key is
seen and each path keeps its place.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from onebit.findings import UsageError, Where, error

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
"""Values after anchors are followed: bounds a file that multiplies itself."""
MAX_DEPTH = 50

Place = tuple[int, int]
"""Line and column, from 1."""
Keys = tuple[str | int, ...]


@dataclass(slots=True)
class YamlDocument:
    """One file: its values, and where each path of keys was written."""

    path: Path
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Keys, Place] = field(default_factory=dict)


def read_yaml(path: Path) -> YamlDocument:
    """Read the mapping that `path` holds.

    Raises:
        UsageError: the file is missing, unreadable, too large, no YAML, or no mapping of text
            keys; each with line and column.
    """
    return _Walker(path).document(_read_text(path))


def _refuse(code: str, what: str, mend: str, path: Path, place: Place | None = None) -> UsageError:
    line, column = place or (None, None)
    where = Where(file=str(path), line=line, column=column)
    return UsageError(error(f"config.{code}", what, mend, where))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _refuse("missing", "there is no such file", "check the path", path) from None
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise _refuse("unreadable", f"cannot be read: {reason}", "check the path", path) from None
    if len(data) > MAX_BYTES:
        what = f"is larger than {MAX_BYTES} bytes, which no config is"
        raise _refuse("too_large", what, "give the serve.yaml itself", path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        what = f"is not UTF-8 text (byte {problem.start})"
        raise _refuse("not_text", what, "save it as UTF-8", path) from None


def _mark(mark: Any) -> Place | None:
    return None if mark is None else (mark.line + 1, mark.column + 1)


class _Walker:
    """Turns nodes into values and remembers places."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[Keys, Place] = {}
        self.nodes = 0
        self.scalars = yaml.constructor.SafeConstructor()

    def document(self, text: str) -> YamlDocument:
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as problem:
            what = f"is not YAML: {problem.problem or problem.context or 'syntax error'}"
            place = _mark(problem.problem_mark or problem.context_mark)
            raise _refuse("yaml", what, "mend the syntax there", self.path, place) from None
        except yaml.YAMLError as problem:
            what = f"is not YAML: {str(problem).splitlines()[0]}"
            raise _refuse("yaml", what, "save it as plain text", self.path) from None
        if root is None:
            return YamlDocument(self.path)
        if not isinstance(root, yaml.MappingNode):
            what = "expected KEY: VALUE lines at the top level"
            raise _refuse("not_a_mapping", what, "see `onebit schema serve-config`", self.path,
                          _mark(root.start_mark))  # fmt: skip
        return YamlDocument(self.path, self.mapping(root, ()), self.places)

    def value(self, node: yaml.Node, keys: Keys) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(keys) > MAX_DEPTH:
            what = f"holds more than {MAX_NODES} values or {MAX_DEPTH} levels, anchors followed"
            raise _refuse("too_large", what, "write it out shorter", self.path,
                          _mark(node.start_mark))  # fmt: skip
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, keys)
        if isinstance(node, yaml.SequenceNode):
            return [self.item(child, (*keys, i)) for i, child in enumerate(node.value)]
        return self.scalar(node)

    def item(self, node: yaml.Node, keys: Keys) -> Any:
        self.places[keys] = _mark(node.start_mark) or (1, 1)
        return self.value(node, keys)

    def scalar(self, node: yaml.Node) -> Any:
        try:
            return self.scalars.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, OverflowError) as problem:
            reason = getattr(problem, "problem", None) or str(problem)
            what = f"cannot read this value: {reason}"
            raise _refuse("yaml", what, "put it in quotes", self.path,
                          _mark(node.start_mark)) from None  # fmt: skip

    def mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        values: dict[str, Any] = {}
        written: dict[Hashable, Place] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            place = _mark(key_node.start_mark) or (1, 1)
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged.append(value_node)
                continue
            key = self.key(key_node, place)
            if key in written:
                what = f"`{key}` is written twice; the first is in line {written[key][0]}"
                raise _refuse("duplicate_key", what, "keep one of the two", self.path, place)
            written[key] = place
            self.places[(*keys, key)] = place
            values[key] = self.value(value_node, (*keys, key))
        for source in merged:
            self.merge(source, keys, values)
        return values

    def key(self, node: yaml.Node, place: Place) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _refuse("bad_key", "a key must be one word", "mend the key", self.path, place)
        return str(node.value)

    def merge(self, node: yaml.Node, keys: Keys, into: dict[str, Any]) -> None:
        """Add the entries of `<<: *anchor` that are not written out; earlier ones win."""
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for part in parts:
            if not isinstance(part, yaml.MappingNode):
                raise _refuse("yaml", "`<<` merges mappings only", "give it a mapping", self.path,
                              _mark(node.start_mark))  # fmt: skip
            kept = dict(self.places)
            for key, value in self.value(part, keys).items():
                into.setdefault(key, value)
            self.places |= kept
