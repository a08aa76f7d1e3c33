"""A program that lost its KV before a step: every sequence is computed anew, none ends."""

from __future__ import annotations

import numpy as np
import pytest

from onebit.devices.base import StepBatch
from onebit.devices.null import open_null
from onebit.findings import KvLost, error
from tests.unit.engine.engine_support import VOCAB, Driver, alone, options, request


class Forgetful:
    """A null program that wipes its KV and says so before the steps named."""

    def __init__(self, lose_at: set[int], **changes: int) -> None:
        self._inner = open_null(VOCAB, options(**changes))
        self.info, self.alive = self._inner.info, True
        self._lose_at, self.calls = lose_at, 0

    def step(self, batch: StepBatch) -> np.ndarray:
        number, self.calls = self.calls, self.calls + 1
        if number in self._lose_at:
            self._inner._tokens[:] = 0
            self._inner._marks[:] = 0
            raise KvLost(error("test.kv_lost", "the KV is gone", "go on"))
        return self._inner.step(batch)

    def close(self) -> None:
        self._inner.close()


@pytest.mark.parametrize("lose_at", [{0}, {1}, {3}, {2, 3, 7}])
def test_answers_are_those_without_the_loss(lose_at: set[int]) -> None:
    driver = Driver(Forgetful(lose_at))
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6], [7, 8]]
    handles = [driver.submit(request(prompt, 10)) for prompt in prompts]
    driver.finish()
    for prompt, handle in zip(prompts, handles, strict=True):
        assert driver.tokens(handle) == alone(prompt, 10)
        assert driver.end(handle).reason == "length"
    assert driver.core.counters.device_errors == 0


def test_cached_pages_are_not_used_again() -> None:
    program = Forgetful(set())
    driver = Driver(program)
    prompt = list(range(20))
    driver.submit(request(prompt, 2))
    driver.finish()
    assert driver.core.scheduler.pool.idle > 0
    program._lose_at = {program.calls}
    handle = driver.submit(request(prompt, 6))
    driver.finish()
    assert driver.tokens(handle) == alone(prompt, 6)
    driver.check_pages()
