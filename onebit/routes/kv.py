"""How much context the KV memory holds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from onebit.config import LoadedConfig
from onebit.findings import Finding, Refusal, error, note, warning
from onebit.plan.model import Plan
from onebit.routes.resolution import Memory

PAGE_SIZE = 32
"""Tokens per KV page."""
DEFAULT_BYTES = 1 << 30
"""KV memory when nobody says: this, or one full context if that is more."""
_ELEMENT_BYTES = {"f32": 4, "bf16": 2}


def kv_bytes_per_token(plan: Plan, kv_dtype: str) -> int:
    """Return the KV bytes of one position: keys and values of all layers."""
    layers = [plan.attention(i) for i in range(len(plan.layers))]
    return sum(2 * op.kv_heads * op.head_dim for op in layers) * _ELEMENT_BYTES[kv_dtype]


def available_bytes() -> int:
    """Return how much memory a new process may take: free memory, within the cgroup's limit."""
    limits = []
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no cgroup v2, or its limit is "max"
        limit = int((group / "memory.max").read_text())
        limits.append(limit - int((group / "memory.current").read_text()))
    return max(0, min(limits))


def lay_out(loaded: LoadedConfig, plan: Plan) -> tuple[Memory, list[Finding]]:
    """Return the KV layout that `ctx_size` and `engine.kv_memory` ask for, and notes on it.

    Raises:
        Refusal: the memory does not hold the context that was asked for.
    """
    config = loaded.config
    page_bytes = kv_bytes_per_token(plan, config.engine.kv_dtype) * PAGE_SIZE
    context = config.ctx_size or plan.context
    context_pages = -(-context // PAGE_SIZE)
    half_free = available_bytes() // 2
    wanted = max(DEFAULT_BYTES, context_pages * page_bytes)
    budget = config.engine.kv_memory or min(wanted, half_free)
    pages = max(1, budget // page_bytes)
    findings: list[Finding] = []
    if context > plan.context:
        findings.append(
            warning(
                "context.beyond_model",
                f"ctx_size {context} is more than the {plan.context} tokens that the model was "
                "made for; answers beyond those may be poor",
                f"set ctx_size to {plan.context} or less",
                loaded.source("ctx_size").where("ctx_size"),
            )
        )
    if pages < context_pages:
        fits = pages * PAGE_SIZE
        if config.ctx_size:
            raise Refusal(_too_small(loaded, context, context_pages * page_bytes, fits, budget))
        findings.append(
            note(
                "context.cut",
                f"the context is {fits} tokens, not the model's {plan.context}: KV memory of "
                f"{budget} bytes holds no more",
            )
        )
        context = fits
    return Memory(context=context, pages=pages, page_size=PAGE_SIZE, bytes=pages * page_bytes), (
        findings
    )


def _too_small(loaded: LoadedConfig, context: int, need: int, fits: int, budget: int) -> Finding:
    by_hand = loaded.config.engine.kv_memory > 0
    mend = "raise engine.kv_memory" if by_hand else "free memory, or set engine.kv_memory"
    return error(
        "context.too_large",
        f"ctx_size {context} needs {need} bytes of KV memory; "
        + ("engine.kv_memory is " if by_hand else "half of the free memory is ")
        + f"{budget}, enough for {fits} tokens",
        f"{mend}, or set ctx_size to {fits} or less",
        loaded.source("ctx_size").where("ctx_size"),
    )
