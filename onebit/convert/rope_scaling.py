"""From a GGUF's rope metadata and tensors to config.json's `rope_scaling`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.convert import blocks
from onebit.convert.gguf_file import GgufFile
from onebit.families import Family
from onebit.findings import Finding, Where, note

_LLAMA3_CONTEXT = 8192
_FIT = 1e-3


def rope_scaling(
    file: GgufFile, family: Family, config: dict[str, Any]
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Return `rope_scaling` for config.json, or None, and notes on how it was found."""
    spec = family.gguf
    if spec is not None and spec.rope_freqs is not None and spec.rope_freqs in file.tensors:
        return _from_divisors(file, spec.rope_freqs, config)
    if spec is not None and spec.rope_factors is not None:
        short, long = spec.rope_factors
        if short in file.tensors and long in file.tensors:
            return _longrope(file, short, long), []
    kind, factor = file.field("rope.scaling.type"), file.field("rope.scaling.factor")
    if kind == "linear" and factor:
        return {"rope_type": "linear", "factor": float(factor)}, []
    if kind == "yarn" and factor:
        original = file.field("rope.scaling.original_context_length")
        return {
            "rope_type": "yarn",
            "factor": float(factor),
            "original_max_position_embeddings": int(original or config["max_position_embeddings"]),
        }, []
    return None, []


def _vector(file: GgufFile, name: str) -> NDArray[np.float64]:
    tensor = file.tensors[name]
    raw = file.blocks(tensor, 0, tensor.rows)
    return blocks.values(raw, tensor.type).reshape(-1).astype(np.float64)


def _longrope(file: GgufFile, short: str, long: str) -> dict[str, Any]:
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": [float(str(np.float32(v))) for v in _vector(file, short)],
        "long_factor": [float(str(np.float32(v))) for v in _vector(file, long)],
    }
    factor = file.field("rope.scaling.attn_factor")
    if factor is not None:
        scaling["attention_factor"] = float(str(np.float32(factor)))
    return scaling


def _from_divisors(
    file: GgufFile, name: str, config: dict[str, Any]
) -> tuple[dict[str, Any], list[Finding]]:
    """Recover llama3's four numbers from its divisors, or keep the divisors."""
    divisors = _vector(file, name)
    factor = float(divisors.max())
    theta = float(config["rope_theta"])
    half = len(divisors)
    inverse = theta ** (-np.arange(half) / half)
    where = Where(file=str(file.path), field=name)
    turns = _LLAMA3_CONTEXT * inverse / (2 * np.pi)
    smooth = np.clip((turns - 1.0) / 3.0, 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if np.abs(expected / divisors - 1).max() < _FIT:
        scaling = {
            "rope_type": "llama3",
            "factor": round(factor, 3),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": _LLAMA3_CONTEXT,
        }
        text = f"its divisors are llama3 rope scaling with factor {factor:g}"
        return scaling, [note("convert.rope", text, where)]
    text = "its divisors fit no known rope scaling and are kept as they are"
    kept = {"rope_type": "divisors", "factors": [float(v) for v in divisors]}
    return kept, [note("convert.rope", text, where)]
