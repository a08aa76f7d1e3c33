"""The safetensors header: read with bounds, proven before any tensor is touched.

Layout: u64 little-endian header length L, L bytes of UTF-8 JSON, data from byte 8 + L. The JSON
maps names to {dtype, shape, data_offsets}; offsets count from 8 + L. Gaps between tensors are
legal, as is space padding at the end of the JSON.
"""

from __future__ import annotations

import os

from onebit.container import strict_json
from onebit.container.entry import Header
from onebit.container.header_proof import MEND_WHOLE, Proof, type_name
from onebit.container.strict_json import StrictJsonError, StrictObject
from onebit.findings import Finding, InputError, Where, error

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000


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
        raise InputError(error(f"container.header_{bad.kind}", what, MEND_WHOLE, where)) from bad
    if not isinstance(tree, StrictObject):
        what = f"the header must be a JSON object of tensors, found {type_name(tree)}"
        where = Where(file=file, offset=PREFIX_BYTES)
        raise InputError(error("container.header_not_object", what, MEND_WHOLE, where))
    proof = Proof(file, file_bytes, PREFIX_BYTES + len(raw))
    header = proof.run(tree)
    if proof.errors:
        raise InputError(proof.listed_errors())
    return header


def _header_length(fd: int, file: str, file_bytes: int) -> int:
    where = Where(file=file, offset=0)
    prefix = _read_exactly(fd, PREFIX_BYTES, 0) if file_bytes >= PREFIX_BYTES else None
    if prefix is None:
        what = f"the file has {file_bytes} bytes: shorter than the 8-byte prefix of a container"
        raise InputError(error("container.too_short", what, MEND_WHOLE, where))
    length = int.from_bytes(prefix, "little")
    if length == 0:
        what = "the header length is 0: the file names no tensors"
        raise InputError(error("container.header_empty", what, MEND_WHOLE, where))
    if PREFIX_BYTES + length > file_bytes:
        what = (
            f"the header length is {length}, so the file must have at least "
            f"{PREFIX_BYTES + length} bytes, but it has {file_bytes}: it is cut short, "
            "or not a safetensors container"
        )
        raise InputError(error("container.header_past_file", what, MEND_WHOLE, where))
    if length > MAX_HEADER_BYTES:
        what = f"the header length is {length}; at most {MAX_HEADER_BYTES} bytes are read"
        raise InputError(error("container.header_too_large", what, MEND_WHOLE, where))
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
