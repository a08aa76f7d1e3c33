"""The safetensors header: read with bounds, proven before any tensor is touched.

Layout: u64 little-endian header length L, L bytes of UTF-8 JSON, data from byte 8 + L. The JSON
maps names to {dtype, shape, data_offsets}; offsets count from 8 + L. Gaps between tensors are
legal, as is space padding at the end of the JSON.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from typing import Any

from onebit.container import strict_json
from onebit.container.kinds import TensorKind, tensor_bytes
from onebit.container.strict_json import StrictJsonError, StrictObject
from onebit.findings import Finding, InputError, Where, error, warning

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
MAX_FINDINGS = 500
"""Findings listed for one header; what is beyond is counted."""
DTYPE_BYTES = {
    "BF16": 2, "F32": 4, "F16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E5M2": 1, "F8_E4M3": 1,
    "I16": 2, "U16": 2, "I32": 4, "U32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip
LOGICAL_DTYPE = "Q4NX"
"""The dtype whose shape is logical and whose bytes are 4-bit tiles."""
METADATA_KEY = "__metadata__"

_ENTRY_KEYS = ("dtype", "shape", "data_offsets")
_MAX_RANK = 16
_MAX_NUMBER = 1 << 60
_MEND_WHOLE = "download or convert the file again; `onebit convert` writes a sound one"
_MEND_WRITER = "mend the writer of the file, or convert the model again with `onebit convert`"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the header.

    Attributes:
        name: Name, escapes decoded.
        dtype: dtype string as written, for example "BF16", "I8" or "Q4NX".
        shape: Shape as written: packed for I8 tiles, logical for Q4NX.
        begin: Absolute byte offset in the file.
        end: Absolute byte offset after the last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Stored size in bytes."""
        return self.end - self.begin


@dataclass(frozen=True)
class Header:
    """A proven header.

    Attributes:
        data_begin: Absolute offset of the data section.
        entries: Tensors by name, in the order of the header.
        metadata: `__metadata__`, empty when absent.
        findings: Warnings: things in the header that nothing reads.
    """

    data_begin: int
    entries: dict[str, Entry]
    metadata: dict[str, str]
    findings: tuple[Finding, ...]


def show(name: str) -> str:
    """Return `name` fit for one line of text: odd characters escaped, long names cut."""
    plain = name if name.isprintable() else json.dumps(name)[1:-1]
    return plain if len(plain) <= 160 else plain[:157] + "..."


def read_header(fd: int, file: str, file_bytes: int) -> Header:
    """Read and prove the header of an open file.

    Args:
        fd: Open file descriptor; it is read with positioned reads.
        file: Path as the user named it, for findings.
        file_bytes: Real size of the file.

    Raises:
        InputError: With everything that is wrong with the header.
    """
    length = _header_length(fd, file, file_bytes)
    raw = _read_exactly(fd, length, PREFIX_BYTES)
    if raw is None:
        raise InputError(_changed(file))
    return parse_header(raw, file, file_bytes)


def parse_header(raw: bytes, file: str, file_bytes: int) -> Header:
    """Prove the JSON bytes of a header against the size of its file.

    Raises:
        InputError: With everything that is wrong with the header.
    """
    try:
        tree = strict_json.parse(raw)
    except StrictJsonError as bad:
        at = PREFIX_BYTES + (bad.offset or 0)
        what = f"the header ({len(raw)} bytes of JSON from byte 8) cannot be read: {bad}"
        where = Where(file=file, offset=at)
        raise InputError(error(f"container.header_{bad.kind}", what, _MEND_WHOLE, where)) from bad
    if not isinstance(tree, StrictObject):
        what = f"the header must be a JSON object of tensors, found {_type_name(tree)}"
        where = Where(file=file, offset=PREFIX_BYTES)
        raise InputError(error("container.header_not_object", what, _MEND_WHOLE, where))
    proof = _Proof(file, file_bytes, PREFIX_BYTES + len(raw))
    header = proof.run(tree)
    if proof.errors:
        raise InputError(proof.listed_errors())
    return header


def _header_length(fd: int, file: str, file_bytes: int) -> int:
    where = Where(file=file, offset=0)
    prefix = _read_exactly(fd, PREFIX_BYTES, 0) if file_bytes >= PREFIX_BYTES else None
    if prefix is None:
        what = f"the file has {file_bytes} bytes: shorter than the 8-byte prefix of a container"
        raise InputError(error("container.too_short", what, _MEND_WHOLE, where))
    length = int.from_bytes(prefix, "little")
    if length == 0:
        what = "the header length is 0: the file names no tensors"
        raise InputError(error("container.header_empty", what, _MEND_WHOLE, where))
    if PREFIX_BYTES + length > file_bytes:
        what = (
            f"the header length is {length}, so the file must have at least "
            f"{PREFIX_BYTES + length} bytes, but it has {file_bytes}: it is cut short, "
            "or not a safetensors container"
        )
        raise InputError(error("container.header_past_file", what, _MEND_WHOLE, where))
    if length > MAX_HEADER_BYTES:
        what = f"the header length is {length}; at most {MAX_HEADER_BYTES} bytes are read"
        raise InputError(error("container.header_too_large", what, _MEND_WHOLE, where))
    return length


def _read_exactly(fd: int, size: int, offset: int) -> bytes | None:
    parts = []
    while size:
        part = os.pread(fd, min(size, 1 << 24), offset)
        if not part:
            return None
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return b"".join(parts)


def _changed(file: str) -> Finding:
    what = "the file became shorter while it was being read"
    mend = "wait until the download or conversion that writes it has ended, then try again"
    return error("container.changed", what, mend, Where(file=file))


class _Proof:
    """Walks a parsed header and collects what is wrong."""

    def __init__(self, file: str, file_bytes: int, data_begin: int) -> None:
        self.file = file
        self.file_bytes = file_bytes
        self.data_begin = data_begin
        self.errors: list[Finding] = []
        self.warnings: list[Finding] = []
        self.count = 0

    def run(self, tree: StrictObject) -> Header:
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
        if self.count <= MAX_FINDINGS:
            return self.errors
        what = f"{self.count - MAX_FINDINGS} more findings in the header are not listed"
        return [
            *self.errors,
            error("container.more", what, _MEND_WHOLE, Where(file=self.file)),
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
            what = f"{METADATA_KEY} must be an object of strings, found {_type_name(value)}"
            self._error("container.metadata_type", what, METADATA_KEY)
            return {}
        for key in value.duplicates:
            what = f"the metadata key {show(key)} stands there more than once"
            self._error("container.duplicate_metadata", what, f"{METADATA_KEY}.{key}")
        for key, item in value.items():
            if not (isinstance(item, str) and _encodable(item) and _encodable(key)):
                what = f"metadata must be Unicode strings, found {_type_name(item)}"
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
                f"found {_type_name(value)}"
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
        found = show(value) if isinstance(value, str) else _type_name(value)
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
            expected = f"2-D and {' or '.join(map(str, sorted(sizes)))} (4-bit tiles)"
        else:
            size = prod(entry.shape) * DTYPE_BYTES[entry.dtype]
            if size == entry.nbytes:
                return
            expected = f"{size}"
        what = (
            f"dtype {entry.dtype} and shape {list(entry.shape)} make {expected} bytes, but "
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
        self.errors.append(error("container.truncated", what, _MEND_WHOLE, where))

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


def _type_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    names |= {int: "a number", float: "a number", type(None): "nothing", StrictObject: "an object"}
    return names[type(value)]


def _shown_value(value: Any) -> str:
    text = json.dumps(value[:20] if isinstance(value, list) else value)
    return text if len(text) <= 80 else text[:77] + "..."
