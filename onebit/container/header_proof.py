"""Proving a parsed header: every entry, every byte extent, all findings at once."""

from __future__ import annotations

import json
from math import prod
from typing import Any

from onebit.container.entry import DTYPE_BYTES, LOGICAL_DTYPE, METADATA_KEY, Entry, Header, show
from onebit.container.kinds import TensorKind, tensor_bytes
from onebit.container.strict_json import StrictObject
from onebit.findings import Finding, Where, error, warning

MAX_FINDINGS = 500
"""Findings listed for one header; what is beyond is counted."""
MEND_WHOLE = "download or convert the file again; `onebit convert` writes a sound one"

_MEND_WRITER = "mend the writer of the file, or convert the model again with `onebit convert`"
_ENTRY_KEYS = ("dtype", "shape", "data_offsets")
_MAX_RANK = 16
_MAX_NUMBER = 1 << 60


class Proof:
    """Walks a parsed header and collects what is wrong."""

    def __init__(self, file: str, file_bytes: int, data_begin: int) -> None:
        self.file = file
        self.file_bytes = file_bytes
        self.data_begin = data_begin
        self.errors: list[Finding] = []
        self.warnings: list[Finding] = []
        self.count = 0

    def run(self, tree: StrictObject) -> Header:
        """Return the header; it is proven only if `errors` stays empty."""
        for name in tree.duplicates:
            what = f"duplicate tensor name {show(name)}: the header holds it more than once"
            self._error("container.duplicate_tensor", what, name)
        metadata = self._metadata(tree.get(METADATA_KEY))
        found = (self._entry(name, value) for name, value in tree.items() if name != METADATA_KEY)
        entries = {entry.name: entry for entry in found if entry is not None}
        self._past_the_end(entries)
        self._overlaps(entries)
        return Header(self.data_begin, entries, metadata, tuple(self.warnings))

    def listed_errors(self) -> list[Finding]:
        """Return the errors, and how many more there were."""
        if self.count <= MAX_FINDINGS:
            return self.errors
        what = f"{self.count - MAX_FINDINGS} more findings in the header are not listed"
        return [
            *self.errors,
            error("container.more", what, MEND_WHOLE, Where(file=self.file)),
        ]

    def _error(self, code: str, what: str, name: str, offset: int | None = None) -> None:
        self.count += 1
        if self.count <= MAX_FINDINGS:
            where = Where(file=self.file, field=show(name), offset=offset)
            self.errors.append(error(code, what, _MEND_WRITER, where))

    def _warning(self, code: str, what: str, name: str) -> None:
        if len(self.warnings) < MAX_FINDINGS:
            where = Where(file=self.file, field=show(name))
            mend = "nothing reads it: remove it, or name it as its reader expects"
            self.warnings.append(warning(code, what, mend, where))

    def _metadata(self, value: Any) -> dict[str, str]:
        if value is None:
            return {}
        if not isinstance(value, StrictObject):
            what = f"{METADATA_KEY} must be an object of strings, found {type_name(value)}"
            self._error("container.metadata_type", what, METADATA_KEY)
            return {}
        for key in value.duplicates:
            what = f"the metadata key {show(key)} stands there more than once"
            self._error("container.duplicate_metadata", what, f"{METADATA_KEY}.{key}")
        for key, item in value.items():
            if not (isinstance(item, str) and _encodable(item) and _encodable(key)):
                what = f"metadata must be Unicode strings, found {type_name(item)}"
                self._error("container.metadata_type", what, f"{METADATA_KEY}.{key}")
        return {key: item for key, item in value.items() if isinstance(item, str)}

    def _entry(self, name: str, value: Any) -> Entry | None:
        """Return the entry, or None after saying why there is none."""
        if not name or not _encodable(name):
            what = "a tensor name must be Unicode text of at least one character"
            self._error("container.bad_name", what, name or '""')
            return None
        if not isinstance(value, StrictObject):
            what = f"an entry must be an object with {', '.join(_ENTRY_KEYS)}, " + (
                f"found {type_name(value)}"
            )
            self._error("container.entry_type", what, name)
            return None
        for key in value.duplicates:
            self._error("container.duplicate_key", f"{show(key)} stands there twice", name)
        if "data_offsets" not in value:
            what = "the entry has no data_offsets, so it is no tensor; it is skipped"
            self._warning("container.entry_skipped", what, name)
            return None
        for key in value.keys() - set(_ENTRY_KEYS):
            self._warning("container.entry_key", f"unknown key {show(key)} in the entry", name)
        dtype, shape = self._dtype(name, value.get("dtype")), self._shape(name, value.get("shape"))
        offsets = self._offsets(name, value["data_offsets"])
        if dtype is None or shape is None or offsets is None:
            return None
        entry = Entry(name, dtype, shape, *(self.data_begin + at for at in offsets))
        self._size(entry)
        return entry

    def _dtype(self, name: str, value: Any) -> str | None:
        if isinstance(value, str) and (value in DTYPE_BYTES or value == LOGICAL_DTYPE):
            return value
        found = show(value) if isinstance(value, str) else type_name(value)
        what = f"unknown dtype {found}; known are {', '.join([*DTYPE_BYTES, LOGICAL_DTYPE])}"
        self._error("container.dtype", what, name)
        return None

    def _shape(self, name: str, value: Any) -> tuple[int, ...] | None:
        sound = isinstance(value, list) and len(value) <= _MAX_RANK and all(map(_is_size, value))
        if sound:
            return tuple(value)
        what = f"shape must be a list of at most {_MAX_RANK} whole numbers from 0, found "
        self._error("container.shape", what + _shown_value(value), name)
        return None

    def _offsets(self, name: str, value: Any) -> tuple[int, int] | None:
        if isinstance(value, list) and len(value) == 2 and all(map(_is_size, value)):
            begin, end = value
            if begin <= end:
                return begin, end
        what = "data_offsets must be two whole numbers 0 <= begin <= end, found "
        self._error("container.offsets", what + _shown_value(value), name)
        return None

    def _size(self, entry: Entry) -> None:
        """Check shape x dtype against the byte extent."""
        if entry.dtype == LOGICAL_DTYPE:
            sizes = {
                tensor_bytes(kind, entry.shape) for kind in (TensorKind.Q4NX, TensorKind.Q4_1_X64)
            }
            if entry.nbytes in sizes and len(entry.shape) == 2:
                return
            choice = " or ".join(map(str, sorted(sizes)))
            expected = f"{choice} bytes (a matrix of 4-bit tiles)"
        else:
            size = prod(entry.shape) * DTYPE_BYTES[entry.dtype]
            if size == entry.nbytes:
                return
            expected = f"{size} bytes"
        what = (
            f"dtype {entry.dtype} and shape {list(entry.shape)} make {expected}, but "
            f"data_offsets span {entry.nbytes}"
        )
        self._error("container.size", what, entry.name, entry.begin)

    def _past_the_end(self, entries: dict[str, Entry]) -> None:
        beyond = [entry for entry in entries.values() if entry.end > self.file_bytes]
        if not beyond:
            return
        implied = max(entry.end for entry in beyond)
        first = min(beyond, key=lambda entry: entry.begin)
        names = ", ".join(show(entry.name) for entry in beyond[:5])
        more = f" and {len(beyond) - 5} more" if len(beyond) > 5 else ""
        what = (
            f"the file has {self.file_bytes} bytes, but its header implies {implied} "
            f"({implied - self.file_bytes} missing); past the end: {names}{more}"
        )
        where = Where(file=self.file, field=show(first.name), offset=first.begin)
        self.count += 1
        self.errors.append(error("container.truncated", what, MEND_WHOLE, where))

    def _overlaps(self, entries: dict[str, Entry]) -> None:
        last: Entry | None = None
        filled = (entry for entry in entries.values() if entry.nbytes)
        for entry in sorted(filled, key=lambda entry: (entry.begin, entry.end)):
            if last is not None and entry.begin < last.end:
                what = (
                    f"its bytes {entry.begin}..{entry.end} overlap those of {show(last.name)}, "
                    f"{last.begin}..{last.end}"
                )
                self._error("container.overlap", what, entry.name, entry.begin)
            if last is None or entry.end > last.end:
                last = entry


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_NUMBER


def _encodable(text: str) -> bool:
    """Whether text can be written as UTF-8: a JSON escape can make half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def type_name(value: Any) -> str:
    """Name the JSON type of a value, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    names |= {int: "a number", float: "a number", type(None): "nothing", StrictObject: "an object"}
    return names[type(value)]


def _shown_value(value: Any) -> str:
    text = json.dumps(value[:20] if isinstance(value, list) else value)
    return text if len(text) <= 80 else text[:77] + "..."
