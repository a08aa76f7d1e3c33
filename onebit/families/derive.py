"""Derives a plan: a family manifest filled in with one model's config and tensor table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from onebit.container import Container
from onebit.families.config_json import Scope, first_of, read_scope
from onebit.families.expressions import ExpressionError
from onebit.families.load import family_for, load_families
from onebit.families.model import Family
from onebit.families.program import build_ops
from onebit.families.rope import rope_table
from onebit.families.template import PLAIN, Traits
from onebit.families.tensors import TensorTable, find_tensors, unused_findings
from onebit.findings import Finding, InputError, Where, error, warning
from onebit.plan.model import Layer, Plan, Provenance, RopeTable, SpecialTokens

_SCALE_WORDS = ("scale", "softcap", "multiplier", "mup")
_SCALE_OUTSIDE = ("rope", "init", "vision", "audio", "quantization")
_KNOWN_SCALES = (
    "embedding_scale", "residual_scale", "logit_scale", "scale_emb", "scale_depth",
    "dim_model_base", "final_logit_softcapping", "attn_logit_softcapping",
    "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
)  # fmt: skip


@dataclass(frozen=True)
class Derived:
    """A plan and what was noticed while it was made."""

    plan: Plan
    findings: tuple[Finding, ...]


def derive_plan(
    config: Mapping[str, Any],
    container: Container,
    tokens: SpecialTokens,
    traits: Traits = PLAIN,
    *,
    family: Family | None = None,
) -> Derived:
    """Return the plan of one model, every shape proven.

    Args:
        config: The parsed config.json.
        container: The model's container; only its header and samples of its data are read.
        tokens: The special tokens, see `tokens.py`.
        traits: What the chat template tells of the model's output, see `template.py`.
        family: The family to use; by default the one that matches `model_type`.

    Raises:
        InputError: with every mismatch found, not only the first.
    """
    file = str(Path(container.path).parent / "config.json")
    family = family or _family(config, file)
    scope, findings = read_scope(family, config, file)
    if findings:
        raise InputError(findings)
    findings = scale_findings(family, config, file)
    ropes = _ropes(family, scope, config, file, findings)
    try:
        kinds = _layer_kinds(family, scope, config, file)
        table = find_tensors(family, scope, container, len(kinds))
        findings += table.findings
        findings += unused_findings(
            container, table.used, ("rope_freqs", "rope.short", "rope.long")
        )
        _raise_errors(findings)
        plan = _assemble(family, scope, config, table, kinds, ropes, tokens, traits, container)
    except (ExpressionError, ValidationError) as cause:
        findings.append(
            error(
                "family.expression",
                f"family {family.family} does not fit this config: {cause}",
                "compare config.json with the original model's, or mend the family manifest",
                Where(file=file),
            )
        )
        raise InputError(findings) from cause
    return Derived(plan, tuple(findings))


def _family(config: Mapping[str, Any], file: str) -> Family:
    _, model_type = first_of(config, ("model_type",))
    if isinstance(model_type, str):
        text = config.get("text_config")
        inner = text.get("model_type") if isinstance(text, Mapping) else None
        for name in (model_type, inner):
            family = family_for(name) if isinstance(name, str) else None
            if family is not None:
                return family
    known = sorted(t for f in load_families().values() for t in f.match.model_type)
    raise InputError(
        error(
            "config.unknown_family",
            f"is {model_type!r}; known: {', '.join(known)}",
            "correct model_type, or add a family manifest (manifests/families, "
            "`onebit schema family`)",
            Where(file=file, field="model_type"),
        )
    )


def scale_findings(family: Family, config: Mapping[str, Any], file: str) -> list[Finding]:
    """Return findings for scale-like config values that this family's plan would drop."""
    folded = config.get("q4nx_folded_multipliers") or ()
    folded = tuple(folded) if isinstance(folded, list | tuple | dict) else (str(folded),)
    text = config.get("text_config")
    merged = {**(text if isinstance(text, Mapping) else {}), **config}
    found: list[Finding] = []
    for key, value in merged.items():
        if key in family.scales or key in folded or not _matters(key, value):
            continue
        where = Where(file=file, field=key)
        if key in _KNOWN_SCALES:
            found.append(
                error(
                    "config.dropped_scale",
                    f"is {value!r}, and the {family.family} family has no such scale: "
                    "the model would run without it",
                    "use the model_type of the family that applies it, or list the key in "
                    "`q4nx_folded_multipliers` if the weights have it folded in",
                    where,
                )
            )
        else:
            found.append(
                warning(
                    "config.unknown_scale",
                    f"is {value!r}; nothing reads it",
                    "check that the model's outputs are right without it",
                    where,
                )
            )
    return found


def _matters(key: str, value: Any) -> bool:
    lowered = key.lower()
    if not any(word in lowered for word in _SCALE_WORDS) and key not in _KNOWN_SCALES:
        return False
    if any(word in lowered for word in _SCALE_OUTSIDE):
        return False
    neutral = 0 if "softcap" in lowered else 1
    return isinstance(value, int | float) and not isinstance(value, bool) and value != neutral


def _ropes(
    family: Family,
    scope: Scope,
    config: Mapping[str, Any],
    file: str,
    findings: list[Finding],
) -> dict[str, RopeTable]:
    ropes: dict[str, RopeTable] = {}
    for name, spec in family.ropes.items():
        try:
            ropes[name] = rope_table(spec, scope, config, file)
        except InputError as cause:
            findings.extend(cause.findings)
    return ropes


def _layer_kinds(
    family: Family, scope: Scope, config: Mapping[str, Any], file: str
) -> tuple[str, ...]:
    layers = int(scope.numbers["layers"])
    rule = family.layers
    key, listed = first_of(config, rule.key)
    if listed is not None:
        bad = not isinstance(listed, list) or len(listed) != layers
        unknown = [] if bad else sorted({str(t) for t in listed if t not in rule.map})
        if bad or unknown:
            what = (
                f"has unknown layer types {', '.join(unknown)}; known: {', '.join(rule.map)}"
                if unknown
                else f"must list {layers} layer types"
            )
            raise InputError(
                error(
                    "config.layer_types",
                    what,
                    "write the model's own list, or remove it",
                    Where(file=file, field=key),
                )
            )
        return tuple(rule.map[t] for t in listed)
    if rule.last is not None and rule.start is not None:
        start = scope.integer(rule.start)
        return tuple(rule.last if n >= start else rule.others for n in range(layers))
    if rule.last is not None and rule.every is not None:
        _, every = first_of(config, rule.every.key)
        every = every if isinstance(every, int) and every > 0 else None
        period = every or scope.integer(str(rule.every.default))
        return tuple(rule.last if (n + 1) % period == 0 else rule.others for n in range(layers))
    return (rule.others,) * layers


def _raise_errors(findings: list[Finding]) -> None:
    if any(f.severity == "error" for f in findings):
        raise InputError(findings)


def _assemble(
    family: Family,
    scope: Scope,
    config: Mapping[str, Any],
    table: TensorTable,
    kinds: tuple[str, ...],
    ropes: dict[str, RopeTable],
    tokens: SpecialTokens,
    traits: Traits,
    container: Container,
) -> Plan:
    ops = build_ops(family, scope, table, kinds, ropes)
    return Plan(
        family=family.family,
        model_type=str(config.get("model_type", "")),
        dims={name: int(scope.numbers[name]) for name in family.dims},
        ropes=ropes,
        values=ops.values,
        tensors=table.outer,
        prologue=ops.prologue,
        kinds=ops.kinds,
        layers=tuple(
            Layer(kind=kind, tensors=tensors)
            for kind, tensors in zip(kinds, table.layers, strict=True)
        ),
        epilogue=ops.epilogue,
        tokens=tokens,
        thinks=traits.thinks,
        tool_format=traits.tool_format,
        provenance=Provenance(
            **{
                name: int(value) if name == "source_bytes" else value
                for name in Provenance.model_fields
                if (value := container.metadata.get(name)) is not None
            }
        ),
    )
