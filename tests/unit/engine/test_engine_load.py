"""Many clients at once, a third of them hanging up midway: nothing lost, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from functools import lru_cache

import psutil
from engine_support import GREEDY, VOCAB, alone, options, request

from onebit.devices.null import NullScript, open_null
from onebit.engine import Engine, EngineLimits, SamplingParams, TokenEvent

CLIENTS, REQUESTS = 64, 20
EOS = tuple(range(500, 512))
PROMPTS = [[n % 5 + 1] * (2 + 3 * (n % 4)) + list(range(20, 20 + n)) for n in range(24)]


@lru_cache(maxsize=100)
def longest(prompt: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(alone(prompt, 12, EOS))


async def client(engine: Engine, number: int, seed: int) -> int:
    """Run the requests of one client; returns how many answers were checked."""
    chance = random.Random(f"{seed}.{number}")
    checked = 0
    for _ in range(REQUESTS):
        prompt = chance.choice(PROMPTS)
        greedy = chance.random() < 0.7
        sampling = GREEDY if greedy else SamplingParams(temperature=0.9, top_p=0.9, top_k=20)
        count = chance.randint(1, 12)
        leaves_after = chance.randint(0, count) if chance.random() < 1 / 3 else None
        tokens: list[int] = []
        async with engine.submit(request(prompt, count, sampling=sampling)) as handle:
            if leaves_after == 0:
                continue
            async for event in handle:
                if isinstance(event, TokenEvent):
                    tokens.append(event.token)
                    if len(tokens) == leaves_after:
                        break
                else:
                    assert event.reason in ("stop", "length")
                    assert not greedy or tokens == list(longest(tuple(prompt))[:count])
                    checked += 1
    return checked


def test_64_clients_by_20_requests_in_rounds() -> None:
    engine = Engine(
        open_null(VOCAB, options(pages=120, max_rows=64), NullScript(record=4)),
        EngineLimits(max_sequences=16, queue=64),
        eos=EOS,
    )
    threads = threading.active_count()
    engine.start()

    async def one_round(seed: int) -> int:
        return sum(await asyncio.gather(*(client(engine, n, seed) for n in range(CLIENTS))))

    process = psutil.Process()
    sizes = []
    for seed in range(3):
        assert asyncio.run(one_round(seed)) > CLIENTS * REQUESTS / 3
        gc.collect()
        sizes.append(process.memory_info().rss)
    assert engine.drain(10)
    stats = engine.stats()
    assert stats.requests == stats.finished == 3 * CLIENTS * REQUESTS
    assert stats.running == stats.waiting == stats.pages_used == 0
    assert stats.cached_tokens > 0
    assert not engine._core._live
    assert not engine._inbox
    assert threading.active_count() == threads
    assert sizes[2] < sizes[1] * 1.02
