"""Reads a GGUF: key-values and the tensor table, proven before any tensor is touched.

Format: the GGUF specification, versions 2 and 3, little-endian. The block formats of tensor types
come from the `gguf` library.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from onebit.findings import Finding, InputError, Where, error

MAX_KEYS = 100_000
MAX_TENSORS = 100_000
_MEND = "download the file again, or make it anew with a current converter"
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of the table.

    Attributes:
        name: Name.
        type: Type of its blocks.
        shape: Logical shape, rows first: [out_features, in_features] or [size].
        begin: Absolute byte offset.
        nbytes: Stored bytes.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    begin: int
    nbytes: int

    @property
    def rows(self) -> int:
        """Rows of the matrix; 1 for a vector."""
        return int(np.prod(self.shape[:-1]))

    @property
    def cols(self) -> int:
        """Columns, or the size of a vector."""
        return self.shape[-1]


class GgufFile:
    """An open GGUF; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            InputError: not a GGUF, cut short, or with types that onebit does not know.
        """
        self.path = path
        try:
            with path.open("rb") as stream:
                self.size = path.stat().st_size
                if self.size < 24:
                    raise _broken(path, f"has {self.size} bytes, too few for a GGUF header", 0)
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as cause:
            what = f"cannot be read: {cause.strerror or cause}"
            raise InputError(
                error("gguf.unreadable", what, "check the path", Where(file=str(path)))
            ) from cause
        try:
            self.fields, self.tensors = _Header(self._map, path).read()
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file; arrays handed out must be gone by then."""
        self.__dict__.pop("_bytes", None)
        self._map.close()

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._map, np.uint8)

    def blocks(self, tensor: GgufTensor, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the stored bytes of rows start..stop as uint8 [rows, bytes per row], a copy."""
        row = tensor.nbytes // tensor.rows
        begin = tensor.begin + start * row
        return self._bytes[begin : begin + (stop - start) * row].reshape(-1, row).copy()

    @property
    def arch(self) -> str:
        """`general.architecture`."""
        return str(self.fields.get("general.architecture", ""))

    def field(self, key: str) -> Any:
        """Return the value of `<arch>.<key>`, exactly that key; None when absent."""
        return self.fields.get(f"{self.arch}.{key}")


def _broken(path: Path, what: str, offset: int) -> InputError:
    return InputError(error("gguf.broken", what, _MEND, Where(file=str(path), offset=offset)))


class _Header:
    """One walk over the header; every read is checked against the file's end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def read(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        magic, version = self._bytes(4, "the magic"), self._int("I", "the version")
        if magic != b"GGUF":
            raise _broken(self.path, f"does not begin with GGUF but {magic!r}", 0)
        if version not in (2, 3):
            raise _broken(self.path, f"is GGUF version {version}; 2 and 3 are read", 4)
        tensor_count = self._count("tensors", MAX_TENSORS)
        key_count = self._count("keys", MAX_KEYS)
        fields: dict[str, Any] = {}
        for _ in range(key_count):
            key = self._text("a key")
            if key in fields:
                raise _broken(self.path, f"key {key!r} stands twice", self.at)
            fields[key] = self._value(self._int("I", "a value type"), key)
        return fields, self._tensors(tensor_count, fields)

    def _tensors(self, count: int, fields: dict[str, Any]) -> dict[str, GgufTensor]:
        raw = []
        for _ in range(count):
            name = self._text("a tensor name")
            rank = self._int("I", "a rank")
            if not 1 <= rank <= 4:
                raise _broken(self.path, f"tensor {name!r} has rank {rank}", self.at)
            dims = [self._int("Q", "a dimension") for _ in range(rank)]
            raw.append((name, dims, self._int("I", "a type"), self._int("Q", "an offset")))
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise _broken(self.path, f"general.alignment is {alignment!r}", self.at)
        start = -(-self.at // alignment) * alignment
        findings: list[Finding] = []
        tensors: dict[str, GgufTensor] = {}
        for name, dims, code, offset in raw:
            tensor = self._tensor(name, dims, code, start + offset, findings)
            if name in tensors:
                findings.append(self._finding("gguf.duplicate", "this tensor stands twice", name))
            elif tensor is not None:
                tensors[name] = tensor
        if findings:
            raise InputError(findings)
        return tensors

    def _tensor(
        self, name: str, dims: list[int], code: int, begin: int, findings: list[Finding]
    ) -> GgufTensor | None:
        try:
            kind = GGMLQuantizationType(code)
        except ValueError:
            what = f"has tensor type id {code}, which no known GGUF type has"
            findings.append(self._finding("gguf.unknown_type", what, name))
            return None
        block, size = GGML_QUANT_SIZES[kind]
        total = 1
        for dim in dims:
            total *= dim
        if total == 0 or total > 1 << 48 or dims[0] % block:
            what = f"has shape {dims[::-1]}, which {kind.name} blocks of {block} cannot hold"
            findings.append(self._finding("gguf.shape", what, name))
            return None
        nbytes = total // block * size
        if begin + nbytes > len(self.data):
            what = f"ends at byte {begin + nbytes}, the file has {len(self.data)}: it was cut short"
            findings.append(self._finding("gguf.truncated", what, name))
            return None
        return GgufTensor(name, kind, tuple(dims[::-1]), begin, nbytes)

    def _finding(self, code: str, what: str, name: str) -> Finding:
        return error(code, what, _MEND, Where(file=str(self.path), field=name))

    def _bytes(self, count: int, what: str) -> bytes:
        if self.at + count > len(self.data):
            raise _broken(self.path, f"ends inside {what}: it was cut short", self.at)
        self.at += count
        return self.data[self.at - count : self.at]

    def _int(self, code: str, what: str) -> int:
        value = struct.unpack("<" + code, self._bytes(struct.calcsize(code), what))[0]
        return int(value)

    def _count(self, what: str, most: int) -> int:
        count = self._int("Q", f"the number of {what}")
        if count > most:
            raise _broken(self.path, f"says it has {count} {what}; at most {most}", self.at - 8)
        return count

    def _text(self, what: str) -> str:
        raw = self._bytes(self._int("Q", what), what)
        return raw.decode("utf-8", "replace")

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._text(key)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise _broken(self.path, f"key {key!r} has value type {kind}", self.at)
        code = _SCALARS[kind]
        return struct.unpack("<" + code, self._bytes(struct.calcsize(code), key))[0]

    def _array(self, key: str) -> list[Any]:
        kind, count = self._int("I", key), self._int("Q", key)
        if kind == _STRING:
            if count * 8 > len(self.data) - self.at:
                raise _broken(self.path, f"key {key!r} says it lists {count} strings", self.at)
            return [self._text(key) for _ in range(count)]
        if kind not in _SCALARS:
            raise _broken(self.path, f"key {key!r} lists values of type {kind}", self.at)
        width = struct.calcsize(_SCALARS[kind])
        raw = self._bytes(count * width, key)
        return list(struct.unpack(f"<{count}{_SCALARS[kind]}", raw))
