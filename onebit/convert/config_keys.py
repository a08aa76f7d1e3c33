"""Writes config.json from a GGUF, as the family's manifest says."""

from __future__ import annotations

from typing import Any

import numpy as np

from onebit.convert.gguf_file import GgufFile
from onebit.families import Family
from onebit.families.expressions import ExpressionError, Number, evaluate
from onebit.families.model import GgufConfig, GgufSpec
from onebit.findings import Finding, InputError, Where, error, warning

GUARDED = (
    "embedding_scale", "residual_scale", "logit_scale", "scale_emb", "scale_depth",
    "dim_model_base", "attn_logit_softcapping", "final_logit_softcapping", "attention.scale",
)  # fmt: skip
"""Metadata keys that change every output; dropping one makes a wrong model."""
_HINTS = ("scale", "softcap", "mup", "multiplier")
_ROPE_KINDS = ("none", "linear", "yarn", "longrope")


def write_config(file: GgufFile, family: Family) -> dict[str, Any]:
    """Return the config.json of a GGUF.

    Raises:
        InputError: a needed key is missing.
    """
    spec = _spec(family)
    config: dict[str, Any] = {}
    missing: list[Finding] = []
    for key, rule in spec.config.items():
        try:
            value = _value(file, rule, config)
        except (ExpressionError, TypeError, ZeroDivisionError) as cause:
            where = Where(file=str(file.path), field=key)
            missing.append(error("gguf.config", f"cannot be worked out: {cause}", _MEND_KEY, where))
            continue
        if value is not None:
            config[key] = value
        elif rule.key and key in _NEEDED:
            names = ", ".join(f"{file.arch}.{name}" for name in rule.key)
            where = Where(file=str(file.path), field=names)
            missing.append(error("gguf.missing_key", "is missing", _MEND_KEY, where))
    if missing:
        raise InputError(missing)
    _add_tokens(file, config)
    return config


_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_MEND_KEY = "make the GGUF anew with a current converter"


def _spec(family: Family) -> GgufSpec:
    if family.gguf is None:
        raise ValueError(f"family {family.family} has no gguf section")
    return family.gguf


def _value(file: GgufFile, rule: GgufConfig, config: dict[str, Any]) -> Any:
    if rule.rows is not None:
        tensor = file.tensors.get(rule.rows)
        return None if tensor is None else tensor.rows
    if rule.absent is not None:
        return rule.absent not in file.tensors
    if rule.value is not None:
        return rule.value
    names: dict[str, Number] = {k: v for k, v in config.items() if isinstance(v, int | float)}
    found = next((v for k in rule.key if (v := file.field(k)) is not None), None)
    if found is None:
        return evaluate(rule.expr, names) if rule.expr is not None else rule.default
    if rule.per is not None:
        found = found / evaluate(rule.per, names)
    return _tidy(found)


def _tidy(value: Any) -> Any:
    """Return floats that came from float32 in their shortest form."""
    if isinstance(value, float):
        return float(str(np.float32(value)))
    return value


def _add_tokens(file: GgufFile, config: dict[str, Any]) -> None:
    for key, name in (
        ("bos_token_id", "bos"),
        ("eos_token_id", "eos"),
        ("pad_token_id", "padding"),
    ):
        value = file.fields.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(value, int):
            config[key] = value


def scale_guards(file: GgufFile, family: Family) -> list[Finding]:
    """Return findings for scale-like metadata that the family's plan would drop."""
    applied = set(_spec(family).applied)
    found: list[Finding] = []
    prefix = f"{file.arch}."
    for key, value in file.fields.items():
        if not key.startswith(prefix):
            continue
        leaf = key.removeprefix(prefix)
        if leaf in applied or not isinstance(value, int | float) or isinstance(value, bool):
            continue
        where = Where(file=str(file.path), field=key)
        neutral = 0 if "softcap" in leaf else 1
        if leaf in GUARDED and value not in (0, neutral):
            what = f"is {value:g}, and the {family.family} family would drop it"
            mend = "this model needs a family manifest that applies the scale"
            found.append(error("convert.dropped_scale", what, mend, where))
        elif (
            any(hint in leaf for hint in _HINTS)
            and not leaf.startswith("rope.")
            and value
            not in (
                0,
                neutral,
            )
        ):
            what = f"is {value:g}; nothing in the {family.family} family reads it"
            found.append(
                warning(
                    "convert.unknown_scale", what, "check the outputs against the source", where
                )
            )
    return [*found, *_rope_guard(file, family)]


def _rope_guard(file: GgufFile, family: Family) -> list[Finding]:
    kind = file.field("rope.scaling.type")
    if kind is None or kind in _ROPE_KINDS:
        return []
    what = f"is {kind!r}; known: {', '.join(_ROPE_KINDS)}"
    where = Where(file=str(file.path), field=f"{file.arch}.rope.scaling.type")
    mend = f"the {family.family} family cannot apply this rope scaling"
    return [error("convert.rope_kind", what, mend, where)]
