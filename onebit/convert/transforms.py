"""What a family's manifest does to a source tensor on its way into the container."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit.families.expressions import ExpressionError, Number, evaluate

_CALL = re.compile(r"^(\w+)\((.*)\)$")


@dataclass(frozen=True)
class Recipe:
    """Transforms of one tensor, worked out.

    Attributes:
        rows: Source row of every row to write; codes move with their rows.
        scale: Factor on the values.
        offset: Added to the scaled values.
    """

    rows: NDArray[np.intp]
    scale: float = 1.0
    offset: float = 0.0

    @property
    def keeps_values(self) -> bool:
        """Whether rows only move: quantised codes can be kept."""
        return self.scale == 1.0 and self.offset == 0.0


def recipe(transforms: Sequence[str], rows: int, names: Mapping[str, Number]) -> Recipe:
    """Return the recipe of a list of transforms over a tensor with `rows` rows.

    Raises:
        ExpressionError: unknown transform, or rows that the tensor does not have.
    """
    result = Recipe(np.arange(rows))
    for text in transforms:
        match = _CALL.match(text.strip())
        if match is None:
            raise ExpressionError(f"{text!r} is no transform")
        name, arguments = match[1], [evaluate(a, names) for a in _split(match[2])]
        result = _apply(result, name, arguments)
    return result


def _split(arguments: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(arguments):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(arguments[start:at])
            start = at + 1
    return [*parts, arguments[start:]]


def _apply(before: Recipe, name: str, arguments: list[Number]) -> Recipe:
    rows, scale, offset = before.rows, before.scale, before.offset
    match name, arguments:
        case "rope_permute", [heads]:
            return Recipe(rows[half_split_rows(len(rows), int(heads))], scale, offset)
        case "rows", [start, count]:
            first, end = int(start), int(start) + int(count)
            if not 0 <= first < end <= len(rows):
                raise ExpressionError(f"rows {first}..{end} of a tensor with {len(rows)}")
            return Recipe(rows[first:end], scale, offset)
        case "scale", [factor]:
            return Recipe(rows, scale * float(factor), offset * float(factor))
        case "add", [term]:
            return Recipe(rows, scale, offset + float(term))
    raise ExpressionError(f"no transform {name!r} with {len(arguments)} argument(s)")


def half_split_rows(rows: int, heads: int) -> NDArray[np.intp]:
    """Return where each half-split row lies in interleaved order.

    Within each head of D rows: new[j * D / 2 + i] = old[2 * i + j], i < D / 2, j in {0, 1}.
    """
    if heads <= 0 or rows % heads or rows // heads % 2:
        raise ExpressionError(f"{rows} rows are not {heads} heads of an even size")
    head_dim = rows // heads
    return np.arange(rows).reshape(heads, head_dim // 2, 2).transpose(0, 2, 1).reshape(-1)
