"""Kernel sets: what a directory of designs holds, and where a plan's set is found."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from onebit.devices.npu.designs import (
    ROWS,
    Design,
    DesignChoice,
    choose_designs,
    needed_names,
    parse_name,
)
from onebit.devices.npu.elf import ElfFacts, inspect_elf
from onebit.findings import Finding, Refusal, Severity, Where, error
from onebit.plan.model import Plan
from onebit.resources import resource_dir

GROUP: Final = "onebit.kernels"
"""Entry points of packages that bring kernels: each loads to a directory, or returns one."""
DESCRIPTOR: Final = "kernels.json"
"""Optional file in a kernel set: {"designs": {file name: {"sha256": ...}}}."""
_PREFIX = "full_i8_"
_MEND_FILE = "build or copy the design file anew"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KernelFile(_Model):
    """One design file of a set, or one that a plan needs and the set lacks."""

    name: str
    role: str
    k: int
    n: int
    bytes: int = 0
    sha256: str = ""
    problem: str = Field(default="", description="What is wrong with it; empty for a good one.")
    needed: bool = Field(default=False, description="Whether the model's plan runs on it.")


class KernelReport(_Model):
    """A directory of designs, inspected without a device."""

    directory: str
    designs: tuple[KernelFile, ...]
    findings: tuple[Finding, ...]

    @property
    def complete(self) -> bool:
        """Whether everything that is needed is there and well-formed."""
        return not any(f.severity is Severity.ERROR for f in self.findings)


class SearchedPlace(_Model):
    """One place where a set was looked for."""

    place: str
    path: Path | None
    why: str


class KernelSearch(_Model):
    """Where a kernel set was looked for; `path` is set only for a complete one."""

    searched: tuple[SearchedPlace, ...]
    path: Path | None = None
    designs: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def inspect_kernels(directory: Path, plan: Plan | None = None) -> KernelReport:
    """Return what a directory of designs holds and, for a plan, what it lacks.

    Args:
        directory: A flat directory of design files.
        plan: The model that should run on it; without one, every file is judged by itself.
    """
    if not directory.is_dir():
        what = "is no directory"
        mend = "name a directory that holds full_i8_*.elf designs"
        finding = error("npu.kernels_directory", what, mend, Where(file=str(directory)))
        return KernelReport(directory=str(directory), designs=(), findings=(finding,))
    digests, findings = _descriptor(directory)
    files = _files(directory, digests)
    if plan is None:
        findings += [_broken(directory, file) for file in files if file.problem]
        if not files:
            findings.append(_empty(directory))
        return KernelReport(
            directory=str(directory), designs=tuple(files), findings=tuple(findings)
        )
    choice = choose_designs(plan, {file.name for file in files})
    needed = {design.name for design in choice.designs}
    files = [f.model_copy(update={"needed": f.name in needed}) for f in files]
    findings += [_broken(directory, f) for f in files if f.needed and f.problem]
    findings += [_missing(directory, names) for names in choice.missing]
    lacking = [_absent(names[0]) for names in choice.missing]
    return KernelReport(
        directory=str(directory), designs=(*files, *lacking), findings=tuple(findings)
    )


def find_kernel_set(
    plan: Plan, model_dir: Path, configured: Path | None, env_value: str | None
) -> KernelSearch:
    """Look for the kernel set that runs a plan; the first place that has designs decides.

    A set that lacks a design, or has a broken one, is not passed over: its findings name each file.

    Args:
        plan: The plan.
        model_dir: The model's directory; its `npu` folder is the second place.
        configured: `kernels` of the config.
        env_value: Value of ONEBIT_NPU_KERNELS.
    """
    searched: list[SearchedPlace] = []
    for place, path, named in _places(model_dir, configured, env_value):
        if path is None:
            searched.append(SearchedPlace(place=place, path=None, why="not set"))
            continue
        report = inspect_kernels(path, plan)
        why = _passed_over(report, named)
        if why:
            searched.append(SearchedPlace(place=place, path=path, why=why))
            continue
        names = tuple(f.name for f in report.designs if f.needed)
        if report.complete:
            why = f"{len(names)} designs, complete"
            searched.append(SearchedPlace(place=place, path=path, why=why))
            return KernelSearch(searched=tuple(searched), path=path, designs=names)
        searched.append(SearchedPlace(place=place, path=path, why="incomplete or broken"))
        return KernelSearch(searched=tuple(searched), findings=report.findings)
    return KernelSearch(searched=tuple(searched), findings=(_none(plan, model_dir),))


def load_choice(plan: Plan, directory: Path | None) -> DesignChoice:
    """Return the designs of a set that run a plan.

    Args:
        plan: The plan.
        directory: The set; None (GEMMs on the host) stands for one with all that is needed.

    Raises:
        Refusal: the set lacks a design.
    """
    if directory is None:
        return choose_designs(plan, needed_names(plan))
    choice = choose_designs(plan, {p.name for p in directory.iterdir() if parse_name(p.name)})
    if choice.missing:
        raise Refusal([_missing(directory, names) for names in choice.missing])
    return choice


def _places(
    model_dir: Path, configured: Path | None, env_value: str | None
) -> list[tuple[str, Path | None, bool]]:
    """Return (name, path, whether a person named it) of every place, in order."""
    places: list[tuple[str, Path | None, bool]] = [
        ("ONEBIT_NPU_KERNELS", Path(env_value).expanduser() if env_value else None, True),
        ("model directory", model_dir / "npu", False),
        ("configured", configured, True),
    ]
    for entry in entry_points(group=GROUP):
        try:
            value = entry.load()
            path = Path(value() if callable(value) else value)
        except Exception as problem:  # another package's code: its failure is its answer
            path = Path(f"({entry.name}: {type(problem).__name__}: {problem})")
        places.append((f"package {entry.name}", path, False))
    places.append(("packaged", resource_dir("kernels"), False))
    return places


def _passed_over(report: KernelReport, named: bool) -> str:
    """Return why a place is no hit; a place that a person named is always one."""
    if named:
        return ""
    if not Path(report.directory).is_dir():
        return "no such directory"
    if not any(f.bytes or f.problem for f in report.designs if f.sha256):
        return "it holds no full_i8_*.elf"
    return "" if any(f.needed for f in report.designs) else "it has no design of this model"


def _files(directory: Path, digests: dict[str, str]) -> list[KernelFile]:
    found = []
    for path in sorted(directory.iterdir()):
        design = parse_name(path.name)
        if design is not None and path.is_file():
            found.append(_inspect(path, design, digests.get(path.name)))
    return found


def _inspect(path: Path, design: Design, digest: str | None) -> KernelFile:
    facts = inspect_elf(path)
    return KernelFile(
        name=path.name,
        role=design.role,
        k=design.k,
        n=design.n,
        bytes=facts.bytes,
        sha256=facts.sha256,
        problem=facts.problem or _mismatch(facts, design, digest),
    )


def _mismatch(facts: ElfFacts, design: Design, digest: str | None) -> str:
    if facts.shape not in (None, (ROWS, design.k, design.n)):
        return f"its own note says M, K, N = {facts.shape}, its name {(ROWS, design.k, design.n)}"
    if digest is not None and digest != facts.sha256:
        return f"sha256 {facts.sha256[:12]}… differs from {digest[:12]}… in {DESCRIPTOR}"
    return ""


def _descriptor(directory: Path) -> tuple[dict[str, str], list[Finding]]:
    """Return file name -> sha256 as the set's own descriptor states them."""
    path = directory / DESCRIPTOR
    if not path.is_file():
        return {}, []
    try:
        designs = json.loads(path.read_text(encoding="utf-8-sig"))["designs"]
        return {name: str(facts["sha256"]).lower() for name, facts in designs.items()}, []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        what = f'is not {{"designs": {{name: {{"sha256": ...}}}}}}: {type(problem).__name__}'
        mend = "correct it, or delete it: digests are then not compared"
        return {}, [error("npu.kernels_descriptor", what, mend, Where(file=str(path)))]


def _absent(name: str) -> KernelFile:
    design = parse_name(name)
    if design is None:
        raise ValueError(f"{name} is no design's name")
    return KernelFile(
        name=name, role=design.role, k=design.k, n=design.n, problem="missing", needed=True
    )


def _broken(directory: Path, file: KernelFile) -> Finding:
    where = Where(file=str(directory / file.name))
    return error("npu.kernel_broken", file.problem, _MEND_FILE, where)


def _missing(directory: Path, names: tuple[str, ...]) -> Finding:
    what = f"the kernel set has no {names[0]}"
    if len(names) > 1:
        what += f" (nor {' or '.join(names[1:])}, which would do as well)"
    mend = "add the file to the set, or set `kernels` to a complete one"
    return error("npu.kernel_missing", what, mend, Where(file=str(directory)))


def _empty(directory: Path) -> Finding:
    mend = "name a directory that holds full_i8_*.elf designs"
    what = f"holds no {_PREFIX}*.elf design"
    return error("npu.kernels_empty", what, mend, Where(file=str(directory)))


def _none(plan: Plan, model_dir: Path) -> Finding:
    dims = ", ".join(f"{name} {plan.dims[name]}" for name in _SHAPE if name in plan.dims)
    return error(
        "npu.no_kernels",
        f"there is no NPU kernel set for this model ({dims}); it needs "
        + ", ".join(needed_names(plan)),
        f"set ONEBIT_NPU_KERNELS to a directory of them, put them into {model_dir / 'npu'}, or set "
        "`kernels` in the config; or set `device: cpu`",
        Where(file=str(model_dir)),
    )


_SHAPE = ("hidden", "layers", "heads", "kv_heads", "head_dim", "inter", "vocab")
