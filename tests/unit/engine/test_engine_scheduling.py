"""What the core does step by step: batching, sharing, preemption, ends and failures."""

from __future__ import annotations

import numpy as np
import pytest
from engine_support import GREEDY, Driver, alone, raw_logits, request

from onebit.devices.null import NullScript, emit
from onebit.engine import (
    DeadlineExceeded,
    EngineLimits,
    EngineStopped,
    PromptEvent,
    SamplingParams,
)
from onebit.findings import DeviceError

PROMPT = list(range(10, 33))


def rows_of(driver: Driver) -> list[list[tuple[int, int, int]]]:
    """[(sequence index, first position, rows)] of every recorded batch."""
    steps = []
    for batch in driver.program.batches:
        parts = []
        for index in range(len(batch.page_tables)):
            positions = batch.positions[batch.sequences == index]
            parts.append((index, int(positions[0]), len(positions)))
        steps.append(parts)
    return steps


def test_greedy_equals_alone() -> None:
    driver = Driver()
    handle = driver.submit(request(PROMPT, 12))
    driver.finish()
    assert driver.tokens(handle) == alone(PROMPT, 12)
    assert len(set(driver.tokens(handle))) > 6


def test_wrong_pages_would_be_noticed() -> None:
    """The referee is refereed: swapped pages change the null device's answers."""
    driver = Driver()
    handle = driver.submit(request(PROMPT, 12))
    driver.step()
    table = driver.scheduler._tables[driver.sequences[0].slot]
    table[[0, 1]] = table[[1, 0]]
    driver.finish()
    assert driver.tokens(handle) != alone(PROMPT, 12)


def test_sequences_join_and_leave_between_steps() -> None:
    driver = Driver()
    first = driver.submit(request(PROMPT, 20))
    for _ in range(5):
        driver.step()
    second = driver.submit(request([1] * 9, 4))
    driver.finish()
    assert driver.tokens(first) == alone(PROMPT, 20)
    assert driver.tokens(second) == alone([1] * 9, 4)
    together = [parts for parts in rows_of(driver) if len(parts) == 2]
    assert len(together) == 4
    assert together[0][1][2] > 1
    assert all(count == 1 for parts in together[1:] for _, _, count in parts)


def test_long_prompt_is_read_in_chunks_between_tokens() -> None:
    driver = Driver(limits=EngineLimits(prefill_chunk=8, prefix_cache=False))
    running = driver.submit(request(PROMPT[:3], 60))
    for _ in range(4):
        driver.step()
    long = driver.submit(request(list(range(100, 164)), 2))
    while not driver.tokens(long):
        before = len(driver.tokens(running))
        driver.step()
        assert len(driver.tokens(running)) == before + 1
    chunks = [parts[1][2] for parts in rows_of(driver) if len(parts) == 2]
    assert sum(chunks) >= 64
    assert max(chunks) <= 8


def test_queue_is_first_in_first_out() -> None:
    driver = Driver(limits=EngineLimits(max_sequences=2))
    handles = [driver.submit(request([i + 1] * 5, 6)) for i in range(6)]
    order = []
    while driver.core.busy:
        driver.step()
        for number, handle in enumerate(handles):
            if driver.tokens(handle) and number not in order:
                order.append(number)
    assert order == [0, 1, 2, 3, 4, 5]


def test_repeated_prompt_hits_all_full_pages_but_the_last_token() -> None:
    driver = Driver()
    cold = driver.submit(request(PROMPT, 8))
    driver.finish()
    warm = driver.submit(request(PROMPT, 8))
    driver.finish()
    assert driver.tokens(warm) == driver.tokens(cold)
    assert (driver.end(cold).timings.cache_n, driver.end(cold).timings.prompt_n) == (0, 23)
    assert (driver.end(warm).timings.cache_n, driver.end(warm).timings.prompt_n) == (20, 3)
    exact = driver.submit(request(PROMPT[:20], 3))
    driver.finish()
    assert driver.end(exact).timings.cache_n == 16
    assert driver.tokens(exact) == alone(PROMPT[:20], 3)
    assert driver.core.counters.cached_tokens == 36


def test_next_turn_reuses_the_answers_pages() -> None:
    driver = Driver()
    first = driver.submit(request(PROMPT, 12))
    driver.finish()
    turn = PROMPT + driver.tokens(first) + [3, 4, 5]
    second = driver.submit(request(turn, 4))
    driver.finish()
    assert driver.end(second).timings.cache_n == 32
    assert driver.tokens(second) == alone(turn, 4)


def test_prompts_that_begin_alike_are_read_once_when_they_arrive_together() -> None:
    driver = Driver(limits=EngineLimits(prefill_chunk=8))
    handles = [driver.submit(request([*PROMPT, 40 + i], 4)) for i in range(4)]
    driver.finish()
    for i, handle in enumerate(handles):
        assert driver.tokens(handle) == alone([*PROMPT, 40 + i], 4)
        assert driver.end(handle).timings.cache_n == (20 if i else 0)


@pytest.mark.parametrize("cache", [True, False])
def test_choices_share_the_prompts_pages(cache: bool) -> None:
    driver = Driver()
    sampling = SamplingParams(temperature=1.0, seed=7)
    handle = driver.submit(request(PROMPT, 6, n=3, sampling=sampling, cache=cache))
    while any(sequence.generated == 0 for sequence in driver.sequences):
        driver.step()
    heads = {tuple(sequence.pages[:5]) for sequence in driver.sequences}
    assert len(heads) == 1
    driver.check_pages()
    driver.finish()
    assert len({tuple(driver.tokens(handle, choice)) for choice in range(3)}) == 3
    assert driver.scheduler.pool.idle == 0 if not cache else driver.scheduler.pool.idle > 0


def test_uncached_requests_neither_take_nor_leave_pages() -> None:
    driver = Driver()
    driver.submit(request(PROMPT, 4))
    driver.finish()
    idle = driver.scheduler.pool.idle
    private = driver.submit(request(PROMPT, 4, cache=False))
    driver.finish()
    assert driver.end(private).timings.cache_n == 0
    assert driver.scheduler.pool.idle == idle


def test_cache_gives_way_to_work_least_recently_used_first() -> None:
    driver = Driver(pages=12, context=48)
    old, new = [1] * 16, [2] * 16
    for prompt in (old, new, old):
        driver.submit(request(prompt, 1))
        driver.finish()
    driver.submit(request([3] * 25, 1))
    driver.finish()
    old_again = driver.submit(request(old, 1))
    driver.finish()
    new_again = driver.submit(request(new, 1))
    driver.finish()
    assert driver.end(old_again).timings.cache_n == 12
    assert driver.end(new_again).timings.cache_n < 12


def test_preemption_keeps_tokens_and_order() -> None:
    driver = Driver(pages=16, context=64)
    prompts = [[i + 1] * 6 for i in range(4)]
    handles = [driver.submit(request(prompt, 30)) for prompt in prompts]
    while driver.core.busy:
        driver.step()
        driver.check_pages()
    assert driver.core.counters.preemptions > 0
    for prompt, handle in zip(prompts, handles, strict=True):
        assert driver.tokens(handle) == alone(prompt, 30)
        assert driver.end(handle).reason == "length"
    assert not driver.sequences[0].restarted


def test_one_sequence_may_fill_all_pages() -> None:
    driver = Driver(pages=8, context=128)
    assert driver.scheduler.context == 32
    handle = driver.submit(request(PROMPT, None))
    driver.finish()
    end = driver.end(handle)
    assert (end.reason, end.context_full, end.timings.predicted_n) == ("length", True, 9)
    assert driver.tokens(handle) == alone(PROMPT, 9)


@pytest.mark.parametrize(("max_tokens", "expected"), [(1, 1), (3, 3)])
def test_max_tokens_is_exact(max_tokens: int, expected: int) -> None:
    driver = Driver(script=NullScript(next_token=emit([5])))
    handle = driver.submit(request(PROMPT, max_tokens))
    driver.finish()
    assert driver.tokens(handle) == [5] * expected
    end = driver.end(handle)
    assert (end.reason, end.context_full) == ("length", False)


def test_end_token_on_the_last_step_is_a_stop_and_counts() -> None:
    driver = Driver(script=NullScript(next_token=emit([5, 6], end=2)), eos=[2])
    handle = driver.submit(request(PROMPT, 3))
    driver.finish()
    end = driver.end(handle)
    assert driver.tokens(handle) == [5, 6]
    assert (end.reason, end.stop_token, end.timings.predicted_n) == ("stop", 2, 3)


def test_request_stop_ids_end_it_too() -> None:
    driver = Driver(script=NullScript(next_token=emit([5, 6, 7])), eos=[2])
    handle = driver.submit(request(PROMPT, 9, stop_ids=frozenset([7])))
    driver.finish()
    assert driver.tokens(handle) == [5, 6]
    assert driver.end(handle).stop_token == 7


def test_ignore_eos_and_min_tokens_hold_the_end_back() -> None:
    script = NullScript(next_token=emit([5], end=2))
    driver = Driver(script=script, eos=[2])
    ignoring = driver.submit(
        request(PROMPT, 6, sampling=SamplingParams(temperature=0, ignore_eos=True))
    )
    patient = driver.submit(
        request(PROMPT, 6, sampling=SamplingParams(temperature=0, min_tokens=4))
    )
    driver.finish()
    assert len(driver.tokens(ignoring)) == 6
    assert 2 not in driver.tokens(ignoring)
    assert len(driver.tokens(patient)) == 5  # 5, not 2, 5, not 2, 5, and then 2 counts
    assert driver.end(patient).reason == "stop"


def test_max_tokens_0_only_reads_the_prompt() -> None:
    driver = Driver()
    handle = driver.submit(request(PROMPT, 0))
    driver.finish()
    end = driver.end(handle)
    assert driver.events(handle) == [end]
    assert (end.reason, end.timings.predicted_n, end.timings.prompt_n) == ("length", 0, 23)
    assert all(batch.logits_for.size == 0 for batch in driver.program.batches)


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
@pytest.mark.parametrize("warm", [False, True])
def test_prompt_logprobs_are_the_models_own(max_tokens: int, warm: bool) -> None:
    driver = Driver(limits=EngineLimits(logit_rows=5))
    if warm:
        driver.submit(request(PROMPT, 1))
        driver.finish()
    handle = driver.submit(request(PROMPT, max_tokens, prompt_logprobs=2, n=1))
    driver.finish()
    prompt, *rest = driver.events(handle)
    assert isinstance(prompt, PromptEvent)
    assert len(prompt.logprobs) == len(PROMPT)
    assert prompt.logprobs[0] is None
    logits = raw_logits(PROMPT).astype(float)
    for position, scored in enumerate(prompt.logprobs[1:], start=1):
        row = logits[position - 1]
        expected = row - np.log(np.exp(row).sum())
        assert scored is not None
        assert scored.token == PROMPT[position]
        assert scored.logprob == pytest.approx(expected[PROMPT[position]], abs=1e-4)
        assert [token for token, _ in scored.top] == np.argsort(-row, kind="stable")[:2].tolist()
    assert driver.tokens(handle) == alone(PROMPT, max_tokens)
    assert len(rest) == max_tokens + 1
    assert driver.end(handle).timings.cache_n == 0
    assert max(batch.logits_for.size for batch in driver.program.batches) <= 5


def test_prompt_logprobs_survive_preemption() -> None:
    driver = Driver(pages=10, context=40, limits=EngineLimits(prefill_chunk=6, logit_rows=6))
    older = driver.submit(request([1] * 5, 30))
    driver.step()
    scored = driver.submit(request(PROMPT, 4, prompt_logprobs=0))
    while driver.core.busy:
        driver.step()
        driver.check_pages()
    assert driver.sequences[1].restarted
    assert driver.tokens(older) == alone([1] * 5, 30)
    assert driver.tokens(scored) == alone(PROMPT, 4)
    events = [event for event in driver.events(scored) if isinstance(event, PromptEvent)]
    assert len(events) == 1
    assert len(events[0].logprobs) == len(PROMPT)


def test_cancel_frees_pages_before_the_next_step() -> None:
    driver = Driver()
    handle = driver.submit(request(PROMPT, 50))
    other = driver.submit(request([1] * 5, 10))
    for _ in range(4):
        driver.step()
    got = list(driver.tokens(handle))
    handle.cancel()
    assert driver.sequences[0].pages == []
    driver.check_pages()
    driver.finish()
    assert driver.tokens(handle) == got
    assert driver.end(handle).reason == "cancelled"
    assert driver.tokens(other) == alone([1] * 5, 10)


def test_cancel_of_one_choice_and_of_a_waiting_one() -> None:
    driver = Driver(limits=EngineLimits(max_sequences=2))
    handle = driver.submit(request(PROMPT, 10, n=2))
    waiting = driver.submit(request([1] * 5, 10))
    for _ in range(3):
        driver.step()
    handle.cancel(1)
    waiting.cancel()
    driver.finish()
    assert driver.end(handle, 1).reason == "cancelled"
    assert driver.end(handle, 0).reason == "length"
    assert driver.tokens(handle, 0) == alone(PROMPT, 10)
    end = driver.end(waiting)
    assert (end.reason, end.timings.prompt_n, end.timings.predicted_n) == ("cancelled", 0, 0)


def test_deadline_ends_running_and_waiting_requests() -> None:
    driver = Driver(limits=EngineLimits(max_sequences=1, deadline=10.0))
    running = driver.submit(request(PROMPT, 100, deadline=0.05))
    waiting = driver.submit(request(PROMPT, 5, deadline=0.02))
    patient = driver.submit(request(PROMPT, 5))
    driver.finish()
    for handle in (running, waiting):
        end = driver.end(handle)
        assert end.reason == "error"
        assert isinstance(end.error, DeadlineExceeded)
    assert 40 < len(driver.tokens(running)) < 50
    assert driver.tokens(waiting) == []
    assert driver.end(patient).reason == "length"


@pytest.mark.parametrize("failing", [0, 3])
def test_failed_step_ends_its_requests_and_spoils_no_later_answer(failing: int) -> None:
    driver = Driver(script=NullScript(fail_at={failing}), limits=EngineLimits(max_sequences=2))
    hit = [driver.submit(request(PROMPT, 10)), driver.submit(request([1] * 5, 10))]
    spared = driver.submit(request(PROMPT, 10))
    for _ in range(failing + 1):
        driver.step()
    for handle in hit:
        end = driver.end(handle)
        assert end.reason == "error"
        assert isinstance(end.error, DeviceError)
    driver.check_pages()
    again = driver.submit(request(PROMPT, 10))
    driver.finish()
    assert driver.tokens(spared) == driver.tokens(again) == alone(PROMPT, 10)
    assert driver.core.failure is None
    assert driver.core.counters.device_errors == 1


def test_dead_program_ends_everything() -> None:
    driver = Driver(script=NullScript(dead_from=3), limits=EngineLimits(max_sequences=1))
    running, waiting = (driver.submit(request(PROMPT, 10)) for _ in range(2))
    driver.finish(5)
    assert isinstance(driver.end(running).error, DeviceError)
    assert isinstance(driver.end(waiting).error, EngineStopped)
    assert driver.core.failure is not None


def test_unexpected_exception_in_the_program_is_a_device_error() -> None:
    driver = Driver(script=NullScript(next_token=lambda history: 1 // 0))
    handle = driver.submit(request(PROMPT, 10))
    driver.finish()
    error = driver.end(handle).error
    assert isinstance(error, DeviceError)
    assert "ZeroDivisionError" in str(error)
    assert driver.scheduler.pool.available == driver.scheduler.pool.total


def test_not_a_number_ends_the_sequence_alone() -> None:
    class Spoiled:
        def __init__(self) -> None:
            inner = Driver().program
            self.info, self.alive, self._inner = inner.info, True, inner

        def step(self, batch):
            logits = self._inner.step(batch)
            if len(logits) == 2:
                logits[1, 77] = float("nan")
            return logits

        def close(self) -> None: ...

    driver = Driver(program=Spoiled())
    good = driver.submit(request(PROMPT, 6))
    bad = driver.submit(request([1] * 5, 6, sampling=SamplingParams(seed=1)))
    driver.finish()
    assert driver.tokens(good) == alone(PROMPT, 6)
    error = driver.end(bad).error
    assert isinstance(error, DeviceError)
    assert error.findings[0].code == "engine.logits_not_finite"


def test_step_is_bounded_by_max_rows() -> None:
    driver = Driver(max_rows=5, limits=EngineLimits(max_sequences=16))
    assert driver.scheduler.max_sequences == 5
    handles = [driver.submit(request([i + 1] * 7, 5)) for i in range(9)]
    driver.finish()
    assert max(batch.tokens.size for batch in driver.program.batches) == 5
    for i, handle in enumerate(handles):
        assert driver.tokens(handle) == alone([i + 1] * 7, 5)


def test_counters_add_up() -> None:
    driver = Driver()
    for _ in range(3):
        driver.submit(request(PROMPT, 5, sampling=GREEDY))
        driver.finish()
    stats = driver.core.stats(requests=3, rejected=0, accepting=True)
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (69, 40, 15)
    assert (stats.finished, stats.running, stats.waiting) == (3, 0, 0)
    assert stats.pages_used == 0
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    assert sum(stats.step_rows.counts) == stats.steps
    assert stats.step_rows.total == 23 + 3 + 3 + 3 * 4
