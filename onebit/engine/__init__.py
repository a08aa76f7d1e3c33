"""The serving engine: continuous batching over paged KV with an automatic prefix cache.

    engine = Engine(program, EngineLimits(max_sequences=8), eos=plan.tokens.eos)
    engine.start()
    async with engine.submit(GenerationRequest(prompt=ids, max_tokens=100)) as handle:
        async for event in handle:      # TokenEvent, ..., FinishEvent
            ...
    await asyncio.to_thread(engine.drain, 10.0)

It knows tokens, positions and page numbers: no text, no HTTP, no model. Stop strings are found
above it, by a caller that cancels.
"""

from onebit.engine.engine import Engine
from onebit.engine.errors import (
    ConstraintFailed,
    DeadlineExceeded,
    EngineStopped,
    PromptTooLong,
    QueueFull,
)
from onebit.engine.events import (
    Event,
    FinishEvent,
    FinishReason,
    ProgressEvent,
    PromptEvent,
    Timings,
    TokenEvent,
    TokenLogprob,
)
from onebit.engine.handle import GenerationHandle
from onebit.engine.request import Constraint, EngineLimits, GenerationRequest, SamplingParams
from onebit.engine.stats import EngineStats, Histogram

__all__ = [
    "Constraint",
    "ConstraintFailed",
    "DeadlineExceeded",
    "Engine",
    "EngineLimits",
    "EngineStats",
    "EngineStopped",
    "Event",
    "FinishEvent",
    "FinishReason",
    "GenerationHandle",
    "GenerationRequest",
    "Histogram",
    "ProgressEvent",
    "PromptEvent",
    "PromptTooLong",
    "QueueFull",
    "SamplingParams",
    "Timings",
    "TokenEvent",
    "TokenLogprob",
]
