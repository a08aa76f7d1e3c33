"""What a header says of its tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass

from onebit.findings import Finding

DTYPE_BYTES = {
    "BF16": 2, "F32": 4, "F16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E5M2": 1, "F8_E4M3": 1,
    "I16": 2, "U16": 2, "I32": 4, "U32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip
LOGICAL_DTYPE = "Q4NX"
"""The dtype whose shape is logical and whose bytes are 4-bit tiles."""
METADATA_KEY = "__metadata__"


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
