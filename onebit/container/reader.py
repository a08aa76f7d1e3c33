"""The reader: a proven, memory-mapped container whose tensors are views."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from math import prod
from pathlib import Path
from types import TracebackType
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from onebit.container import fit
from onebit.container.entry import Entry, show
from onebit.container.header import read_header
from onebit.container.kinds import GROUP_COLS, TensorKind, rows_and_cols, tensor_bytes
from onebit.container.view import TensorView
from onebit.findings import Finding, InputError, Where, error

_DIGEST_BYTES = 1 << 22


class Container:
    """An open container. The file is mapped, never copied; offsets may be odd.

    A file that is cut short after it was opened is noticed by `raw`, `view` and every `reader`
    of a view, which raise an InputError. Touching a mapped page that is gone is a bus fault
    which no process can turn into an error, so scans read through `TensorView.reader`.

    Attributes:
        path: Path as the user named it.
        file_bytes: Size of the file.
        metadata: Strings of `__metadata__`.
        entries: Tensors by exact name, in header order; offsets are absolute.
        findings: Warnings about things in the header that nothing reads.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._fd = _open_file(self.path)
        self._close = finalize(self, os.close, self._fd)
        try:
            status = os.fstat(self._fd)
            self.file_bytes = status.st_size
            self._mtime = status.st_mtime_ns
            header = read_header(self._fd, self.path, self.file_bytes)
            self._map: NDArray[np.uint8] | None = self._mapped()
        except BaseException:
            self._close()
            raise
        self.metadata = header.metadata
        self.entries = header.entries
        self.findings: tuple[Finding, ...] = header.findings

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Container:
        """Map a file and prove its header.

        Raises:
            InputError: The file is missing, unreadable or not a file, or its header is wrong;
                with all findings of the header at once.
        """
        return cls(path)

    def close(self) -> None:
        """Close the file. Views stay readable; the mapping goes when the last of them goes."""
        self._map = None
        self._close()

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def check_unchanged(self) -> None:
        """Raise an InputError if the file was cut short or rewritten since it was opened."""
        self._check_open()
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != (self.file_bytes, self._mtime):
            raise InputError(self._changed(status.st_size))

    def entry(self, name: str) -> Entry:
        """Return the header entry of `name`.

        Raises:
            InputError: The container has no such tensor.
        """
        if name not in self.entries:
            what = f"the container has no tensor {show(name)}"
            mend = "convert the model again, or correct the name in plan.json"
            raise InputError(error("container.missing_tensor", what, mend, self._where(name)))
        return self.entries[name]

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor: 1-D, read-only, zero copy, no alignment promised."""
        entry = self.entry(name)
        self.check_unchanged()
        return self._check_open()[entry.begin : entry.end]

    def read(self, name: str, begin: int, end: int) -> NDArray[np.uint8]:
        """Return a copy of bytes begin..end of a tensor, read from the file.

        Raises:
            InputError: The file became shorter.
        """
        entry = self.entry(name)
        if not 0 <= begin <= end <= entry.nbytes:
            raise ValueError(f"{name}: bytes {begin}..{end} of {entry.nbytes}")
        self._check_open()
        data = np.empty(end - begin, np.uint8)
        done = 0
        while done < data.size:
            got = os.preadv(self._fd, [data[done:].data], entry.begin + begin + done)
            if got == 0:
                raise InputError(self._changed(os.fstat(self._fd).st_size))
            done += got
        return data

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a tensor's stored bytes, in hex."""
        total = self.entry(name).nbytes
        digest = hashlib.sha256()
        for begin in range(0, total, _DIGEST_BYTES):
            digest.update(self.read(name, begin, min(begin + _DIGEST_BYTES, total)).data)
        return digest.hexdigest()

    def has_scale(self, name: str) -> bool:
        """Whether `name` is an int8 table: an I8 tensor with a `<name>.scale` partner."""
        return self.entry(name).dtype == "I8" and f"{name}.scale" in self.entries

    def kind_of(self, name: str, shape: tuple[int, ...]) -> TensorKind:
        """Tell how a tensor of logical `shape` is stored.

        Decided by dtype, then byte extent, then, where those leave a choice, by the statistics
        of a sample of the tensor's own bytes (`onebit.container.detect`).

        Raises:
            InputError: The tensor is missing or no kind fits.
        """
        return fit.kind_of(self, name, shape)

    def view(self, name: str, shape: tuple[int, ...], kind: TensorKind) -> TensorView:
        """Return a tensor as a view of `kind` and logical `shape`.

        Raises:
            InputError: The tensor is missing, or its dtype, stored shape or byte extent does not
                fit the kind and shape.
        """
        fit.check_fit(self, name, shape, kind)
        scale = self._scale(name, shape) if kind is TensorKind.INT8 else None

        def reader(begin: int, end: int) -> NDArray[np.uint8]:
            return self.read(name, begin, end)

        return TensorView(name, kind, shape, self.raw(name), scale, reader)

    def logical_rows(self, name: str, cols: int, kind: TensorKind) -> int | None:
        """Return how many rows of `cols` columns are stored, tile padding included.

        None when the byte extent is no whole number of rows: `cols` or `kind` is wrong.
        """
        row_bytes = tensor_bytes(kind, (1, cols))
        rows, rest = divmod(self.entry(name).nbytes, row_bytes)
        if rest:
            return None
        return rows * (32 if kind.is_tiled else 1)

    def _check_open(self) -> NDArray[np.uint8]:
        if self._map is None:
            raise ValueError(f"{self.path} is closed")
        return self._map

    def _mapped(self) -> NDArray[np.uint8]:
        mapping = mmap.mmap(self._fd, self.file_bytes, access=mmap.ACCESS_READ)
        return np.frombuffer(mapping, np.uint8)

    def _scale(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        partner = self.entry(f"{name}.scale")
        rows, cols = rows_and_cols(shape)
        groups = -(-cols // GROUP_COLS)
        if partner.dtype != "F32" or prod(partner.shape) != rows * groups:
            what = (
                f"int8 table {show(name)} of {rows} x {cols} needs F32 scales [{rows}, {groups}], "
                f"found {partner.dtype} {list(partner.shape)}"
            )
            where = Where(file=self.path, field=show(partner.name), offset=partner.begin)
            mend = "convert the model again with `onebit convert`"
            raise InputError(error("container.int8_scale", what, mend, where))
        scale = self.raw(partner.name).view("<f4").reshape(rows, groups)
        return scale if scale.flags.aligned else scale.copy()

    def _where(self, name: str) -> Where:
        return Where(file=self.path, field=show(name))

    def _changed(self, size: int) -> Finding:
        what = f"the file changed while it was open: {self.file_bytes} bytes then, {size} now"
        mend = "let whatever writes it finish, then start again"
        return error("container.changed", what, mend, Where(file=self.path))


def _open_file(path: str) -> int:
    """Open a regular file for reading; never waits on a pipe or device."""
    where = Where(file=path)
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            what = "this is not a regular file"
            mend = "name a container file, for example DIR/model.q4nx"
            raise InputError(error("container.not_a_file", what, mend, where))
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as bad:
        what = "there is no such file"
        mend = "check the path, or make the container with `onebit convert MODEL.gguf DIR`"
        raise InputError(error("container.missing", what, mend, where)) from bad
    except (OSError, ValueError) as bad:
        reason = bad.strerror if isinstance(bad, OSError) else str(bad)
        mend = f"make the file readable for this user, for example `chmod u+r {path}`"
        what = f"the file cannot be opened: {reason}"
        raise InputError(error("container.unreadable", what, mend, where)) from bad
