"""What the resolver decided, as data: printed by `explain`, run by `serve`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from onebit.config import DeviceName, RouteName
from onebit.findings import Finding
from onebit.plan.model import Linear, Plan

if TYPE_CHECKING:
    from onebit.routes.session import Session

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is (0: unknown)."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RouteTrial(_Model):
    """One route, and why it took the model or was passed over."""

    route: RouteName
    taken: bool
    why: str
    findings: tuple[Finding, ...] = Field(
        default=(), description="What stops this route from serving a model that it takes."
    )


class KernelPlace(_Model):
    """One place where NPU kernels were looked for."""

    place: str = Field(description="ONEBIT_NPU_KERNELS, model directory, configured or packaged.")
    path: str | None = Field(default=None, description="None when nothing names this place.")
    why: str = Field(description="What was found there.")


class KernelChoice(_Model):
    """The NPU kernel set in use and how it was found."""

    path: str | None = None
    designs: int = Field(default=0, description="Designs of the set that the plan needs.")
    searched: tuple[KernelPlace, ...] = ()


class DeviceChoice(_Model):
    """The device, and why this one."""

    asked: Literal["auto", "cpu", "npu", "reference"]
    device: DeviceName | None = Field(
        description="None while a GGUF is not converted yet, and for a private add-on."
    )
    why: str
    findings: tuple[Finding, ...] = Field(
        default=(), description="What keeps `auto` from the NPU, or the native kernels away."
    )
    kernels: KernelChoice = KernelChoice()


class Setting(_Model):
    """One setting with its value and where that was set."""

    name: str
    value: Any
    source: str


class PlanSummary(_Model):
    """A plan in short."""

    family: str
    model_type: str
    dims: dict[str, int]
    kinds: dict[str, int] = Field(description="Tensors by the kind they are stored as.")
    gemms: tuple[str, ...] = Field(description="GEMM roles with K and N, each shape once.")
    derived: bool = Field(description="Made in memory because the directory has no plan.json.")
    kv_bytes_per_token: int


class Memory(_Model):
    """How the KV cache is laid out."""

    context: int = Field(description="Longest prompt plus answer, in tokens.")
    pages: int
    page_size: int = Field(description="Tokens per page.")
    bytes: int = Field(description="Most memory that the KV cache will take.")


class Resolution(_Model):
    """A config and a model, mapped to what will run. `open` makes it run."""

    schema_version: Literal[1] = 1
    model: str = Field(description="The model's path.")
    name: str = Field(description="Name under which it is served.")
    route: RouteName
    trials: tuple[RouteTrial, ...]
    device: DeviceChoice
    numerics: str = Field(description="As asked; `auto` becomes the device's default when opened.")
    streams: int = 1
    memory: Memory | None = Field(description="None while a GGUF is not converted yet.")
    plan: PlanSummary | None = Field(description="None while a GGUF is not converted yet.")
    settings: tuple[Setting, ...]
    findings: tuple[Finding, ...] = Field(default=(), description="Warnings and notes.")

    _opener: Callable[[Progress], Session] | None = PrivateAttr(default=None)

    def with_opener(self, opener: Callable[[Progress], Session]) -> Resolution:
        """Attach what opens this resolution and return it."""
        self._opener = opener
        return self

    def open(self, progress: Progress) -> Session:
        """Load the model and return what runs it.

        Raises:
            OnebitError: something that only shows while loading: a device, a conversion.
            RuntimeError: this resolution was read from data, not made by `resolve`.
        """
        if self._opener is None:
            raise RuntimeError("only a resolution that `resolve` made can be opened")
        return self._opener(progress)


def summarise(plan: Plan, *, derived: bool, kv_bytes_per_token: int) -> PlanSummary:
    """Return a plan in short."""
    kinds: dict[str, int] = {}
    refs = [*plan.tensors.values(), *(r for layer in plan.layers for r in layer.tensors.values())]
    for ref in {ref.name: ref for ref in refs}.values():
        kinds[ref.kind.value] = kinds.get(ref.kind.value, 0) + 1
    ops = [op for kind in plan.kinds.values() for op in kind] + list(plan.epilogue)
    gemms = [f"{op.role} K{op.k} N{sum(op.n)}" for op in ops if isinstance(op, Linear)]
    return PlanSummary(
        family=plan.family,
        model_type=plan.model_type,
        dims=plan.dims,
        kinds=kinds,
        gemms=tuple(dict.fromkeys(gemms)),
        derived=derived,
        kv_bytes_per_token=kv_bytes_per_token,
    )
