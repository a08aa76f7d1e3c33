"""Reads a design file as far as it can be judged without XRT.

XRT itself checks next to nothing: a file cut in half loads and its sections vanish. So size,
section table, notes and control code are proved here, before a device is opened.
Sources: the ELF specification (gABI 4.1, chapter 4); the platform byte as XRT reads it.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path

AIE2P = 69
"""EI_OSABI of designs for this NPU generation."""
OTHER_AIE = frozenset({64, 70, 75, 86, 105})
"""EI_OSABI of other array generations."""
SHAPE_NOTE = ".note.onebit.gemm"
"""Optional section: u32 M, K, N, little-endian, as its builder meant them."""
_STUB_BYTES = 64
_NOBITS = 8
_HEADERS = {1: ("<HHIIIIIHHHHHH", "<IIIIIIIIII"), 2: ("<HHIQQQIHHHHHH", "<IIQQQQIIQQ")}
"""ELF class -> layout of the file header after its 16 identity bytes, and of a section header."""


class _Broken(Exception):
    """Why a file is no usable design."""


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """What a design file shows of itself. `problem` is empty for a well-formed full ELF."""

    bytes: int
    sha256: str
    problem: str = ""
    bits: int = 0
    machine: int = 0
    osabi: int = 0
    sections: dict[str, int] = field(default_factory=dict)
    """Section name -> size in bytes."""
    shape: tuple[int, int, int] | None = None
    """M, K, N of its own shape note, if it has one."""


def inspect_elf(path: Path) -> ElfFacts:
    """Return the facts of a design file; what is wrong with it is in `problem`."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.seek(0, 2)
            if size < _STUB_BYTES:
                return ElfFacts(size, digest, f"a stub of {size} bytes, not an ELF")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(data, size, digest)
    except (OSError, ValueError) as problem:
        return ElfFacts(0, "", f"cannot be read: {problem}")


def _read(data: mmap.mmap, size: int, digest: str) -> ElfFacts:
    if data[:4] != b"\x7fELF":
        return ElfFacts(size, digest, "no ELF: the magic number is wrong")
    bits, osabi = data[4], data[7]
    machine = struct.unpack_from("<H", data, 18)[0]
    places: dict[str, tuple[int, int]] = {}
    shape = None
    try:
        places = _sections(data, size)
        shape = _shape(data, places)
        _check(data, osabi, places)
        problem = ""
    except _Broken as broken:
        problem = str(broken)
    except struct.error:
        problem = "cut short: a header lies outside the file"
    sizes = {name: length for name, (_, length) in places.items()}
    return ElfFacts(size, digest, problem, 32 * bits, machine, osabi, sizes, shape)


def _sections(data: mmap.mmap, size: int) -> dict[str, tuple[int, int]]:
    """Return section name -> (offset, size), each proved to lie inside the file."""
    if data[4] not in _HEADERS or data[5] != 1:
        raise _Broken("not a 32- or 64-bit little-endian ELF")
    file_header, section_header = _HEADERS[data[4]]
    header = struct.unpack_from(file_header, data, 16)
    table, entry, count, names = header[5], header[10], header[11], header[12]
    if not table or not count:
        raise _Broken("the ELF has no section table")
    if entry != struct.calcsize(section_header) or table + entry * count > size:
        raise _Broken("cut short: the section table lies outside the file")
    rows = [struct.unpack_from(section_header, data, table + i * entry) for i in range(count)]
    for row in rows:
        if row[1] != _NOBITS and row[4] + row[5] > size:
            raise _Broken("cut short: a section lies outside the file")
    if names >= count:
        raise _Broken("the ELF's section names are missing")
    text = data[rows[names][4] : rows[names][4] + rows[names][5]]
    return {_name(text, row[0]): (row[4], row[5]) for row in rows[1:]}


def _name(text: bytes, start: int) -> str:
    return text[start : text.find(b"\0", start)].decode("ascii", "replace")


def _shape(data: mmap.mmap, places: dict[str, tuple[int, int]]) -> tuple[int, int, int] | None:
    if SHAPE_NOTE not in places:
        return None
    at, length = places[SHAPE_NOTE]
    if length < 12:
        raise _Broken(f"{SHAPE_NOTE} is too short")
    m, k, n = struct.unpack_from("<III", data, at + length - 12)
    return m, k, n


def _check(data: mmap.mmap, osabi: int, places: dict[str, tuple[int, int]]) -> None:
    if osabi in OTHER_AIE:
        raise _Broken(f"made for another NPU generation (OS/ABI {osabi}, expected {AIE2P})")
    if osabi != AIE2P:
        raise _Broken(f"not an NPU design (OS/ABI {osabi}, expected {AIE2P})")
    if ".note.xrt.configuration" not in places:
        raise _Broken("no full ELF: it has no .note.xrt.configuration")
    if not any(n.startswith(".ctrltext") and size for n, (_, size) in places.items()):
        raise _Broken("no full ELF: it has no control code (.ctrltext)")
    if not any(n.startswith(".pdi") and size for n, (_, size) in places.items()):
        raise _Broken("no full ELF: it has no array configuration (.pdi)")
    if data[8] >> 4 and ".symtab" not in places:
        raise _Broken("the ELF has no symbol table")
