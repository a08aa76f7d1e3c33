"""The cache of converted GGUF files.

An entry is a directory `gguf/<content hash>-<converter>`, made in one rename, with a stamp that
is written last: its sizes tell a whole entry from a half-written or a damaged one. A file lock
keeps two processes from converting the same file at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onebit.findings import InputError, Where, error
from onebit.routes.resolution import Progress

STAMP = "cache-entry.json"
_BLOCK = 1 << 22


class Stamp(BaseModel):
    """What one entry was made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(description="Path of the GGUF when it was converted.")
    sha256: str
    converter: str
    files: dict[str, int] = Field(description="File name -> bytes.")


class CacheEntry(BaseModel):
    """One entry, as `onebit cache list` shows it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    source: str = Field(description="Where it came from; empty when the entry is damaged.")
    bytes: int
    state: str = Field(description="`ready`, `stale` (an older converter's) or `damaged`.")


class GgufCache:
    """The converted files under `root`."""

    def __init__(self, root: Path, converter: str) -> None:
        """Use `root` (made when first written to) for files of `converter`'s version."""
        self.root = root / "gguf"
        self.converter = converter

    def digest(self, source: Path, progress: Progress | None = None) -> str:
        """Return the sha256 of a file; remembered by inode, size and change times."""
        status = source.stat()
        key = f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
        key += f"-{status.st_ctime_ns}"
        memo = self.root / "digests" / hashlib.sha256(key.encode()).hexdigest()[:32]
        try:
            known = memo.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            known = ""
        if len(known) == 64 and all(c in "0123456789abcdef" for c in known):
            return known
        found = _hash(source, status.st_size, progress)
        _write_text(memo, found)
        return found

    def path(self, digest: str) -> Path:
        """Return where the entry of a content hash is or will be."""
        return self.root / f"{digest[:32]}-{self.converter}"

    def ready(self, digest: str) -> Path | None:
        """Return the entry if it is there and whole."""
        path = self.path(digest)
        stamp = read_stamp(path)
        whole = stamp is not None and stamp.sha256 == digest and _is_whole(path, stamp)
        return path if whole else None

    def seal(self, directory: Path, source: Path, digest: str) -> None:
        """Write the stamp that makes a finished directory an entry."""
        sizes = {p.name: p.stat().st_size for p in directory.iterdir() if p.name != STAMP}
        stamp = Stamp(
            source=os.path.abspath(source),  # noqa: PTH100 - keeps symbolic links' names
            sha256=digest,
            converter=self.converter,
            files=dict(sorted(sizes.items())),
        )
        _write_text(directory / STAMP, stamp.model_dump_json(indent=1))

    @contextmanager
    def locked(self, digest: str, progress: Progress) -> Iterator[None]:
        """Hold the lock of one entry; waits, and says so, while another process converts."""
        path = self.root / f"{digest[:32]}.lock"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as problem:
            raise _unusable(path, "locked", problem) from problem
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress("waiting for another process that converts this file", 0, 0)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def sweep(self, digest: str) -> None:
        """Remove what an interrupted conversion left; call it with the lock held."""
        entry = self.path(digest)
        for path in self.root.glob(f"*{entry.name}*"):
            if path.is_dir():
                shutil.rmtree(path)

    def entries(self) -> list[CacheEntry]:
        """Return all entries, by path."""
        if not self.root.is_dir():
            return []
        folders = (p for p in sorted(self.root.iterdir()) if p.is_dir() and p.name != "digests")
        return [self._entry(path) for path in folders]

    def _entry(self, path: Path) -> CacheEntry:
        stamp = read_stamp(path)
        state = "damaged"
        if stamp is not None and _is_whole(path, stamp):
            state = "ready" if stamp.converter == self.converter else "stale"
        size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
        return CacheEntry(
            path=str(path), source=stamp.source if stamp else "", bytes=size, state=state
        )

    def clear(self, *, unusable_only: bool = False) -> list[CacheEntry]:
        """Remove all entries, or only stale and damaged ones, and return what was removed."""
        removed = [e for e in self.entries() if not unusable_only or e.state != "ready"]
        for entry in removed:
            shutil.rmtree(entry.path)
        if not unusable_only:
            shutil.rmtree(self.root / "digests", ignore_errors=True)
        return removed


def read_stamp(directory: Path) -> Stamp | None:
    """Return an entry's stamp; None when it is missing or unreadable."""
    try:
        return Stamp.model_validate(json.loads((directory / STAMP).read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError):
        return None


def _is_whole(directory: Path, stamp: Stamp) -> bool:
    try:
        return all((directory / n).stat().st_size == size for n, size in stamp.files.items())
    except OSError:
        return False


def _hash(source: Path, size: int, progress: Progress | None) -> str:
    sha = hashlib.sha256()
    done = 0
    with source.open("rb") as file:
        while block := file.read(_BLOCK):
            sha.update(block)
            done += len(block)
            if progress is not None:
                progress("hashing the GGUF", done, size)
    return sha.hexdigest()


def _write_text(path: Path, text: str) -> None:
    """Write atomically: temporary file, fsync, rename."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise _unusable(path, "written", problem) from problem


def _unusable(path: Path, what: str, problem: OSError) -> InputError:
    return InputError(
        error(
            "cache.unusable",
            f"the cache cannot be {what}: {problem.strerror or problem}",
            "mend that, or set ONEBIT_CACHE_DIR to another directory",
            Where(file=str(path)),
        )
    )
