"""What the NPU device's own probes say, in the resolver's terms."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from onebit.findings import error
from onebit.plan.model import Plan
from onebit.routes.world import KernelSearch, NpuState


def npu_state() -> NpuState:
    """Probe the NPU: pyxrt, device, permissions, lock."""
    if find_spec("onebit.devices.npu") is None:
        return NpuState(
            False,
            "this build has no NPU device",
            (error("npu.absent", "this build has no NPU device", "set device: cpu"),),
        )
    from onebit.devices.npu.probe import probe_npu

    return probe_npu()


def search_kernels(
    plan: Plan, directory: Path, configured: Path | None, variable: str | None
) -> KernelSearch:
    """Look for a kernel set that runs `plan`."""
    from onebit.devices.npu.kernels import find_kernel_set

    return find_kernel_set(plan, directory, configured, variable)
