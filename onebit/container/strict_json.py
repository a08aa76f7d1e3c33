"""JSON from an untrusted file: duplicates seen, depth and size bounded, only plain numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

MAX_VALUES = 4_000_000
"""Most commas, colons and brackets: bounds what parsing may allocate to some hundred MB."""
_MAX_NUMBER_CHARS = 400


class StrictObject(dict[str, Any]):
    """A JSON object that remembers the names it held more than once."""

    __slots__ = ("duplicates",)

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.duplicates: tuple[str, ...] = ()
        if len(self) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            self.duplicates = tuple(name for name, count in counts.items() if count > 1)


class StrictJsonError(ValueError):
    """The text is not JSON as we take it.

    Attributes:
        kind: `not_utf8`, `not_json`, `too_deep` or `too_large`.
        offset: Byte in the text, where known.
    """

    def __init__(self, kind: str, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.offset = offset


def parse(raw: bytes, duplicated: list[StrictObject] | None = None) -> Any:
    """Parse UTF-8 JSON; objects become `StrictObject`.

    Args:
        raw: The text.
        duplicated: Takes every object that holds a name twice.

    Raises:
        StrictJsonError: Not UTF-8, not JSON, NaN or Infinity, nested too deep, or so many
            values that they would not fit a sane amount of memory.
    """
    values = sum(raw.count(mark) for mark in (b",", b":", b"[", b"{"))
    if values > MAX_VALUES:
        raise StrictJsonError(
            "too_large", f"it holds about {values:,} JSON values; at most {MAX_VALUES:,} are read"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as bad:
        message = f"byte 0x{raw[bad.start]:02X} is not UTF-8 there"
        raise StrictJsonError("not_utf8", message, bad.start) from bad

    def strict(pairs: Sequence[tuple[str, Any]]) -> StrictObject:
        made = StrictObject(pairs)
        if made.duplicates and duplicated is not None:
            duplicated.append(made)
        return made

    try:
        return json.loads(
            text,
            object_pairs_hook=strict,
            parse_constant=_refuse_constant,
            parse_int=_bounded_int,
            parse_float=_bounded_float,
        )
    except json.JSONDecodeError as bad:
        offset = len(text[: bad.pos].encode("utf-8"))
        raise StrictJsonError("not_json", bad.msg, offset) from bad
    except RecursionError as bad:
        raise StrictJsonError("too_deep", "its brackets nest too deep") from bad


def _refuse_constant(name: str) -> NoReturn:
    raise StrictJsonError("not_json", f"{name} is not a JSON number")


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_NUMBER_CHARS:
        raise StrictJsonError("not_json", f"a number of {len(digits)} digits")
    return int(digits)


def _bounded_float(digits: str) -> float:
    if len(digits) > _MAX_NUMBER_CHARS:
        raise StrictJsonError("not_json", f"a number of {len(digits)} characters")
    return float(digits)
