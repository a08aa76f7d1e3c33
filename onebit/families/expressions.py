"""Arithmetic of family manifests: names and simple operators, parsed and checked, never run.

Grammar (a subset of Python's expressions): numbers, names, + - * / // % **, unary minus,
comparisons, `and` `or` `not`, and the functions sqrt(x), min(...), max(...), round_up(x, step).
Truth is 1 or 0.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

Number = int | float

_MAX_LENGTH = 200
_MAX_POWER = 64

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Number, Number], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _round_up(x: Number, step: Number) -> Number:
    return -(-x // step) * step


_FUNCTIONS: dict[str, tuple[int, Callable[..., Number]]] = {
    "sqrt": (1, math.sqrt),
    "log": (1, math.log),
    "min": (2, min),
    "max": (2, max),
    "round_up": (2, _round_up),
}


class ExpressionError(ValueError):
    """An expression is malformed, uses an unknown name or cannot be computed."""


def evaluate(text: str, names: Mapping[str, Number]) -> Number:
    """Return the value of an expression over `names`.

    Raises:
        ExpressionError: bad syntax, unknown name, or arithmetic without a finite result.
    """
    if len(text) > _MAX_LENGTH:
        raise ExpressionError(f"expression longer than {_MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as cause:
        raise ExpressionError(f"cannot parse {text!r}") from cause
    try:
        result = _value(tree.body, names)
    except (ArithmeticError, ValueError) as cause:
        if isinstance(cause, ExpressionError):
            raise
        raise ExpressionError(f"cannot compute {text!r}: {cause}") from cause
    if isinstance(result, float) and not math.isfinite(result):
        raise ExpressionError(f"{text!r} is not finite")
    return result


def _value(node: ast.expr, names: Mapping[str, Number]) -> Number:
    match node:
        case ast.Constant(value=bool(flag)):
            return int(flag)
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            if name not in names:
                raise ExpressionError(f"unknown name {name!r}")
            return names[name]
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = _value(left, names), _value(right, names)
            if abs(power) > _MAX_POWER:
                raise ExpressionError(f"power over {_MAX_POWER}")
            return _real(base**power)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return int(not _value(operand, names))
        case ast.BoolOp(op=op, values=values):
            pick = all if isinstance(op, ast.And) else any
            return int(pick(bool(_value(v, names)) for v in values))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return int(_COMPARE[type(op)](_value(left, names), _value(right, names)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            count, function = _FUNCTIONS[name]
            if len(args) != count:
                raise ExpressionError(f"{name} takes {count} argument(s), got {len(args)}")
            return function(*(_value(a, names) for a in args))
        case _:
            raise ExpressionError(f"not allowed here: {ast.unparse(node)!r}")


def _real(value: object) -> Number:
    if isinstance(value, int | float):
        return value
    raise ExpressionError("power of a negative number is not real")
