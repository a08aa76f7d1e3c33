"""The device lock: processes that want the NPU take turns.

An advisory `flock` on one small file per machine. The kernel frees it when every process that
holds the descriptor is gone, so a crash never leaves it behind. The server holds it for all its
contexts and hands it on to its worker, so it stays held until both have ended.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from onebit.findings import DeviceError, Where, error

ROOT = Path("/")
_POLL = 0.2


class DeviceLock:
    """The lock, held until `release`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """To be inherited by the worker."""

    def release(self) -> None:
        """Let go. Safe to call twice."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def lock_file(root: Path = ROOT) -> Path:
    """Return the machine's lock file: one name for all users; see `_open`."""
    return root / "tmp/onebit-npu.lock"


def take_lock(timeout: float, waits: Callable[[str], None], path: Path) -> DeviceLock:
    """Take the lock, waiting for another process that holds it.

    Args:
        timeout: Seconds to wait; 0 waits for ever.
        waits: Told once, with the holder, when there is something to wait for.
        path: The lock file.

    Raises:
        DeviceError: still held after `timeout`, or the file cannot be used.
    """
    descriptor = _open(path)
    try:
        begun = time.monotonic()
        told = False
        while not _try(descriptor):
            who = _holder(descriptor)
            if not told:
                waits(who)
                told = True
            if timeout and time.monotonic() - begun >= timeout:
                raise DeviceError(
                    error(
                        "npu.lock_timeout",
                        f"the NPU is held by {who}, and was not free within {timeout:g} s",
                        "end that process, or raise npu.lock_timeout (0 waits for ever)",
                        Where(file=str(path)),
                    )
                )
            time.sleep(_POLL)
        _sign(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return DeviceLock(descriptor)


def holder(path: Path) -> str:
    """Return who holds the lock; empty when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return "" if _try(descriptor) else _holder(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """Open the file, never through a link and never creating over another user's file."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask: other users lock it as well
            return descriptor
        except FileExistsError:
            pass
        try:
            return os.open(path, flags | os.O_RDWR)
        except PermissionError:
            return os.open(path, flags | os.O_RDONLY)  # enough to lock it
    except OSError as problem:
        mend = "delete it if it is a leftover, as its owner"
        what = f"the NPU's lock file cannot be opened: {problem.strerror}"
        raise DeviceError(error("npu.lock_file", what, mend, Where(file=str(path)))) from problem


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(descriptor: int) -> None:
    """Leave the process number for those who wait."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        return  # opened for reading only: the lock holds all the same, but nameless


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return f"process {text}" if text.isdecimal() else "another process"
