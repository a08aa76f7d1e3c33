"""What the engine adds to a step: 8 sequences, a vocabulary of 151,936."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from onebit.devices.base import ProgramInfo, ProgramOptions, StepBatch
from onebit.engine import Engine, EngineLimits, GenerationRequest, SamplingParams

pytestmark = pytest.mark.bench

VOCAB, STREAMS, TOKENS, ROUNDS = 151_936, 8, 100, 5


class FreeProgram:
    """Steps that cost nothing: rows of ready-made logits."""

    alive = True

    def __init__(self) -> None:
        options = ProgramOptions(context=1024, pages=512)
        self.info = ProgramInfo("null", "f32", 1, VOCAB, options, {})
        random = np.random.default_rng(0)
        self._logits = random.standard_normal((32, VOCAB), dtype=np.float32)
        self._logits[:, random.integers(0, VOCAB, 20)] += np.linspace(4, 14, 20, dtype=np.float32)
        self._steps = 0

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        rows = batch.logits_for.size
        self._steps += 1
        first = self._steps % (32 - rows)
        return self._logits[first : first + rows]

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("name", "sampling", "most_ms"),
    [
        ("greedy", SamplingParams(temperature=0), 0.5),
        ("top_k 40, top_p 0.95", SamplingParams(temperature=0.8, top_k=40, top_p=0.95), 3.0),
        ("top_p 0.9", SamplingParams(temperature=0.8, top_p=0.9), 4.0),
        ("temperature 1", SamplingParams(), 4.0),
        ("greedy, 5 logprobs", SamplingParams(temperature=0, logprobs=5), 4.0),
    ],
)
def test_time_around_a_step(name: str, sampling: SamplingParams, most_ms: float) -> None:
    engine = Engine(FreeProgram(), EngineLimits(max_sequences=STREAMS))
    # CPU time of the engine's thread: other work on the machine does not count.
    engine._core._clock = time.thread_time
    engine.start()

    async def stream(number: int) -> None:
        asked = GenerationRequest([number + 1] * 40, max_tokens=TOKENS, sampling=sampling)
        async with engine.submit(asked) as handle:
            while await handle.batch():
                pass

    async def streams() -> None:
        await asyncio.gather(*(stream(number) for number in range(STREAMS)))

    rounds = []
    before = engine.stats()
    for _ in range(ROUNDS):
        asyncio.run(streams())
        after = engine.stats()
        spent = after.engine_seconds - before.engine_seconds
        rounds.append(spent / (after.steps - before.steps) * 1e3)
        before = after
    engine.close()
    print(f"{name}: {min(rounds):.3f} ms a step")
    assert before.generated_tokens == ROUNDS * STREAMS * TOKENS
    assert min(rounds) < most_ms
