"""Machines of every kind to resolve a model on, and configs by keyword."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onebit.config import LoadedConfig, load_config
from onebit.config.walk import leaf_of
from onebit.devices.null import open_null
from onebit.findings import error
from onebit.routes.addons import InstalledAddon
from onebit.routes.resolution import KernelPlace
from onebit.routes.world import KernelSearch, NpuState, Opening, World

KERNELS = KernelSearch(
    (KernelPlace(place="packaged", path="/k", why="complete"),), path=Path("/k"), designs=5
)
NO_KERNELS = KernelSearch(
    (KernelPlace(place="packaged", path="/k", why="no full_i8_*.elf there"),),
    findings=(error("npu.no_kernels", "no kernel set was found", "set ONEBIT_NPU_KERNELS"),),
)
NPU = NpuState(True, "NPU Strix")
NO_NPU = NpuState(
    False, "pyxrt is not there", (error("npu.no_pyxrt", "pyxrt is not there", "install XRT"),)
)


@dataclass
class Machine:
    """Builds a `World` and records what the resolver asked of it."""

    npu: NpuState = NO_NPU
    kernels: KernelSearch = NO_KERNELS
    native: str = ""
    addons: list[InstalledAddon] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    searches: list[tuple[Any, ...]] = field(default_factory=list)
    opened: list[Opening] = field(default_factory=list)

    def world(self) -> World:
        return World(
            environ=self.environ,
            npu=self._npu,
            find_kernels=self._find,
            native_missing=lambda: self.native,
            addons=lambda: self.addons,
            open_program=self._open,
        )

    def _npu(self, root: Path) -> NpuState:
        self.asked.append("npu")
        return self.npu

    def _find(self, plan: Any, directory: Path, configured: Path | None, variable: str | None):
        self.asked.append("kernels")
        self.searches.append((directory, configured, variable))
        return self.kernels

    def _open(self, opening: Opening):
        self.opened.append(opening)
        return open_null(opening.plan.vocab, opening.options)


def config(model: Path | None, **settings: Any) -> LoadedConfig:
    """Return a config with settings by dotted name, `__` for the dot."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    if model is not None:
        named["model"] = str(model)
    return load_config(
        None, {}, {leaf_of(name).keys: (leaf_of(name).flag, v) for name, v in named.items()}
    )
