"""The engine's part of the config: sequences, KV memory, batching."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from onebit.config.honoured import PLANNED, Honoured
from onebit.config.values import Bytes, Section


class EngineConfig(Section):
    """`engine:` of serve.yaml: how requests share the model."""

    kv_memory: Annotated[Bytes, Honoured(routes=PLANNED, unit="bytes")] = Field(
        default=0,
        ge=0,
        description="Memory for the KV cache. 0: one full context, at least 1 GiB, at most half "
        "of the free memory.",
    )
    kv_dtype: Annotated[
        Literal["f32", "bf16"], Honoured(routes=PLANNED, devices=("cpu", "reference"))
    ] = Field(
        default="f32",
        description="How keys and values are kept; bf16 halves the memory at a small error.",
    )
    max_sequences: Annotated[int, Honoured(unit="sequences")] = Field(
        default=16, ge=1, le=512, description="Most sequences that run at once; more wait in line."
    )
    queue: Annotated[int, Honoured(unit="requests")] = Field(
        default=256,
        ge=0,
        le=100_000,
        description="Most requests that wait; one more is answered 429.",
    )
    prefill_chunk: Annotated[int, Honoured(unit="tokens")] = Field(
        default=256,
        ge=1,
        le=4096,
        description="Most prompt tokens read in one step, so that running answers never stall.",
    )
    prefix_cache: Annotated[bool, Honoured()] = Field(
        default=True, description="Reuse the KV of prompts that begin alike."
    )
    deadline: Annotated[float, Honoured(unit="seconds")] = Field(
        default=0, ge=0, description="A request that takes longer is ended; 0: no limit."
    )
