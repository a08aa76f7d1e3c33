"""Tells q/k rows in half-split rope order from interleaved ones and from ones permuted twice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit.container import TensorView, decode
from onebit.findings import Finding, Where, error
from onebit.plan import Plan, Rope, Weights

_SUSPECT = 1.4
_MIN_LAYERS = 4
_SAMPLED_LAYERS = 12

_WRONG_ORDERS = {
    "container.rope_interleaved": (
        "are in interleaved order: neighbours are alike in size, rows half a head apart are not",
        "with the q/k row permutation of llama GGUFs (interleaved -> half-split)",
    ),
    "container.rope_permuted_twice": (
        "went twice through the q/k row permutation of llama GGUFs: rows are alike in size where "
        "a second permutation puts them",
        "without the q/k row permutation: the source was in half-split order already",
    ),
}
"""Finding code -> what is wrong, and how the converter must run."""


def rope_order_findings(plan: Plan, weights: Weights, file: str) -> list[Finding]:
    """Return a finding when q and k rows do not look half-split.

    The two rows that rope turns together grow alike in training. In half-split order they stand
    head_dim / 2 apart, in interleaved order side by side, permuted once too often a quarter.
    Measured as the mean |log| ratio of their norms, over that of the other order, median over
    layers: SmolLM2, Qwen2.5 and Gemma 3 in the right order give 0.88 to 0.98 over interleaved
    and 0.27 to 0.54 over twice; SmolLM2 left interleaved gives 3.
    """
    if len(plan.layers) < _MIN_LAYERS:
        return []
    step = max(1, len(plan.layers) // _SAMPLED_LAYERS)
    ratios = [
        _ratios(weights.layer(index)[role], op.head_dim, plan.ropes[op.table].dim)
        for index in range(0, len(plan.layers), step)
        for op in plan.layer_ops(index)
        if isinstance(op, Rope)
        for role in op.values
        if role in weights.layer(index)
    ]
    if not ratios:
        return []
    medians = {code: float(np.median([r[code] for r in ratios])) for code in _WRONG_ORDERS}
    code = max(medians, key=lambda key: medians[key])
    if medians[code] < _SUSPECT:
        return []
    wrong, how = _WRONG_ORDERS[code]
    what = (
        f"q and k rows {wrong} (rows that rope turns together differ {medians[code]:.1f} times as "
        "much as in that order; at most 1.1 times is usual)"
    )
    first = weights.layer(0).get("q")
    where = Where(file=file, field=first.name if first else None)
    return [error(code, what, f"convert again {how}; `onebit convert` knows which", where)]


def _ratios(view: TensorView, head_dim: int, dim: int) -> dict[str, float]:
    norms = np.linalg.norm(decode(view), axis=1).reshape(-1, head_dim)[:, :dim]
    logs = np.log(np.maximum(norms, 1e-12))
    rows = np.arange(dim)
    half = _difference(logs, rows)
    others = {
        "container.rope_interleaved": _split(rows),
        "container.rope_permuted_twice": np.argsort(_split(rows)),
    }
    unlike = {code: _difference(logs, order) for code, order in others.items()}
    return {code: half / value if value > 0 else 0.0 for code, value in unlike.items()}


def _split(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Even rows, then odd ones: interleaved -> half-split."""
    return np.concatenate([rows[0::2], rows[1::2]])


def _difference(logs: NDArray[np.float32], order: NDArray[np.intp]) -> float:
    """Mean difference of the pairs of rows that `order` puts half the rows apart."""
    half = len(order) // 2
    return float(np.abs(logs[:, order[:half]] - logs[:, order[half:]]).mean())
