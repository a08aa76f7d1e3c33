"""How many threads the CPU device takes: the cores it may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def default_threads() -> int:
    """Return the physical cores this process may run on, within its container's CPU quota.

    Two threads of one core share its vector units, so a second one only adds waiting.
    """
    allowed = sorted(os.sched_getaffinity(0))
    cores = {_core_of(cpu) for cpu in allowed}
    quota = _cgroup_quota()
    return max(1, min(len(cores), len(cores) if quota is None else math.ceil(quota)))


def _core_of(cpu: int) -> str:
    """A name that all CPUs of one core share."""
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text().strip()
    except OSError:  # no topology in this kernel or container: count every CPU
        return str(cpu)


def _cgroup_quota() -> float | None:
    """CPUs granted by cgroup v2 or v1; None without a limit."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (_CGROUP / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (_CGROUP / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period)
