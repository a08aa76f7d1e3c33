"""The JSON body of one tool call, read while it is being written."""

from __future__ import annotations

import json
import re

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)

_HEAD_LIMIT = 4096
"""Characters within which the name must have come; beyond it the body is parsed whole."""


class CallBody:
    """Streams `{"name": "f", "arguments": {...}}`: first the name, then the arguments' text.

    A body whose keys stand in another order is never `started`; the caller parses it whole.
    """

    def __init__(self) -> None:
        self._held = ""
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._ended = False
        self.started = False

    def push(self, text: str) -> list[tuple[str | None, str]]:
        """Return (name or None, more arguments text) pieces that `text` settles."""
        if self.started:
            return self._arguments(text)
        self._held += text
        head = _HEAD.match(self._held) if len(self._held) < _HEAD_LIMIT else None
        if head is None:
            return []
        try:
            name = json.loads(head[1])
        except ValueError:
            return []
        self.started = True
        return [(name, ""), *self._arguments(self._held[head.end() :])]

    def _arguments(self, text: str) -> list[tuple[str | None, str]]:
        end = self._scan(text)
        return [(None, text[:end])] if end else []

    def _scan(self, text: str) -> int:
        """Return how much of `text` belongs to the arguments object."""
        if self._ended:
            return 0
        for i, c in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif c == "\\":
                    self._escaped = True
                elif c == '"':
                    self._in_string = False
            elif c == '"':
                self._in_string = True
            elif c in "{[":
                self._depth += 1
            elif c in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._ended = True
                    return i + 1
        return len(text)
