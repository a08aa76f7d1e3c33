"""Chooses the device, and says why.

`auto` takes the NPU when pyxrt imports, a device answers that nobody holds, and a full kernel set
resolves; otherwise the CPU, in one line. `npu` never falls back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from onebit.config import ServeConfig
from onebit.findings import Finding, Refusal, warning
from onebit.plan.model import Plan
from onebit.routes.resolution import DeviceChoice, KernelChoice
from onebit.routes.world import KernelSearch, World


def choose_device(config: ServeConfig, plan: Plan, directory: Path, world: World) -> DeviceChoice:
    """Return the device that `plan` runs on.

    Raises:
        Refusal: `device: npu` was asked for and something it needs is missing.
    """
    if config.device == "npu":
        return _npu_or_refuse(config, plan, directory, world)
    if config.device == "auto":
        return _auto(config, plan, directory, world)
    if config.device == "reference":
        return DeviceChoice(asked="reference", device="reference", why="the config asks for it")
    return _cpu(world, "cpu", "the config asks for it")


def _search(config: ServeConfig, plan: Plan, directory: Path, world: World) -> KernelSearch:
    variable = world.environ.get("ONEBIT_NPU_KERNELS") or None
    return world.find_kernels(plan, directory, config.kernels, variable)


def _kernels(search: KernelSearch) -> KernelChoice:
    path = str(search.path) if search.path is not None else None
    return KernelChoice(path=path, designs=search.designs, searched=search.searched)


def _npu_or_refuse(config: ServeConfig, plan: Plan, directory: Path, world: World) -> DeviceChoice:
    why = "npu.gemm: host runs the NPU's arithmetic on the CPU; no device is opened"
    if config.npu.gemm == "device":
        state = world.npu(world.device_root)
        if not state.usable:
            raise Refusal(state.findings)
        why = f"the config asks for it: {state.what}"
        if state.busy:
            why += f"; waits for {state.busy}"
    search = _search(config, plan, directory, world)
    if search.path is None:
        raise Refusal(search.findings)
    return DeviceChoice(asked="npu", device="npu", why=why, kernels=_kernels(search))


def _auto(config: ServeConfig, plan: Plan, directory: Path, world: World) -> DeviceChoice:
    state = world.npu(world.device_root)
    if not state.usable:
        return _cpu(world, "auto", f"no NPU: {state.what}", found=state.findings)
    if state.busy:
        return _cpu(world, "auto", f"the NPU is in use by {state.busy}")
    search = _search(config, plan, directory, world)
    kernels = _kernels(search)
    if search.path is None:
        why = "; ".join(finding.what for finding in search.findings)
        return _cpu(world, "auto", f"{state.what} has no kernels for this model: {why}", kernels)
    return DeviceChoice(asked="auto", device="npu", why=f"{state.what} is usable", kernels=kernels)


def _cpu(
    world: World,
    asked: Literal["auto", "cpu"],
    why: str,
    kernels: KernelChoice | None = None,
    found: tuple[Finding, ...] = (),
) -> DeviceChoice:
    """Return the CPU; without its native kernels, the reference device, which says it is slow."""
    kernels = kernels or KernelChoice()
    missing = world.native_missing()
    if not missing:
        return DeviceChoice(asked=asked, device="cpu", why=why, findings=found, kernels=kernels)
    slow = warning(
        "cpu.slow",
        f"the native kernels are missing ({missing}): NumPy runs the model, many times slower",
        "reinstall onebit with a C++20 compiler present",
    )
    why = f"{why}; the native kernels are missing, NumPy is slow"
    return DeviceChoice(
        asked=asked, device="reference", why=why, findings=(*found, slow), kernels=kernels
    )
