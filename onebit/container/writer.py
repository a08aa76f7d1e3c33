"""Writing a container: deterministic bytes, streamed, atomic.

Layout of what is written: safetensors; the header is padded with spaces so that the data section
starts on a multiple of 64, and every tensor starts on a multiple of 64 after zero bytes. The file
ends with the last tensor's last byte, so that losing one byte is always seen.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from onebit.container.entry import METADATA_KEY
from onebit.container.header import MAX_HEADER_BYTES, PREFIX_BYTES
from onebit.findings import InputError, Where, error

ALIGNMENT = 64

Chunk = bytes | NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """One tensor to write.

    Attributes:
        name: Name in the header.
        dtype: dtype string: "BF16", "F32", "I8", ...
        shape: Shape to declare: [tiles, tile bytes] for tiles.
        nbytes: Stored size in bytes.
        produce: Called once, when the tensor's turn comes; yields its bytes in order.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    produce: Callable[[], Iterable[Chunk]]


def write_container(
    path: str | os.PathLike[str], tensors: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> None:
    """Write a container; the same input gives the same bytes.

    The bytes go to a temporary file in the same directory, which takes the name only when it is
    complete and on disk; on any failure it is removed and an older file stays as it was.

    Args:
        path: File to write or replace.
        tensors: Tensors in file order; only one chunk of one of them is in memory at a time.
        metadata: Strings for `__metadata__`, written in the order of their keys.

    Raises:
        InputError: The file cannot be written (no room, no permission, no such directory).
        ValueError: Two tensors share a name, or a producer gives another number of bytes.
    """
    target = Path(path)
    header, begins = layout(tensors, metadata)
    try:
        with _replacing(target) as out:
            out.file.write(header)
            position = len(header)
            for tensor, begin in zip(tensors, begins, strict=True):
                out.file.write(bytes(begin - position))
                position = begin + _write_tensor(out.file, tensor)
            out.commit()
    except OSError as bad:
        what = f"the container cannot be written: {bad.strerror or bad}"
        mend = "choose a directory that exists, is writable and has room"
        raise InputError(
            error("container.write_failed", what, mend, Where(file=str(target)))
        ) from bad


def layout(
    tensors: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> tuple[bytes, tuple[int, ...]]:
    """Return the prefix and header bytes, and the absolute begin of every tensor."""
    tree: dict[str, object] = {}
    if metadata:
        tree[METADATA_KEY] = {key: metadata[key] for key in sorted(metadata)}
    at, begins = 0, []
    for tensor in tensors:
        if tensor.name in tree or not tensor.name or tensor.name == METADATA_KEY:
            raise ValueError(f"tensor name {tensor.name!r} is taken twice or not allowed")
        at = _aligned(at)
        begins.append(at)
        tree[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    data_begin = _aligned(PREFIX_BYTES + len(text))
    length = data_begin - PREFIX_BYTES
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes could not be read back")
    header = length.to_bytes(PREFIX_BYTES, "little") + text.ljust(length)
    return header, tuple(data_begin + begin for begin in begins)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _write_tensor(file: BinaryIO, tensor: TensorSpec) -> int:
    written = 0
    for chunk in tensor.produce():
        written += len(chunk)
        if written > tensor.nbytes:
            break
        file.write(chunk if isinstance(chunk, bytes) else np.ascontiguousarray(chunk).data)
    if written != tensor.nbytes:
        raise ValueError(f"{tensor.name}: {tensor.nbytes} bytes declared, {written} produced")
    return written


class _replacing:  # noqa: N801  (used as a verb: with _replacing(target) as out)
    """A new file that takes the target's name on `commit` and vanishes otherwise."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> _replacing:
        unique = f".{self._target.name}.{secrets.token_hex(8)}.tmp"
        self._temporary = self._target.with_name(unique)
        self._committed = False
        self.file: BinaryIO = self._temporary.open("xb")
        return self

    def commit(self) -> None:
        """Put the file on disk under the target's name."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self._temporary.replace(self._target)
        self._committed = True
        directory = os.open(self._target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def __exit__(self, *_: object) -> None:
        if not self._committed:
            self._temporary.unlink(missing_ok=True)
            self.file.close()
