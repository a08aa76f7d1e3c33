"""Converts a GGUF into a model directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import onebit
from onebit.container import Container, TensorKind, write_container
from onebit.convert import blocks
from onebit.convert.config_keys import scale_guards, write_config
from onebit.convert.directory import new_directory, write_json
from onebit.convert.encode import Encoder
from onebit.convert.gguf_file import GgufFile
from onebit.convert.report import ConvertReport
from onebit.convert.rope_scaling import rope_scaling
from onebit.convert.source import GgufSource, Source
from onebit.convert.tokenizer import generation_config, gguf_tokenizer, tokenizer_config
from onebit.convert.transforms import recipe
from onebit.families import (
    Family,
    derive_plan,
    family_for_arch,
    load_families,
    special_tokens,
    template_traits,
)
from onebit.families.config_json import Scope, read_scope
from onebit.families.expressions import ExpressionError
from onebit.families.model import EmbedSpec, GgufTensor, TensorSpec
from onebit.findings import Finding, InputError, Severity, Where, error, warning
from onebit.plan import write_plan

Progress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all)."""
Types = Sequence[tuple[str, TensorKind]]
"""(pattern of a container tensor name, kind), the first that matches wins."""

CONVERTER = f"onebit-{onebit.__version__}"
WRITABLE = (
    TensorKind.Q4_1, TensorKind.Q4_K, TensorKind.Q8_A, TensorKind.Q8_B, TensorKind.BF16,
    TensorKind.F32,
)  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """One tensor to write: its names, how it is made and its logical shape."""

    role: str
    name: str
    rule: GgufTensor
    shape: tuple[int, ...]


def convert_gguf(
    source: Path,
    target: Path,
    *,
    force: bool = False,
    types: Types = (),
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert a GGUF into a model directory; the same input gives the same bytes.

    Args:
        source: The GGUF.
        target: The directory to make.
        force: Replace a directory that is not empty.
        types: Kinds to store instead of the default ones.
        progress: Told how much is written.

    Raises:
        InputError: the source cannot be converted faithfully; nothing is written then.
    """
    with GgufFile(source) as file:
        family = gguf_family(file)
        findings = _guards(file, family)
        config = write_config(file, family)
        scaling, notes = rope_scaling(file, family, config)
        if scaling is not None:
            config["rope_scaling"] = scaling
        findings += notes
        scope, bad = read_scope(family, config, "config.json")
        if bad:
            raise InputError(bad)
        encoders = _encoders(family, scope, GgufSource(file), types, findings)
        tokenizer = gguf_tokenizer(file)
        settings, generation = tokenizer_config(file), generation_config(file)
        with new_directory(target, force=force) as folder:
            metadata = provenance(source, str(file.fields.get("general.name", "")))
            write_tensors(folder, encoders, metadata, progress)
            tokenizer.save(str(folder / "tokenizer.json"))
            write_json(folder / "config.json", config)
            write_json(folder / "tokenizer_config.json", settings)
            write_json(folder / "generation_config.json", generation)
            finish(folder, family, config, settings, generation)
    return ConvertReport(
        directory=str(target),
        family=family.family,
        tensors=tuple(encoder.report() for encoder in encoders),
        findings=tuple(findings),
    )


def gguf_family(file: GgufFile) -> Family:
    """Return the family of a GGUF.

    Raises:
        InputError: no family takes its architecture, or it is one part of several.
    """
    family = family_for_arch(file.arch)
    if family is None:
        known = sorted(a for f in load_families().values() if f.gguf for a in f.gguf.arch)
        what = f"is {file.arch!r}; known: {', '.join(known)}"
        mend = "add a family manifest with a `gguf` section (`onebit schema family`)"
        where = Where(file=str(file.path), field="general.architecture")
        raise InputError(error("convert.arch", what, mend, where))
    split = file.fields.get("split.count")
    if isinstance(split, int) and split > 1:
        what = f"is one of {split} parts; split files are not supported"
        mend = "join them first: llama-gguf-split --merge FIRST-PART OUT.gguf"
        raise InputError(
            error("convert.split", what, mend, Where(file=str(file.path), field="split.count"))
        )
    return family


def check_gguf(source: Path) -> None:
    """Do everything of a conversion that reads only the header.

    Raises:
        InputError: the file cannot be converted.
    """
    with GgufFile(source) as file:
        _guards(file, gguf_family(file))
        gguf_encoders(file, ())
        gguf_tokenizer(file)


def gguf_encoders(file: GgufFile, types: Types) -> list[Encoder]:
    """Return the encoders that `convert_gguf` would use."""
    family = gguf_family(file)
    scope, bad = read_scope(family, write_config(file, family), "config.json")
    if bad:
        raise InputError(bad)
    return _encoders(family, scope, GgufSource(file), types, [])


def _guards(file: GgufFile, family: Family) -> list[Finding]:
    findings = scale_guards(file, family)
    unreadable = [t for t in file.tensors.values() if not blocks.can_decode(t.type)]
    findings += [
        error(
            "convert.type",
            f"has type {t.type.name} (id {t.type.value}), which cannot be decoded",
            "quantise the source to a common type first",
            Where(file=str(file.path), field=t.name),
        )
        for t in unreadable
    ]
    if any(f.severity is Severity.ERROR for f in findings):
        raise InputError(findings)
    return findings


def wanted_tensors(
    family: Family, scope: Scope, rules: Mapping[str, GgufTensor], present: Mapping[str, Any]
) -> tuple[list[Wanted], list[str]]:
    """Return what to write, in order, and the source tensors that are missing."""
    wanted: list[Wanted] = []
    missing: list[str] = []
    layers = int(scope.numbers["layers"])
    roles: list[tuple[str, TensorSpec, int | None]] = [
        (role, spec, None) for role, spec in family.tensors.items()
    ]
    roles += [(r, s, n) for n in range(layers) for r, s in family.layer_tensors.items()]
    for role, spec, layer in roles:
        if spec.when is not None and not scope.number(spec.when):
            continue
        rule = rules.get(role)
        if rule is None:
            continue
        name = rule.name.replace("{n}", str(layer))
        if name not in present:
            if spec.otherwise is None or not _may_substitute(spec.otherwise_when, scope):
                missing.append(name)
                continue
            name = rules[spec.otherwise].name
            if name not in present:
                continue
        shape = tuple(scope.integer(expr) for expr in spec.shape)
        target = spec.name[0].replace("{n}", str(layer))
        wanted.append(Wanted(role, target, rule.model_copy(update={"name": name}), shape))
    return wanted, missing


def _may_substitute(when: str | None, scope: Scope) -> bool:
    return when is None or bool(scope.number(when))


def _encoders(
    family: Family,
    scope: Scope,
    source: Source,
    types: Types,
    findings: list[Finding],
) -> list[Encoder]:
    spec = family.gguf
    if spec is None:
        raise ValueError(f"family {family.family} has no gguf section")
    wanted, missing = wanted_tensors(family, scope, spec.tensors, source.tensors)
    if missing:
        raise InputError(missing_tensors(source, family, missing))
    used = {w.rule.name for w in wanted} | {spec.rope_freqs, *(spec.rope_factors or ())}
    findings += unmapped(source, used)
    return make_encoders(family, scope, source, wanted, types, findings)


def missing_tensors(source: Source, family: Family, names: Sequence[str]) -> list[Finding]:
    """Return one finding for each source tensor that the family needs and the source lacks."""
    return [
        error(
            "convert.missing_tensor",
            f"the {family.family} family needs this tensor and the source has none",
            "check that the source is whole and of this architecture",
            Where(file=str(source.path), field=name),
        )
        for name in names[:20]
    ]


def unmapped(source: Source, used: set[str | None]) -> list[Finding]:
    """Return a warning that names the source tensors which nothing reads."""
    left = sorted(set(source.tensors) - used)
    if not left:
        return []
    shown = ", ".join(left[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
    what = f"{len(left)} tensor(s) were skipped, the family does not know them: {shown}"
    mend = "check the model's answers if one of them matters"
    return [warning("convert.skipped", what, mend, Where(file=str(source.path)))]


def make_encoders(
    family: Family,
    scope: Scope,
    source: Source,
    wanted: Sequence[Wanted],
    types: Types,
    findings: list[Finding],
) -> list[Encoder]:
    """Return the encoder of every tensor, shapes checked.

    Raises:
        InputError: a source tensor has another shape than the config says.
    """
    embeds = {op.weight for op in family.prologue if isinstance(op, EmbedSpec)}
    encoders: list[Encoder] = []
    bad: list[Finding] = []
    unmatched = dict.fromkeys(pattern for pattern, _ in types)
    for item in wanted:
        tensor = source.tensors[item.rule.name]
        try:
            made = recipe(item.rule.transforms, tensor.shape[0], scope.numbers)
        except ExpressionError as cause:
            bad.append(_shape_finding(source, item, f"cannot be transformed: {cause}"))
            continue
        found = (len(made.rows), *tensor.shape[1:])
        if found != item.shape:
            bad.append(
                _shape_finding(source, item, f"is {list(found)}, expected {list(item.shape)}")
            )
            continue
        kind = TensorKind.BF16 if len(item.shape) == 1 else item.rule.kind or tensor.home
        if item.role in embeds:
            kind = TensorKind.BF16
        for pattern, chosen in types:
            if len(item.shape) > 1 and (pattern in item.name or fnmatchcase(item.name, pattern)):
                kind = chosen
                unmatched.pop(pattern, None)
                break
        if (
            kind is TensorKind.BF16
            and item.role not in embeds
            and item.rule.name in {e.source_name for e in encoders if len(e.shape) > 1}
        ):
            continue  # a tied bf16 head is the embedding itself
        encoders.append(Encoder(source, item.rule.name, item.name, kind, made, item.shape))
    if bad:
        raise InputError(bad)
    if unmatched:
        findings.append(
            warning("convert.type_unused", f"--type {', '.join(unmatched)} matched no tensor")
        )
    return encoders


def _shape_finding(source: Source, item: Wanted, what: str) -> Finding:
    return error(
        "convert.shape",
        what,
        "the source's metadata and tensors disagree: make it anew",
        Where(file=str(source.path), field=item.rule.name),
    )


def provenance(source: Path, name: str) -> dict[str, str]:
    """Return the metadata that says where a container came from."""
    digest = hashlib.sha256()
    with source.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return {
        "format": "q4nx",
        "source": source.name,
        "source_bytes": str(source.stat().st_size),
        "source_sha256": digest.hexdigest(),
        "converter": CONVERTER,
        "name": name,
    }


def write_tensors(
    folder: Path, encoders: Sequence[Encoder], metadata: dict[str, str], progress: Progress | None
) -> None:
    """Write model.q4nx into `folder`."""
    specs = [encoder.spec() for encoder in encoders]
    total = sum(spec.nbytes for spec in specs)
    done = 0

    def counted(produce: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            nonlocal done
            for chunk in produce():
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
                yield chunk

        return run

    write_container(
        folder / "model.q4nx", [replace(s, produce=counted(s.produce)) for s in specs], metadata
    )


def finish(
    folder: Path,
    family: Family,
    config: dict[str, Any],
    settings: dict[str, Any],
    generation: dict[str, Any],
) -> None:
    """Derive the plan of what was written and write plan.json."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    container = Container.open(folder / "model.q4nx")
    try:
        tokens = special_tokens(config, generation, settings, tokenizer)
        traits = template_traits(str(settings.get("chat_template", "")))
        derived = derive_plan(config, container, tokens, traits, family=family)
    finally:
        container.close()
    write_plan(derived.plan, folder / "plan.json")
