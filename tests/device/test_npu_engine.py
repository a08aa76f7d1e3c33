"""Many requests on an NPU whose process dies: each ends rightly or with a clear error."""

from __future__ import annotations

import os
import signal
import time

import pytest

from onebit.engine import Engine, EngineLimits, GenerationRequest, SamplingParams
from onebit.engine.events import FinishEvent, TokenEvent
from tests.device.conftest import Open
from tests.device.machine import NpuMachine

PROMPTS = [[5 + i, 61, 62, 7, 200, 9 + i] for i in range(6)]
COUNT = 20


@pytest.fixture
def engine(open_program: Open):
    program = open_program(launch_timeout=0.5, pages=32)
    made = Engine(program, EngineLimits(max_sequences=4))
    made.start()
    yield made, program
    made.close()


def submit(engine: Engine, prompt: list[int]):
    greedy = SamplingParams(temperature=0)
    return engine.submit(GenerationRequest(prompt=prompt, max_tokens=COUNT, sampling=greedy))


def read(handle) -> tuple[list[int], FinishEvent]:
    tokens: list[int] = []
    for event in handle:
        if isinstance(event, TokenEvent):
            tokens.append(event.token)
        elif isinstance(event, FinishEvent):
            return tokens, event
    raise AssertionError("no end")


def alone(engine: Engine) -> list[list[int]]:
    answers = [read(submit(engine, prompt))[0] for prompt in PROMPTS]
    assert all(len(answer) == COUNT for answer in answers)
    return answers


def check(engine: Engine, handles, expected: list[list[int]]) -> int:
    """Return how many ended with an error; all others are right."""
    errors = 0
    for handle, answer in zip(handles, expected, strict=True):
        tokens, end = read(handle)
        if end.reason == "error":
            errors += 1
            assert end.error is not None
            assert end.error.findings[0].code.startswith("npu.")
            assert tokens == answer[: len(tokens)]
        else:
            assert tokens == answer
    return errors


@pytest.mark.parametrize("fault", ["kill", "error", "hang", "abort"])
def test_a_fault_among_many(fault: str, engine, machine: NpuMachine) -> None:
    engine, program = engine
    expected = alone(engine)
    machine.set(seconds=0.002)
    handles = [submit(engine, prompt) for prompt in PROMPTS]
    if fault == "kill":
        time.sleep(0.3)
        os.kill(program.worker_pid, signal.SIGKILL)
    else:
        machine.fault(fault, ahead=40)
    errors = check(engine, handles, expected)
    assert 1 <= errors <= 4, "those of the failed step, and no others"
    machine.set(seconds=0)
    assert alone(engine) == expected
    stats = engine.stats()
    assert stats.running == stats.waiting == stats.pages_used == 0


def test_a_death_between_steps_costs_no_request(engine, machine: NpuMachine) -> None:
    engine, program = engine
    expected = alone(engine)
    os.kill(program.worker_pid, signal.SIGKILL)
    end = time.monotonic() + 15
    while program.health.state == "ready" and program.health.restarts == 0:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert check(engine, [submit(engine, prompt) for prompt in PROMPTS], expected) == 0
    assert engine.device_health.restarts == 1
