"""Many clients at once, some of whom hang up: nothing is lost and nothing is left over."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from typing import Any

import httpx
import psutil
import pytest

from onebit.devices.null import NullScript
from onebit.engine import EngineLimits
from tests.api.conftest import Running, Serve

LIMITS = EngineLimits(max_sequences=8, queue=2048)


def requests(rng: random.Random, count: int) -> list[dict[str, Any]]:
    made = []
    for _ in range(count):
        words = " ".join(rng.choice(["red", "green", "blue"]) for _ in range(rng.randrange(1, 60)))
        body: dict[str, Any] = {"prompt": words, "max_tokens": rng.randrange(1, 40)}
        if rng.random() < 0.5:
            body |= {"temperature": 0}
        else:
            body |= {"temperature": 1, "top_k": 40, "top_p": 0.9, "seed": rng.randrange(99)}
        made.append(body)
    return made


async def one_client(s: Running, seed: int, count: int) -> list[tuple[dict[str, Any], str]]:
    """Send requests one after the other; a third are left in the middle of the stream."""
    rng = random.Random(seed)
    finished = []
    async with httpx.AsyncClient(base_url=s.url, timeout=120) as client:
        for body in requests(rng, count):
            if rng.random() < 1 / 3:
                sent = {**body, "stream": True, "max_tokens": 400}
                async with client.stream("POST", "/v1/completions", json=sent) as reply:
                    async for _ in reply.aiter_raw():
                        break
                continue
            reply = await client.post("/v1/completions", json=body)
            assert reply.status_code == 200, reply.text
            finished.append((body, reply.json()["choices"][0]["text"]))
    return finished


def round_of(s: Running, clients: int, count: int, seed: int) -> None:
    async def work() -> list[list[tuple[dict[str, Any], str]]]:
        return await asyncio.gather(*(one_client(s, seed + i, count) for i in range(clients)))

    answers = [pair for client in asyncio.run(work()) for pair in client]
    s.wait_idle()
    assert s.engine.stats().pages_used == 0
    assert s.engine.stats().waiting == 0
    for body, text in random.Random(seed).sample(answers, min(30, len(answers))):
        alone = s.post("/v1/completions", body | {"cache_prompt": False}).json()
        assert alone["choices"][0]["text"] == text


def test_a_small_round(serve: Serve) -> None:
    s = serve(NullScript(seconds_per_step=0.0005), limits=LIMITS, fresh=True)
    round_of(s, clients=16, count=6, seed=100)
    before = threading.active_count()
    round_of(s, clients=16, count=6, seed=200)
    assert threading.active_count() <= before


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_rounds_of_64_clients(serve: Serve) -> None:
    s = serve(NullScript(), limits=LIMITS, fresh=True)
    process = psutil.Process(os.getpid())
    sizes = []
    for number in range(11):
        round_of(s, clients=64, count=20, seed=1000 * number)
        sizes.append(process.memory_info().rss)
    assert sizes[-1] < 1.02 * sizes[1]
    assert s.http.get("/health").status_code == 200
