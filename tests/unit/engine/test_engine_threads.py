"""The engine with its thread: asyncio and plain readers, limits, drain, close, failures."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from engine_support import VOCAB, alone, options, request

from onebit.devices.null import NullScript, emit, open_null
from onebit.engine import (
    Engine,
    EngineLimits,
    EngineStopped,
    FinishEvent,
    PromptTooLong,
    QueueFull,
    SamplingParams,
    TokenEvent,
)
from onebit.findings import DeviceError, InputError

PROMPT = list(range(10, 33))
FOREVER = emit([5])


@pytest.fixture
def start():
    engines: list[Engine] = []

    def make(script: NullScript | None = None, limits=None, eos=(), **changes: int) -> Engine:
        engine = Engine(open_null(VOCAB, options(**changes), script), limits, eos=eos)
        engine.start()
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
        assert not engine._thread.is_alive()
        stats = engine.stats()
        assert stats.running == stats.waiting == stats.pages_used == 0


async def read(engine: Engine, asked) -> tuple[list[int], FinishEvent]:
    tokens = []
    async with engine.submit(asked) as handle:
        async for event in handle:
            if isinstance(event, TokenEvent):
                tokens.append(event.token)
    return tokens, event


def test_plain_reader(start) -> None:
    engine = start()
    tokens = [e.token for e in engine.submit(request(PROMPT, 9)) if isinstance(e, TokenEvent)]
    assert tokens == alone(PROMPT, 9)


def test_many_asyncio_readers_get_their_own_answers(start) -> None:
    engine = start(limits=EngineLimits(max_sequences=4, queue=100))
    prompts = [[1 + i % 7] * (3 + i % 11) for i in range(40)]

    async def run() -> list:
        return await asyncio.gather(*(read(engine, request(p, 10)) for p in prompts))

    for prompt, (tokens, end) in zip(prompts, asyncio.run(run()), strict=True):
        assert tokens == alone(prompt, 10)
        assert end.reason == "length"
    assert engine.stats().finished == 40


def test_batch_gives_what_has_arrived_and_then_nothing(start) -> None:
    engine = start()

    async def run() -> None:
        handle = engine.submit(request(PROMPT, 5))
        events = []
        while part := await handle.batch():
            events += part
        assert [e.token for e in events[:-1]] == alone(PROMPT, 5)
        assert handle.done
        assert await handle.batch() == []

    asyncio.run(run())


def test_a_steps_events_cost_a_loop_one_call(start) -> None:
    engine = start(NullScript(seconds_per_step=0.005))
    calls = 0

    async def run() -> None:
        nonlocal calls
        loop = asyncio.get_running_loop()
        plain = loop.call_soon_threadsafe

        def counting(*args):
            nonlocal calls
            calls += 1
            return plain(*args)

        loop.call_soon_threadsafe = counting
        await asyncio.gather(*(read(engine, request([i + 1] * 4, 20)) for i in range(8)))

    asyncio.run(run())
    assert calls <= engine.stats().steps + 1


def test_the_loop_runs_freely_while_steps_are_slow(start) -> None:
    engine = start(NullScript(seconds_per_step=0.3))

    async def run() -> float:
        reading = asyncio.create_task(read(engine, request(PROMPT, 3)))
        worst = 0.0
        while not reading.done():
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            worst = max(worst, time.perf_counter() - began)
        return worst

    assert asyncio.run(run()) < 0.2


def test_leaving_the_block_cancels_within_a_step(start) -> None:
    engine = start(NullScript(next_token=FOREVER, seconds_per_step=0.01))

    async def run() -> None:
        async with engine.submit(request(PROMPT, None)) as handle:
            await handle.batch()
        deadline = time.perf_counter() + 10
        while engine.stats().running and time.perf_counter() < deadline:
            await asyncio.sleep(0.002)
        assert engine.stats().running == 0
        *_, end = [event async for event in handle]
        assert end.reason == "cancelled"

    asyncio.run(run())
    assert engine.stats().generated_tokens < 10


def test_task_cancellation_cancels_the_request(start) -> None:
    engine = start(NullScript(next_token=FOREVER, seconds_per_step=0.005))

    async def run() -> None:
        task = asyncio.create_task(read(engine, request(PROMPT, None)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)
        assert engine.stats().running == 0

    asyncio.run(run())


def test_a_closed_loops_requests_are_dropped(start) -> None:
    engine = start(NullScript(next_token=FOREVER, seconds_per_step=0.005))

    async def run() -> None:
        await engine.submit(request(PROMPT, None)).batch()

    asyncio.run(run())
    deadline = time.perf_counter() + 10
    while engine.stats().running and time.perf_counter() < deadline:
        time.sleep(0.005)
    assert engine.stats().running == 0


def test_handles_are_read_where_they_were_made(start) -> None:
    engine = start()

    async def inside() -> None:
        with pytest.raises(RuntimeError, match="async for"):
            next(engine.submit(request(PROMPT, 1)))

    asyncio.run(inside())
    handle = engine.submit(request(PROMPT, 1))
    with pytest.raises(RuntimeError, match="with `for`"):
        asyncio.run(handle.batch())


def test_queue_is_bounded_and_says_when_to_come_back(start) -> None:
    engine = start(
        NullScript(next_token=FOREVER, seconds_per_step=0.01),
        EngineLimits(max_sequences=2, queue=3),
    )
    handles = [engine.submit(request(PROMPT, 40)) for _ in range(5)]
    with pytest.raises(QueueFull) as caught:
        engine.submit(request(PROMPT, 1))
    assert caught.value.retry_after >= 1
    assert engine.stats().rejected == 1
    handles[4].cancel()
    *_, end = handles[4]
    assert end.reason == "cancelled"
    assert [e.token for e in engine.submit(request(PROMPT, 2)) if isinstance(e, TokenEvent)]


def test_queue_of_0_still_runs_as_many_as_it_can(start) -> None:
    engine = start(
        NullScript(next_token=FOREVER, seconds_per_step=0.01),
        EngineLimits(max_sequences=2, queue=0),
    )
    running = [engine.submit(request(PROMPT, 30)) for _ in range(2)]
    with pytest.raises(QueueFull):
        engine.submit(request(PROMPT, 1))
    assert all([*handle][-1].reason == "length" for handle in running)


@pytest.mark.parametrize(
    ("prompt", "fields", "name"),
    [
        ([], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([512], {}, "prompt"),
        ([4294967296], {}, "prompt"),
        ([1], {"max_tokens": -1}, "max_tokens"),
        ([1], {"n": 0}, "n"),
        ([1], {"n": 9}, "n"),
        ([1], {"stop_ids": frozenset([151645])}, "stop_token_ids"),
        ([1], {"prompt_logprobs": 21}, "logprobs"),
        ([1], {"deadline": 0.0}, "deadline"),
        ([1], {"sampling": SamplingParams(temperature=-1)}, "temperature"),
    ],
)
def test_bad_requests_are_refused_by_field(start, prompt, fields, name) -> None:
    engine = start()
    fields = {"max_tokens": 4} | fields
    with pytest.raises(InputError) as caught:
        engine.submit(request(prompt, **fields))
    assert caught.value.findings[0].where.field == name
    assert [*engine.submit(request(PROMPT, 2))][-1].reason == "length"


def test_prompt_too_long(start) -> None:
    engine = start(context=40)
    with pytest.raises(PromptTooLong, match="exceeds the available context size of 40") as caught:
        engine.submit(request([1] * 40, 1))
    assert (caught.value.n_prompt, caught.value.n_ctx) == (40, 40)
    assert [*engine.submit(request([1] * 40, 0))][-1].reason == "length"
    *_, end = engine.submit(request([1] * 39, None))
    assert (end.timings.predicted_n, end.context_full) == (1, True)


def test_drain_finishes_what_runs_and_refuses_what_comes(start) -> None:
    engine = start(NullScript(seconds_per_step=0.01), EngineLimits(max_sequences=1))
    handles = [engine.submit(request(PROMPT, 8)) for _ in range(2)]
    drained: list[bool] = []
    thread = threading.Thread(target=lambda: drained.append(engine.drain(10)))
    thread.start()
    time.sleep(0.03)
    with pytest.raises(EngineStopped, match="shutting down"):
        engine.submit(request(PROMPT, 1))
    assert not engine.stats().accepting
    for handle in handles:
        assert [e.token for e in handle if isinstance(e, TokenEvent)] == alone(PROMPT, 8)
    thread.join()
    assert drained == [True]


def test_drain_ends_the_rest_after_the_grace(start) -> None:
    engine = start(NullScript(next_token=FOREVER, seconds_per_step=0.01))
    handle = engine.submit(request(PROMPT, None))
    began = time.perf_counter()
    assert engine.drain(0.1) is False
    assert time.perf_counter() - began < 5
    *tokens, end = handle
    assert tokens
    assert end.reason == "error"
    assert isinstance(end.error, EngineStopped)


def test_close_during_drain_ends_at_once(start) -> None:
    engine = start(NullScript(next_token=FOREVER, seconds_per_step=0.01))
    handle = engine.submit(request(PROMPT, None))
    drained: list[bool] = []
    thread = threading.Thread(target=lambda: drained.append(engine.drain(60)))
    thread.start()
    time.sleep(0.03)
    engine.close()
    thread.join(10)
    assert drained == [False]
    assert [*handle][-1].reason == "error"


def test_engine_not_started_or_closed_refuses() -> None:
    engine = Engine(open_null(VOCAB, options()))
    with pytest.raises(EngineStopped, match="not started"):
        engine.submit(request(PROMPT, 1))
    engine.close()
    with pytest.raises(EngineStopped):
        engine.start()
    with pytest.raises(EngineStopped):
        engine.submit(request(PROMPT, 1))


def test_goes_on_after_a_failed_step(start) -> None:
    engine = start(NullScript(fail_at={2}))
    end = [*engine.submit(request(PROMPT, 9))][-1]
    assert isinstance(end.error, DeviceError)
    again = [e.token for e in engine.submit(request(PROMPT, 9)) if isinstance(e, TokenEvent)]
    assert again == alone(PROMPT, 9)
    assert engine.failure is None


def test_says_that_the_device_is_dead(start) -> None:
    engine = start(NullScript(dead_from=2))
    end = [*engine.submit(request(PROMPT, 9))][-1]
    assert isinstance(end.error, DeviceError)
    deadline = time.perf_counter() + 10
    while engine.stats().accepting and time.perf_counter() < deadline:
        time.sleep(0.002)
    with pytest.raises(EngineStopped, match="step 2 failed"):
        engine.submit(request(PROMPT, 1))
    assert engine.failure is not None


def test_an_error_of_its_own_leaves_nobody_hanging(start, monkeypatch) -> None:
    engine = start()
    monkeypatch.setattr(engine._core, "settle", lambda *args: 1 // 0)
    end = [*engine.submit(request(PROMPT, 9))][-1]
    assert isinstance(end.error, EngineStopped)
    engine._thread.join(10)
    with pytest.raises(EngineStopped, match="ZeroDivisionError"):
        engine.submit(request(PROMPT, 1))


def test_end_tokens_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(InputError, match="end token 600"):
        Engine(open_null(VOCAB, options()), eos=[600])


def test_timings_add_up(start) -> None:
    engine = start(NullScript(seconds_per_step=0.005), EngineLimits(max_sequences=1))
    began = time.perf_counter()
    first, second = (engine.submit(request(PROMPT, 6)) for _ in range(2))
    ends = [[*first][-1], [*second][-1]]
    total = (time.perf_counter() - began) * 1e3
    for end in ends:
        times = end.timings
        assert times.prompt_ms >= 5
        assert times.predicted_ms >= 25
        assert times.queue_ms + times.prompt_ms + times.predicted_ms <= total
    assert ends[1].timings.queue_ms >= 25
    assert ends[1].timings.queue_ms > ends[0].timings.queue_ms
