"""Finds a family's tensors in a container and proves their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from onebit.container import Container, Entry, TensorKind
from onebit.container.kinds import TILE_COLS, TILE_ROWS
from onebit.families.config_json import Scope
from onebit.families.model import Family, TensorSpec
from onebit.findings import Finding, InputError, Where, error, note, warning
from onebit.plan.model import TensorRef

_MEND_CONVERT = "convert the model again, or restore the config.json that came with it"
_SHOWN = 6
_WIDE_TILES = (5120, 4736, 8704)


@dataclass
class TensorTable:
    """The tensors a plan uses, by role, and everything found wrong on the way."""

    outer: dict[str, TensorRef] = field(default_factory=dict)
    layers: list[dict[str, TensorRef]] = field(default_factory=list)
    substituted: set[str] = field(default_factory=set)
    """Outer roles that use their `otherwise` tensor."""
    used: set[str] = field(default_factory=set)
    """Names of the container's tensors that the plan reads."""
    findings: list[Finding] = field(default_factory=list)


@dataclass
class _Problem:
    """One kind of fault of one role, with the layers that have it."""

    first: Finding
    name: str
    layers: list[int] = field(default_factory=list)


class _Finder:
    def __init__(self, family: Family, scope: Scope, container: Container) -> None:
        self.family, self.scope, self.container = family, scope, container
        self.table = TensorTable()
        self.problems: dict[tuple[str, str, str], _Problem] = {}
        self.missing: list[str] = []

    def find(self, name: str) -> str | None:
        """Return the name under which the container has `name`, or None.

        One vendor file writes `model.layer.` where all others write `model.layers.`.
        """
        for candidate in (name, name.replace("model.layers.", "model.layer.", 1)):
            if candidate in self.container.entries:
                return candidate
        return None

    def is_wanted(self, spec: TensorSpec) -> bool:
        return spec.when is None or bool(self.scope.number(spec.when))

    def locate(self, spec: TensorSpec, layer: int | None) -> str | None:
        names = [n if layer is None else n.replace("{n}", str(layer)) for n in spec.name]
        return next((found for n in names if (found := self.find(n)) is not None), None)

    def reference(self, role: str, name: str, spec: TensorSpec, layer: int | None) -> None:
        """Add the tensor `name` for `role`, or say why it does not fit."""
        self.table.used.add(name)
        shape = tuple(self.scope.integer(expr) for expr in spec.shape)
        if spec.shape[0] == "vocab":
            rows = stored_rows(self.container.entries[name], shape[1])
            tiled = self.container.entries[name].dtype == "I8"
            if rows is not None and rows >= shape[0] + (TILE_ROWS if tiled else 1):
                shape = (rows, *shape[1:])
        try:
            kind = self.container.kind_of(name, shape)
        except InputError as cause:
            for finding in cause.findings:
                self.problem(role, finding, spec.name[0], layer)
            return
        target = self.table.outer if layer is None else self.table.layers[layer]
        target[role] = TensorRef(name=name, shape=shape, kind=kind)
        if kind is TensorKind.INT8:
            self.table.used.add(name + ".scale")

    def problem(self, role: str, finding: Finding, name: str, layer: int | None) -> None:
        key = (role, finding.code, finding.what)
        entry = self.problems.setdefault(key, _Problem(finding, name))
        if layer is not None:
            entry.layers.append(layer)


def stored_rows(entry: Entry, cols: int) -> int | None:
    """Return how many rows of `cols` a tensor stores, padding included, when its header tells."""
    if entry.dtype in ("BF16", "F16", "F32", "Q4NX") and len(entry.shape) == 2:
        return entry.shape[0]
    if entry.dtype == "I8" and len(entry.shape) == 3:
        return entry.shape[0] * TILE_ROWS
    if entry.dtype == "I8" and len(entry.shape) == 2 and entry.shape[1] in _WIDE_TILES:
        return entry.shape[0] // -(-cols // TILE_COLS) * TILE_ROWS
    return None


def find_tensors(
    family: Family, scope: Scope, container: Container, layer_count: int
) -> TensorTable:
    """Return the tensor of every role, with findings for all that is missing or does not fit."""
    finder = _Finder(family, scope, container)
    _use_padded_dims(finder)
    finder.table.layers = [{} for _ in range(layer_count)]
    _outer(finder)
    for layer in range(layer_count):
        for role, spec in family.layer_tensors.items():
            if not finder.is_wanted(spec):
                continue
            name = finder.locate(spec, layer)
            if name is None:
                finder.missing.append(spec.name[0].replace("{n}", str(layer)))
            else:
                finder.reference(role, name, spec, layer)
    table = finder.table
    if finder.problems:
        table.findings += _dim_findings(finder)
    table.findings += _shape_findings(finder, layer_count)
    table.findings += _missing_findings(finder)
    table.findings += _extra_layers(finder, layer_count)
    return table


def _use_padded_dims(finder: _Finder) -> None:
    """Put a dim's padded size into the scope where the tensors have that size."""
    for dim, expr in finder.family.padded.items():
        padded = finder.scope.integer(expr)
        plain = finder.scope.numbers[dim]
        roles = (s for s in finder.family.layer_tensors.values() if s.shape[0] == dim)
        spec = next(roles, None)
        name = finder.locate(spec, 0) if spec is not None else None
        if spec is None or name is None or padded == plain:
            continue
        if not _fits(finder, name, spec):
            finder.scope.numbers[dim] = padded
            if _fits(finder, name, spec):
                finder.scope.padded[dim] = plain
            else:
                finder.scope.numbers[dim] = plain


def _fits(finder: _Finder, name: str, spec: TensorSpec) -> bool:
    try:
        finder.container.kind_of(name, tuple(finder.scope.integer(e) for e in spec.shape))
    except InputError:
        return False
    return True


def _outer(finder: _Finder) -> None:
    absent: list[tuple[str, TensorSpec]] = []
    for role, spec in finder.family.tensors.items():
        if not finder.is_wanted(spec):
            continue
        name = finder.locate(spec, None)
        if name is None:
            absent.append((role, spec))
        else:
            finder.reference(role, name, spec, None)
    for role, spec in absent:
        substitute = finder.table.outer.get(spec.otherwise or "")
        allowed = spec.otherwise_when is None or bool(finder.scope.number(spec.otherwise_when))
        if substitute is None or not allowed:
            finder.missing.append(spec.name[0])
        else:
            finder.table.outer[role] = substitute
            finder.table.substituted.add(role)


def _dim_findings(finder: _Finder) -> list[Finding]:
    """Name the config keys that vectors of the container contradict: one key breaks many shapes."""
    family, container = finder.family, finder.container
    specs = {**family.tensors, **family.layer_tensors}.values()
    found: dict[str, Finding] = {}
    for spec in specs:
        dim = spec.shape[0]
        if len(spec.shape) != 1 or dim not in family.dims or dim in found:
            continue
        name = finder.locate(spec, 0)
        stored = container.entries[name].shape if name is not None else ()
        if len(stored) != 1 or stored[0] == finder.scope.numbers[dim]:
            continue
        key = family.dims[dim].key[0]
        found[dim] = error(
            "config.dim",
            f"is {finder.scope.numbers[dim]}, but {name} has {stored[0]} values",
            f"write {key}: {stored[0]}, or restore the config.json of this model",
            Where(file=str(Path(container.path).parent / "config.json"), field=key),
        )
    return list(found.values())


def _shape_findings(finder: _Finder, layer_count: int) -> list[Finding]:
    found = []
    for problem in finder.problems.values():
        finding = problem.first
        mend = _MEND_CONVERT if finding.code == "container.shape_mismatch" else finding.mend
        what, where = finding.what, finding.where
        if len(problem.layers) > 1:
            what += f" ({_layers_text(problem.layers, layer_count)})"
            where = Where(file=str(finder.container.path), field=problem.name)
        found.append(error(finding.code, what, mend, where))
    return found


def _layers_text(layers: Sequence[int], layer_count: int) -> str:
    if len(layers) == layer_count:
        return f"all {layer_count} layers"
    shown = ", ".join(str(n) for n in layers[:_SHOWN])
    more = f" and {len(layers) - _SHOWN} more" if len(layers) > _SHOWN else ""
    return f"layers {shown}{more}"


def _missing_findings(finder: _Finder) -> list[Finding]:
    unused = sorted(set(finder.container.entries) - finder.table.used)
    found = []
    for name in finder.missing[: _SHOWN * 4]:
        near = get_close_matches(name, unused, n=1, cutoff=0.85)
        hint = f"; the file has {near[0]!r}, which nothing uses" if near else ""
        found.append(
            error(
                "container.missing_tensor",
                f"the {finder.family.family} family needs this tensor and the file has none{hint}",
                _MEND_CONVERT,
                Where(file=str(finder.container.path), field=name),
            )
        )
    rest = len(finder.missing) - _SHOWN * 4
    if rest > 0:
        found.append(
            error(
                "container.missing_tensor",
                f"{rest} more tensors are missing",
                _MEND_CONVERT,
                Where(file=str(finder.container.path)),
            )
        )
    return found


def _extra_layers(finder: _Finder, layer_count: int) -> list[Finding]:
    spec = next(iter(finder.family.layer_tensors.values()))
    present = 0
    while finder.locate(spec, present) is not None:
        present += 1
    if present == layer_count:
        return []
    return [
        error(
            "config.layer_count",
            f"config.json says {layer_count} layers, the file holds {present}",
            _MEND_CONVERT,
            Where(
                file=str(Path(finder.container.path).parent / "config.json"),
                field="num_hidden_layers",
            ),
        )
    ]


def unused_findings(container: Container, used: set[str], ignored: Sequence[str]) -> list[Finding]:
    """Return one finding for the tensors that the plan does not read, or none.

    Tensors of other modalities and those whose content the plan has from elsewhere are notes.
    """
    unused = sorted(set(container.entries) - used)
    quiet = [
        n for n in unused if any(mark in n for mark in (*ignored, "vision", "audio", "visual"))
    ]
    loud = [n for n in unused if n not in quiet]
    where = Where(file=str(container.path))
    found: list[Finding] = []
    if quiet:
        found.append(note("container.unused_tensor", f"not used: {_names(quiet)}", where))
    if loud:
        found.append(
            warning(
                "container.unused_tensor",
                f"{len(loud)} tensor(s) that this family does not read: {_names(loud)}",
                "check `model_type` in config.json if one of them matters to the model",
                where,
            )
        )
    return found


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
