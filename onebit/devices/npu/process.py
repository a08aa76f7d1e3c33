"""What this process may do: open the device node, lock memory."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from onebit.findings import Finding, error

HEAP_BYTES = 64 << 20
"""Locked by the driver as soon as the device is opened."""
_CAP_IPC_LOCK = 14


@dataclass(frozen=True, slots=True)
class Memlock:
    """How much memory this process may lock. `limit` None: as much as it likes."""

    limit: int | None

    @classmethod
    def of_this_process(cls) -> Memlock:
        """Return the soft limit, or none for a process with CAP_IPC_LOCK."""
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if soft == resource.RLIM_INFINITY or _has_capability(_CAP_IPC_LOCK):
            return cls(None)
        return cls(soft)

    def finding(self, needed: int) -> Finding | None:
        """Return what is wrong when `needed` bytes are to be locked."""
        if self.limit is None or needed <= self.limit:
            return None
        return error(
            "npu.memlock",
            f"this process may lock {_mib(self.limit)} of memory (ulimit -l), and the NPU needs "
            f"{_mib(needed)}",
            "in a shell: `ulimit -l unlimited` (or a memlock line in /etc/security/limits.conf and "
            "a new login); in a systemd service: `LimitMEMLOCK=infinity`",
        )


def may_open(node: Path) -> bool:
    """Whether this process may read and write a device node."""
    return os.access(node, os.R_OK | os.W_OK)


def _has_capability(bit: int) -> bool:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    held = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(held, 16) >> bit & 1)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count % 2**20 else f"{count >> 20} MiB"
