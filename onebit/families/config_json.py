"""Reads numbers, flags and words out of a config.json as a family declares them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onebit.families.expressions import ExpressionError, Number, evaluate
from onebit.families.model import Family, Value
from onebit.findings import Finding, Where, error

_ABSENT = object()


@dataclass
class Scope:
    """What a family's expressions see: numbers (flags are 0 or 1) and words, by name."""

    numbers: dict[str, Number] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    padded: dict[str, Number] = field(default_factory=dict)
    """Dims as the config says them, where a padded size is in use instead."""

    def number(self, expr: str) -> Number:
        """Evaluate an expression.

        Raises:
            ExpressionError: unknown name or no finite result.
        """
        return evaluate(expr, self.numbers)

    def integer(self, expr: str) -> int:
        """Evaluate an expression that must be a whole number.

        Raises:
            ExpressionError: also when the result has a fraction.
        """
        value = self.number(expr)
        if int(value) != value:
            raise ExpressionError(f"{expr!r} is {value}, not a whole number")
        return int(value)


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key of `config`, or of its `text_config`; None when absent."""
    for root in (config, config.get("text_config")):
        value: Any = root
        for part in key.split("."):
            value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is not _ABSENT and value is not None:
            return value
    return None


def first_of(config: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, Any]:
    """Return the first key that is there, with its value; ("", None) when none is."""
    for key in keys:
        value = lookup(config, key)
        if value is not None:
            return key, value
    return "", None


def read_scope(family: Family, config: Mapping[str, Any], file: str) -> tuple[Scope, list[Finding]]:
    """Return the family's dims and params for one config, and what is wrong with it.

    Args:
        family: The family manifest.
        config: The parsed config.json.
        file: Its path, for findings.
    """
    scope = Scope()
    findings: list[Finding] = []
    for name, spec in family.dims.items():
        finding = _read(scope, name, spec, config, file, whole=True)
        if finding is not None:
            findings.append(finding)
    if findings:  # params build on the dims: their errors would only repeat these
        return scope, findings
    for name, spec in family.params.items():
        finding = _read(scope, name, spec, config, file, whole=False)
        if finding is not None:
            findings.append(finding)
    return scope, findings


def _read(
    scope: Scope, name: str, spec: Value, config: Mapping[str, Any], file: str, *, whole: bool
) -> Finding | None:
    key, value = first_of(config, spec.key)
    shown = key or (spec.key[0] if spec.key else name)
    where = Where(file=file, field=shown)
    if spec.map:
        word = value if value is not None else spec.default
        if word not in spec.map:
            return error(
                "config.unknown_value",
                f"is {word!r}; this family knows {', '.join(sorted(spec.map))}",
                "serve the model with a family manifest that declares it",
                where,
            )
        scope.words[name] = spec.map[str(word)]
        return None
    if value is None:
        return _computed(scope, name, spec, where, whole=whole)
    if isinstance(value, bool) and not whole:
        scope.numbers[name] = int(value)
        return None
    problem = _number_problem(value, whole=whole)
    if problem:
        return error("config.bad_value", problem, f"write the model's own {shown} there", where)
    scope.numbers[name] = value
    return None


def _computed(scope: Scope, name: str, spec: Value, where: Where, *, whole: bool) -> Finding | None:
    expr = spec.expr if spec.expr is not None else spec.default
    if expr is None:
        return error(
            "config.missing_key",
            "is missing",
            "add it, or write config.json anew with `onebit convert --config-only MODEL.gguf DIR`",
            where,
        )
    try:
        text = str(int(expr)) if isinstance(expr, bool) else expr
        value = scope.integer(text) if whole else scope.number(text)
    except ExpressionError as cause:
        return error(
            "config.bad_value",
            f"cannot be computed as {expr!r}: {cause}",
            f"write {where.field} into the file",
            where,
        )
    problem = _number_problem(value, whole=whole)
    if problem:
        return error(
            "config.bad_value", f"{problem} (computed as {expr})", f"write {where.field}", where
        )
    scope.numbers[name] = value
    return None


def _number_problem(value: Any, *, whole: bool) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is {value!r:.60}; a number is expected"
    if not math.isfinite(value):
        return f"is {value}; a finite number is expected"
    if whole and (int(value) != value or not 0 < value < 1 << 31):
        return f"is {value}; a whole number from 1 to 2^31 is expected"
    return ""
