"""Builds small, well-formed full ELFs that stand for GEMM designs."""

from __future__ import annotations

import struct
from pathlib import Path

from onebit.devices.npu.designs import ROWS, needed_names, parse_name
from onebit.plan import Plan

DEFAULT_SECTIONS = {
    ".pdi.0": b"\x01PDI" * 16,
    ".ctrltext.0": b"\x02CTR" * 32,
    ".note.xrt.configuration": b"\0" * 24,
    ".note.xrt.UID": b"\x11" * 16,
}


def design_elf(
    k: int, n: int, *, m: int = ROWS, osabi: int = 69, sections: dict[str, bytes] | None = None
) -> bytes:
    """Return a 32-bit little-endian ELF with the sections of a full design and a shape note."""
    wanted = dict(DEFAULT_SECTIONS if sections is None else sections)
    if sections is None:
        wanted[".note.onebit.gemm"] = struct.pack("<III", m, k, n)
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*wanted, ".shstrtab"))
    wanted[".shstrtab"] = names
    body, rows = b"", [bytes(40)]
    for name, data in wanted.items():
        kind = 7 if name.startswith(".note") else 3 if name == ".shstrtab" else 1
        at, start = 52 + len(body), names.index(b"\0" + name.encode() + b"\0") + 1
        rows.append(struct.pack("<IIIIIIIIII", start, kind, 0, 0, at, len(data), 0, 0, 4, 0))
        body += data + bytes(-len(data) % 4)
    ident = b"\x7fELF" + bytes([1, 1, 1, osabi, 0]) + bytes(7)
    header = struct.pack(
        "<HHIIIIIHHHHHH", 2, 69, 1, 0, 0, 52 + len(body), 0, 52, 0, 0, 40, len(rows), len(rows) - 1
    )
    return ident + header + body + b"".join(rows)


def write_design(directory: Path, name: str) -> Path:
    """Write the file of one design."""
    design = parse_name(name)
    assert design is not None, name
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(design_elf(design.k, design.n))
    return path


def write_kernels(directory: Path, plan: Plan, *, split: bool = False) -> list[str]:
    """Write the complete kernel set of a plan and return its names."""
    names = list(needed_names(plan))
    if split:
        fused = next(name for name in names if "_GU_" in name)
        design = parse_name(fused)
        assert design is not None
        names.remove(fused)
        names += [f"full_i8_{role}_K{design.k}_N{design.n // 2}.elf" for role in "GU"]
    for name in names:
        write_design(directory, name)
    return names
