"""Tool calls in a model's answer: found, parsed and streamed.

A format is a parser class in `TOOL_FORMATS`. Text that turns out to be no call is given back as
content: nothing the model wrote is lost.
"""

from __future__ import annotations

import ast
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from onebit.text.toolbody import CallBody


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of a tool call. `id` and `name` stand in the first piece of an index only."""

    index: int
    arguments: str
    """More text of the arguments, JSON when joined."""
    id: str | None = None
    name: str | None = None


class ToolParser(Protocol):
    """Splits an answer into content and tool calls."""

    def push(self, text: str) -> tuple[str, list[ToolDelta]]:
        """Return the content and the call pieces that `text` settles."""
        ...

    def finish(self) -> tuple[str, list[ToolDelta]]:
        """Return what was held back."""
        ...


def new_call_id() -> str:
    """Return a fresh tool call id."""
    return f"call_{secrets.token_hex(12)}"


class HermesParser:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them."""

    opening = "<tool_call>"
    closing = "</tool_call>"

    def __init__(self, names: Collection[str]) -> None:
        del names  # the tags alone mark a call
        self._held = ""
        self._body: CallBody | None = None
        self._raw = ""
        self._index = 0

    def push(self, text: str) -> tuple[str, list[ToolDelta]]:
        """Return the content and the call pieces that `text` settles."""
        self._held += text
        content, deltas = "", list[ToolDelta]()
        while True:
            if self._body is None:
                content += self._content()
                if self._body is None:
                    return content, deltas
            closed = self._feed(deltas)
            if not closed:
                return content, deltas
            content += self._close(deltas)

    def finish(self) -> tuple[str, list[ToolDelta]]:
        """Return what was held back; a call without its closing tag counts when it is whole."""
        deltas: list[ToolDelta] = []
        if self._body is None:
            held, self._held = self._held, ""
            return (held if self._index == 0 else held.rstrip()), deltas
        text, self._held = self._held, ""
        self._raw += text
        self._emit(self._body.push(text), deltas)
        return self._close(deltas), deltas

    def _content(self) -> str:
        """Take content up to an opening tag; white space before a tag is held back."""
        at = self._held.find(self.opening)
        if at >= 0:
            content = self._held[:at].rstrip()
            self._held = self._held[at + len(self.opening) :]
            self._body, self._raw = CallBody(), ""
            return content
        end = len(self._held) - _partial(self._held, self.opening)
        content = self._held[:end].rstrip()
        self._held = self._held[len(content) :]
        return content

    def _feed(self, deltas: list[ToolDelta]) -> bool:
        """Give the call's text to its body; True when the closing tag has come."""
        at = self._held.find(self.closing)
        end = at if at >= 0 else len(self._held) - _partial(self._held, self.closing)
        text, self._held = self._held[:end], self._held[end:]
        self._raw += text
        assert self._body is not None
        self._emit(self._body.push(text), deltas)
        if at >= 0:
            self._held = self._held[len(self.closing) :]
        return at >= 0

    def _emit(self, pieces: list[tuple[str | None, str]], deltas: list[ToolDelta]) -> None:
        for name, arguments in pieces:
            call_id = new_call_id() if name is not None else None
            deltas.append(ToolDelta(self._index, arguments, call_id, name))

    def _close(self, deltas: list[ToolDelta]) -> str:
        """End the call; return its text as content when it was none."""
        body, self._body = self._body, None
        assert body is not None
        if not body.started:
            call = _call_of(_load(self._raw))
            if call is None:
                return f"{self.opening}{self._raw}"
            self._emit([(call[0], ""), (None, call[1])], deltas)
        self._index += 1
        return ""


class _WholeMessage(ABC):
    """Base of formats where the call is the whole message: decided by its first character."""

    first: str
    marker = ""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._held = ""
        self._content = False

    def push(self, text: str) -> tuple[str, list[ToolDelta]]:
        """Return `text` when the message is no call; hold it back while it may be one."""
        if self._content:
            return text, []
        self._held += text
        bare = self._held.lstrip()
        if self.marker and (bare.startswith(self.marker) or self.marker.startswith(bare)):
            return "", []
        if not bare or bare.startswith(self.first):
            return "", []
        self._content = True
        held, self._held = self._held, ""
        return held, []

    def finish(self) -> tuple[str, list[ToolDelta]]:
        """Return the calls that the held message is, or the message."""
        held, self._held = self._held, ""
        calls = self.calls(held.strip().removeprefix(self.marker).strip())
        if not calls or any(name not in self._names for name, _ in calls):
            return held, []
        deltas: list[ToolDelta] = []
        for index, (name, arguments) in enumerate(calls):
            deltas.append(ToolDelta(index, "", new_call_id(), name))
            deltas.append(ToolDelta(index, arguments))
        return "", deltas

    @abstractmethod
    def calls(self, text: str) -> list[tuple[str, str]]:
        """Return (name, arguments) of each call in `text`; [] when it is none."""


class Llama3JsonParser(_WholeMessage):
    """`{"name": ..., "parameters": {...}}`, several separated by `;`."""

    first = "{"
    marker = "<|python_tag|>"

    def calls(self, text: str) -> list[tuple[str, str]]:
        """Return (name, arguments) of each call in `text`; [] when it is none."""
        decoder, found = json.JSONDecoder(), list[tuple[str, str]]()
        while text:
            try:
                value, end = decoder.raw_decode(text)
            except (ValueError, RecursionError):
                return []
            call = _call_of(value)
            if call is None:
                return []
            found.append(call)
            text = text[end:].lstrip().removeprefix(";").lstrip()
        return found


class PythonicParser(_WholeMessage):
    """`[name(key=value, ...), ...]` with literal values."""

    first = "["

    def calls(self, text: str) -> list[tuple[str, str]]:
        """Return (name, arguments) of each call in `text`; [] when it is none."""
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
        if not isinstance(tree, ast.List):
            return []
        found = []
        for node in tree.elts:
            if not isinstance(node, ast.Call) or node.args:
                return []
            try:
                values = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
                arguments = json.dumps(values, ensure_ascii=False)
            except (ValueError, TypeError):
                return []
            found.append((ast.unparse(node.func), arguments))
        return found


TOOL_FORMATS: dict[str, Callable[[Collection[str]], ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "pythonic": PythonicParser,
}
"""Parser of each tool format, made with the names of the tools offered."""


def _partial(text: str, tag: str) -> int:
    """Return the length of the longest suffix of `text` that begins `tag`."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call_of(value: Any) -> tuple[str, str] | None:
    """Return (name, arguments as JSON text) when `value` is a tool call."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        return value["name"], arguments
    return value["name"], json.dumps(arguments, ensure_ascii=False)
