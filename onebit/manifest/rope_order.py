"""Tells q/k rows left in interleaved rope order from half-split ones."""

from __future__ import annotations

import numpy as np

from onebit.container import TensorView, decode
from onebit.findings import Finding, Where, error
from onebit.plan import Plan, Rope, Weights

_SUSPECT = 1.4
_MIN_LAYERS = 4
_SAMPLED_LAYERS = 12


def rope_order_findings(plan: Plan, weights: Weights, file: str) -> list[Finding]:
    """Return a finding when q and k rows look interleaved.

    The two rows that rope turns together grow alike in training. In half-split order they stand
    head_dim / 2 apart, in interleaved order side by side. Measured as the mean |log| ratio of
    their norms, median over layers: trained models in the right order give half / interleaved
    0.8 to 1.1, SmolLM2 left interleaved gives 3.
    """
    if len(plan.layers) < _MIN_LAYERS:
        return []
    step = max(1, len(plan.layers) // _SAMPLED_LAYERS)
    ratios = [
        _ratio(weights.layer(index)[role], op.head_dim, plan.ropes[op.table].dim)
        for index in range(0, len(plan.layers), step)
        for op in plan.layer_ops(index)
        if isinstance(op, Rope)
        for role in op.values
        if role in weights.layer(index)
    ]
    median = float(np.median(ratios)) if ratios else 0.0
    if median < _SUSPECT:
        return []
    first = weights.layer(0).get("q")
    what = (
        "q and k rows look interleaved: neighbours are alike in size, rows half a head apart are "
        f"not (difference {median:.1f} times as large; 0.8 to 1.1 is usual)"
    )
    mend = (
        "convert again with the q/k row permutation of llama GGUFs "
        "(interleaved -> half-split); `onebit convert` does it"
    )
    where = Where(file=file, field=first.name if first else None)
    return [error("container.rope_interleaved", what, mend, where)]


def _ratio(view: TensorView, head_dim: int, dim: int) -> float:
    norms = np.linalg.norm(decode(view), axis=1).reshape(-1, head_dim)[:, :dim]
    logs = np.log(np.maximum(norms, 1e-12))
    half = np.abs(logs[:, : dim // 2] - logs[:, dim // 2 :]).mean()
    side = np.abs(logs[:, 0::2] - logs[:, 1::2]).mean()
    return float(half / side) if side > 0 else 0.0
