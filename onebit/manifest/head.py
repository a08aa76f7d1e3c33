"""Compares the output head with the embedding, and the embedding with its family's scale."""

from __future__ import annotations

import math

import numpy as np

from onebit.container import TensorView, decode_rows
from onebit.container.detect import tie
from onebit.families import load_families
from onebit.families.model import LinearSpec
from onebit.findings import Finding, Where, error, note, warning
from onebit.plan import Embed, Plan, Weights

_MEND = "convert the model again from its source with `onebit convert`"
_TIED_COSINE = 0.9
_UNTIED_COSINE = 0.3
_SAMPLED_ROWS = 4096


def head_findings(plan: Plan, weights: Weights, file: str) -> list[Finding]:
    """Return whether the head is tied, and what is wrong with the size of the embedding."""
    head, embed = weights.outer.get("head"), weights.outer.get("embed")
    if embed is None:
        return []
    scale = _embedding_scale(plan)
    if head is None or head.name == embed.name:
        return _alone(plan, embed, scale, file)
    evidence = tie(head, embed)
    if not evidence.rows:
        return []
    where = Where(file=file, field=head.name)
    text = f"median cosine of its rows with the embedding's is {evidence.cosine:.3f}"
    if evidence.cosine < _TIED_COSINE:
        if evidence.cosine > _UNTIED_COSINE:
            what = f"{text}: neither tied (about 0.997) nor untied (about 0): one is read wrongly"
            return [
                warning("container.head_unclear", what, _MEND, where),
                *_alone(plan, embed, scale, file),
            ]
        untied = note("container.untied_head", f"{text}: untied", where)
        return [untied, *_alone(plan, embed, scale, file)]
    found: list[Finding] = [note("container.tied_head", f"{text}: tied", where)]
    ratio = evidence.std_ratio
    if not scale / 2 < ratio < scale * 2:
        what = (
            f"its values are {ratio:.2f} times the head's; the {plan.family} family stores it "
            f"{scale:.2f} times as large"
        )
        embed_where = Where(file=file, field=embed.name)
        found.append(error("container.embedding_scale", what, _MEND, embed_where))
    return found


def _alone(plan: Plan, embed: TensorView, scale: float, file: str) -> list[Finding]:
    """Judge a stored scale without a head of the same values: by the rows' own size.

    A family multiplies its embedding by sqrt(hidden) because the rows are made with a norm near 1:
    the product has a root mean square near 1 (1.03 in Gemma 3 270M, 1.7 in EmbeddingGemma 300M).
    The two mistakes are a factor of sqrt(hidden) away, 25 and more in a real model, so the limits
    lie half way on the logarithmic scale.
    """
    if scale == 1:
        return []
    rows = np.arange(0, embed.rows, max(1, embed.rows // _SAMPLED_ROWS))
    sizes = np.sqrt(np.square(decode_rows(embed, rows), dtype=np.float64).mean(axis=1))
    live = sizes[sizes > 0]
    op = next(op for op in plan.prologue if isinstance(op, Embed))
    size = float(np.median(live)) * op.scale if live.size else 1.0
    limit = math.sqrt(scale)
    if 1 / limit <= size <= limit:
        return []
    looks = "not multiplied by it" if size < 1 else "multiplied by it twice"
    what = (
        f"its rows come to a root mean square of {size:.3g}; the {plan.family} family multiplies "
        f"them by sqrt(hidden) = {scale:.1f}, which makes it about 1: these look {looks}"
    )
    return [warning("container.embedding_scale", what, _MEND, Where(file=file, field=embed.name))]


def _embedding_scale(plan: Plan) -> float:
    """Return how much larger than the head the family's stored embedding is."""
    family = load_families()[plan.family]
    head = next(op for op in family.epilogue if isinstance(op, LinearSpec))
    return 1.0 if head.scale_otherwise is None else math.sqrt(plan.dims["hidden"])
