"""From a config.json's rope keys to a plan's rope tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from onebit.families.config_json import Scope, first_of, lookup
from onebit.families.model import RopeSpec
from onebit.findings import InputError, Where, error
from onebit.plan.model import RopeScaling, RopeTable

_NUMBERS = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
}
_KNOWN = ("none", "default", "linear", "llama3", "longrope", "su", "yarn", "divisors")


def rope_table(spec: RopeSpec, scope: Scope, config: Mapping[str, Any], file: str) -> RopeTable:
    """Return one rope table's recipe.

    Raises:
        InputError: a value is missing or wrong, or the scaling kind is unknown.
    """
    key, theta = first_of(config, spec.theta.key)
    if theta is None:
        theta = spec.theta.default
    where = Where(file=file, field=key or "rope_theta")
    try:
        theta = float(theta)
        dim = scope.integer(spec.dim)
    except (TypeError, ValueError) as cause:
        raise InputError(
            error("config.bad_rope", f"cannot be used: {cause}", "write the model's value", where)
        ) from cause
    if not (math.isfinite(theta) and theta > 0 and dim > 0 and dim % 2 == 0):
        raise InputError(
            error(
                "config.bad_rope",
                f"theta {theta} with {dim} rotated dimensions; theta > 0 and an even number wanted",
                "write the model's own values",
                where,
            )
        )
    return RopeTable(dim=dim, theta=theta, scaling=_scaling(spec, dim, scope, config, file))


def _scaling(
    spec: RopeSpec, dim: int, scope: Scope, config: Mapping[str, Any], file: str
) -> RopeScaling:
    key, raw = first_of(config, spec.scaling)
    if raw is None:
        return RopeScaling()
    where = Where(file=file, field=key)
    if not isinstance(raw, Mapping):
        raise InputError(
            error("config.bad_rope", f"is {raw!r:.60}, not an object", "mend or remove it", where)
        )
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind not in _KNOWN:
        raise InputError(
            error(
                "config.rope_kind",
                f"rope scaling {kind!r} is unknown; known: {', '.join(_KNOWN)}",
                "this model needs a rope that onebit does not have yet; "
                "remove the key only if the model was made without it",
                where,
            )
        )
    if kind in ("default", "none"):
        return RopeScaling()
    try:
        return _typed("longrope" if kind == "su" else str(kind), raw, dim, scope, config)
    except (TypeError, ValueError) as cause:
        raise InputError(
            error("config.bad_rope", f"cannot be used: {cause}", "write the model's value", where)
        ) from cause


def _typed(
    kind: str, raw: Mapping[str, Any], dim: int, scope: Scope, config: Mapping[str, Any]
) -> RopeScaling:
    values: dict[str, Any] = {
        ours: _finite(theirs, raw[theirs])
        for theirs, ours in _NUMBERS.items()
        if raw.get(theirs) is not None
    }
    original = raw.get("original_max_position_embeddings") or lookup(
        config, "original_max_position_embeddings"
    )
    if original is not None:
        values["original_context"] = int(_finite("original_max_position_embeddings", original))
    if kind == "divisors":
        factors = _factors(raw, "factors", dim)
        return RopeScaling(kind="longrope", short_factor=factors, long_factor=factors, **values)
    if kind == "longrope":
        values.setdefault("original_context", int(scope.numbers["context"]))
        values["short_factor"] = _factors(raw, "short_factor", dim)
        values["long_factor"] = _factors(raw, "long_factor", dim)
        values.setdefault("attention_factor", _longrope_attention(values, scope))
    if kind in ("llama3", "yarn") and not values.get("original_context"):
        raise ValueError("original_max_position_embeddings is missing")
    if kind in ("llama3", "linear", "yarn") and values.get("factor", 0) <= 0:
        raise ValueError("factor is missing or not positive")
    if kind == "yarn":
        values.setdefault("attention_factor", 0.1 * math.log(max(values["factor"], 1.0)) + 1.0)
    return RopeScaling(kind=kind, **values)


def _longrope_attention(values: Mapping[str, Any], scope: Scope) -> float:
    """Return sqrt(1 + ln(scale) / ln(original)): Hugging Face's longrope attention factor."""
    original = values["original_context"]
    scale = values.get("factor") or scope.numbers["context"] / original
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0


def _factors(raw: Mapping[str, Any], key: str, dim: int) -> tuple[float, ...]:
    factors = raw.get(key)
    if not isinstance(factors, list) or len(factors) != dim // 2:
        found = len(factors) if isinstance(factors, list) else factors
        raise ValueError(f"{key} must list {dim // 2} numbers, found {found}")
    return tuple(_finite(key, value) for value in factors)


def _finite(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is {value!r:.60}, not a finite number")
    return float(value)
