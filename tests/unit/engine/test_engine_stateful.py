"""Random joins, cancels, failures, preemption and prefix hits: the rules hold at every step.

Page size 4 and an alphabet of 2 make prefixes meet; 14 pages make preemption common.
"""

from __future__ import annotations

from functools import lru_cache

from engine_support import Driver, alone, request
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from onebit.devices.null import NullScript
from onebit.engine import EngineLimits, FinishEvent, PromptEvent, TokenEvent

PAGES, CONTEXT = 14, 40
EOS = (11, 12, 13, 14, 15, 16, 17, 18)


@lru_cache(maxsize=100_000)
def expected(prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
    return tuple(alone(prompt, max_tokens, EOS, CONTEXT))


prompts = st.builds(
    lambda head, tail: tuple([1, 2, 3, 4] * head + tail),
    st.integers(0, 6),
    st.lists(st.integers(1, 2), min_size=1, max_size=9),
)


class Machine(RuleBasedStateMachine):
    @initialize(chunk=st.integers(1, 16), sequences=st.integers(1, 5), prefix_cache=st.booleans())
    def start(self, chunk: int, sequences: int, prefix_cache: bool) -> None:
        self.failing: set[int] = set()
        self.driver = Driver(
            script=NullScript(fail_at=self.failing),
            limits=EngineLimits(
                max_sequences=sequences,
                prefill_chunk=chunk,
                logit_rows=3,
                prefix_cache=prefix_cache,
            ),
            eos=EOS,
            pages=PAGES,
            context=CONTEXT,
        )
        self.handles: list = []
        self.cancelled: set = set()

    @rule(
        prompt=prompts,
        max_tokens=st.integers(0, 30),
        n=st.sampled_from([1, 1, 1, 2]),
        cache=st.sampled_from([True, True, True, False]),
        scored=st.sampled_from([None, None, None, 1]),
    )
    def submit(self, prompt, max_tokens, n, cache, scored) -> None:
        if len(self.handles) > 12:
            return
        n = min(n, self.driver.scheduler.max_sequences)
        self.handles.append(
            self.driver.submit(
                request(prompt, max_tokens, n=n, cache=cache, prompt_logprobs=scored)
            )
        )

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()
            self.driver.check_pages()

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), choice=st.sampled_from([None, 0, 1]))
    def cancel(self, data, choice) -> None:
        handle = data.draw(st.sampled_from(self.handles))
        self.cancelled.add(handle)
        handle.cancel(choice)

    @rule()
    def fail_next_step(self) -> None:
        self.failing.add(self.driver.program.steps)

    @invariant()
    def pages_are_sound(self) -> None:
        self.driver.check_pages()

    @invariant()
    def arrival_order_rules(self) -> None:
        arrival = {sequence: i for i, sequence in enumerate(self.driver.sequences)}
        running = [arrival[sequence] for sequence in self.driver.scheduler.running]
        waiting = [arrival[sequence] for sequence in self.driver.scheduler.waiting]
        assert running == sorted(running)
        assert waiting == sorted(waiting)
        if running and waiting:
            assert running[-1] < waiting[0]

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.finish_in_bounded_steps()
        pool = self.driver.scheduler.pool
        assert pool.available == pool.total
        for handle in self.handles:
            for choice in range(handle.request.n):
                self.check_choice(handle, choice)

    def finish_in_bounded_steps(self) -> None:
        """The earliest sequence advances in every step but one that measures the pace."""
        driver = self.driver
        while driver.core.busy:
            first = min(
                (s for s in driver.sequences if s in driver.core._live),
                key=driver.sequences.index,
            )
            passed_by = 0
            while first in driver.core._live:
                before = (first.length, first.computed)
                driver.step()
                driver.check_pages()
                if first in driver.core._live and (first.length, first.computed) == before:
                    passed_by += 1
            assert passed_by <= 2

    def check_choice(self, handle, choice: int) -> None:
        asked = handle.request
        events = [e for e in self.driver.events(handle) if e.choice == choice]
        *body, end = events
        assert isinstance(end, FinishEvent)
        assert not any(isinstance(event, FinishEvent) for event in body)
        prompt_events = [e for e in body if isinstance(e, PromptEvent)]
        tokens = tuple(event.token for event in body if isinstance(event, TokenEvent))
        answer = expected(tuple(asked.prompt), asked.max_tokens)
        assert tokens == answer[: len(tokens)]
        if end.reason in ("stop", "length"):
            assert tokens == answer
            wants = asked.prompt_logprobs is not None and choice == 0 and len(asked.prompt) > 1
            assert len(prompt_events) == wants
            assert end.timings.prompt_n + end.timings.cache_n == len(asked.prompt)
            assert end.timings.prompt_n > 0
        elif end.reason == "cancelled":
            assert handle in self.cancelled
        else:
            assert self.failing


Machine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStateful = Machine.TestCase
