"""What the NPU device's own probes say, in the resolver's terms.

The NPU's modules are imported only when a device is wanted. Expected of them:

    onebit.devices.npu.probe.probe_npu(device root) -> usable, what, findings, busy
    onebit.devices.npu.kernels.find_kernel_set(plan, directory, configured, variable)
        -> searched [place, path, why], path, designs [names], findings
    onebit.forward.remote.open_npu(plan, container path, kernels path, options, NpuConfig,
                                   device_root=)
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from onebit.devices.base import Program
from onebit.findings import error
from onebit.plan.model import Plan
from onebit.routes.resolution import KernelPlace
from onebit.routes.world import KernelSearch, NpuState, Opening

ABSENT = error("npu.absent", "this build has no NPU device", "set device: cpu")


def have_device() -> bool:
    """Whether this build has the NPU device's modules."""
    return find_spec("onebit.devices.npu") is not None


def npu_state(root: Path) -> NpuState:
    """Probe the NPU below `root`: pyxrt, device, permissions, lock."""
    if not have_device():
        return NpuState(False, ABSENT.what, (ABSENT,))
    found = import_module("onebit.devices.npu.probe").probe_npu(root)
    return NpuState(found.usable, found.what, tuple(found.findings), found.busy)


def search_kernels(
    plan: Plan, directory: Path, configured: Path | None, variable: str | None
) -> KernelSearch:
    """Look for a kernel set that runs `plan`."""
    if not have_device():
        return KernelSearch((), findings=(ABSENT,))
    kernels = import_module("onebit.devices.npu.kernels")
    found = kernels.find_kernel_set(plan, directory, configured, variable)
    searched = tuple(
        KernelPlace(place=p.place, path=str(p.path) if p.path is not None else None, why=p.why)
        for p in found.searched
    )
    path = Path(found.path) if found.path is not None else None
    return KernelSearch(searched, path, len(found.designs), tuple(found.findings))


def open_on_npu(opening: Opening) -> Program:
    """Open a program in the NPU's worker process."""
    program: Program = import_module("onebit.forward.remote").open_npu(
        opening.plan,
        Path(opening.container.path),
        Path(opening.kernels) if opening.kernels is not None else None,
        opening.options,
        opening.npu,
        device_root=opening.device_root,
    )
    return program
