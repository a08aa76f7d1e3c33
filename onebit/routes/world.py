"""The machine as the resolver sees it: environment, NPU, native kernels, add-ons, cache.

Everything that a decision depends on beside config and model passes through here, so that tests
can put any machine in its place. Devices are imported only when they are asked about.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onebit.config import DeviceName
from onebit.config.npu import NpuConfig
from onebit.container import Container
from onebit.devices.base import Program, ProgramOptions
from onebit.findings import Finding
from onebit.plan import bind
from onebit.plan.model import Plan
from onebit.routes.addons import InstalledAddon, installed_addons
from onebit.routes.resolution import KernelPlace


@dataclass(frozen=True, slots=True)
class NpuState:
    """Whether an NPU can be used now."""

    usable: bool
    what: str
    """The device's name, or in one line why there is none."""
    findings: tuple[Finding, ...] = ()
    """Errors that stop `device: npu`."""
    busy: str = ""
    """Who holds the device, if somebody does. `npu` waits for it, `auto` does not."""


@dataclass(frozen=True, slots=True)
class KernelSearch:
    """Where a kernel set was looked for, and the complete one if there is any."""

    searched: tuple[KernelPlace, ...]
    path: Path | None = None
    designs: int = 0
    findings: tuple[Finding, ...] = ()
    """Errors: nothing found, or what the first set found lacks."""


FindKernels = Callable[[Plan, Path, Path | None, str | None], KernelSearch]
"""(plan, model directory, configured directory, ONEBIT_NPU_KERNELS) -> what was found."""


def _native_missing() -> str:
    from onebit.devices.cpu import native_status

    return native_status()


def _probe(root: Path) -> NpuState:
    from onebit.routes.npu import npu_state

    return npu_state(root)


def _find_kernels(
    plan: Plan, directory: Path, configured: Path | None, variable: str | None
) -> KernelSearch:
    from onebit.routes.npu import search_kernels

    return search_kernels(plan, directory, configured, variable)


@dataclass(frozen=True, slots=True)
class Opening:
    """What a device is opened with."""

    plan: Plan
    container: Container
    device: DeviceName
    options: ProgramOptions
    npu: NpuConfig
    kernels: str | None
    """Directory of the NPU's kernel set."""
    isa: str
    """Instruction set that the CPU kernels are held to; empty: the best."""
    device_root: Path = Path("/")
    """Where /sys, /dev and the NPU's lock lie."""


def _open_program(opening: Opening) -> Program:
    if opening.device == "npu":
        from onebit.routes.npu import open_on_npu

        return open_on_npu(opening)
    from onebit.forward import open_host

    weights = bind(opening.plan, opening.container)
    return open_host(opening.plan, weights, opening.device, opening.options, isa=opening.isa)


@dataclass(frozen=True)
class World:
    """What decisions depend on beside config and model."""

    environ: Mapping[str, str] = field(default_factory=dict)
    npu: Callable[[Path], NpuState] = _probe
    """Probes the NPU below a device root."""
    find_kernels: FindKernels = _find_kernels
    native_missing: Callable[[], str] = _native_missing
    """Why the native CPU kernels are missing; empty when they are there."""
    addons: Callable[[], Sequence[InstalledAddon]] = installed_addons
    open_program: Callable[[Opening], Program] = _open_program

    @property
    def device_root(self) -> Path:
        """Where /sys, /dev and the NPU's lock lie: ONEBIT_DEVICE_ROOT, for tests."""
        return Path(self.environ.get("ONEBIT_DEVICE_ROOT") or "/")

    @property
    def cache_dir(self) -> Path:
        """Where converted GGUF files are kept."""
        if chosen := self.environ.get("ONEBIT_CACHE_DIR"):
            return Path(chosen).expanduser()
        base = self.environ.get("XDG_CACHE_HOME")
        home = Path(self.environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111
        return (Path(base) if base else home / ".cache") / "onebit"
