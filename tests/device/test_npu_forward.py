"""The NPU's forward on the fake device: against its emulation, against float32, in every mode."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from onebit.devices.base import StepBatch
from tests.device.conftest import Open
from tests.device.design_files import write_kernels
from tests.device.emulation import emulated
from tests.device.machine import NpuMachine
from tests.fixtures.programs import greedy, plan_of, prefill, program_on
from tests.fixtures.tiny_container import TINY_CONFIGS, write_tiny

PROMPT = [5, 61, 62, 7, 200, 9, 33, 140, 17, 18, 19, 250]


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert got.std() > 0.1
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", sorted(TINY_CONFIGS))
def test_every_family_equals_its_emulation(
    family: str, tmp_path: Path, open_program: Open, machine: NpuMachine
) -> None:
    model = tmp_path / family
    write_tiny(model, family)
    write_kernels(tmp_path / "k", plan_of(model))
    program = open_program(model, tmp_path / "k")
    oracle = emulated(model, program.info.options)
    expected = prefill(oracle, PROMPT)
    assert_same(prefill(program, PROMPT), expected)
    assert greedy(program, PROMPT, 12) == greedy(oracle, PROMPT, 12)
    with program_on(model, "reference") as exact:
        error = expected - prefill(exact, PROMPT)
    # Eight bits a value on random weights; a wrong scale or column is far outside.
    assert np.sqrt(np.mean(error**2)) < 0.06 * expected.std()
    program.close()
    machine.assert_no_leak()


def test_a_wrong_device_does_not_pass_the_comparison(tiny: Path, open_program: Open) -> None:
    program = open_program()
    expected = prefill(emulated(tiny, program.info.options), PROMPT)
    for wrong in (expected[::-1], np.zeros_like(expected), expected[:3], expected + 1e-3):
        with pytest.raises(AssertionError):
            assert_same(wrong, expected)


@pytest.mark.parametrize("streams", [2, 3])
def test_streams_change_nothing(
    streams: int, tiny: Path, open_program: Open, machine: NpuMachine
) -> None:
    program = open_program(streams=streams)
    assert program.info.detail["streams"] == str(streams)
    assert_same(prefill(program, PROMPT), prefill(emulated(tiny, program.info.options), PROMPT))
    assert machine.count("context") == 4 * streams  # all are used by the self-test
    program.close()
    machine.assert_no_leak()


def test_split_gate_and_up(tiny: Path, tmp_path: Path, open_program: Open) -> None:
    names = write_kernels(tmp_path / "k", plan_of(tiny), split=True)
    assert "full_i8_G_K256_N512.elf" in names
    program = open_program(designs=tmp_path / "k")
    assert_same(prefill(program, PROMPT), prefill(emulated(tiny, program.info.options), PROMPT))


def test_host_gemm_opens_no_device_and_answers_the_same(
    open_program: Open, machine: NpuMachine
) -> None:
    on_device = prefill(open_program(), PROMPT)
    opened = machine.count("device")
    machine.set(devices=0, import_error="must not be imported")
    for designs in ({}, {"designs": None}):
        program = open_program(gemm="host", **designs)
        assert np.array_equal(prefill(program, PROMPT), on_device)
    assert machine.count("device") == opened


def test_rows_beyond_one_launch(tiny: Path, open_program: Open) -> None:
    ids: Sequence[int] = [(7 * i + 3) % 320 for i in range(200)]
    program = open_program()
    oracle = emulated(tiny, program.info.options)
    assert_same(prefill(program, ids, chunk=200), prefill(oracle, ids, chunk=200))
    assert_same(prefill(program, ids, chunk=37), prefill(oracle, ids, chunk=200))


def test_all_rows_share_a_launch(tiny: Path, open_program: Open, machine: NpuMachine) -> None:
    program = open_program(pages=8, max_rows=256)
    oracle = emulated(tiny, program.info.options)
    lengths = [1, 5, 30, 60]
    batch = StepBatch(
        tokens=np.arange(sum(lengths), dtype=np.int32) + 3,
        positions=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        sequences=np.repeat(np.arange(4, dtype=np.int32), lengths),
        page_tables=np.arange(8, dtype=np.int32).reshape(4, 2),
        logits_for=np.cumsum(lengths, dtype=np.int32) - 1,
    )
    before = machine.count("launch")
    assert_same(program.step(batch), oracle.step(batch))
    assert machine.count("launch") - before == 2 * 4 + 1  # 96 rows in 2 layers, then the head


def test_the_worker_outlives_the_thread_that_opened_it(open_program: Open) -> None:
    opened = []
    thread = threading.Thread(target=lambda: opened.append(open_program()))
    thread.start()
    thread.join()
    time.sleep(0.3)
    assert np.isfinite(prefill(opened[0], PROMPT)).all()
    assert opened[0].health.restarts == 0


def test_contexts_are_dropped_before_the_device_sleeps(
    open_program: Open, machine: NpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.set(suspend=5.0)
    program = open_program()
    first = prefill(program, PROMPT)
    _wait_for(lambda: machine.count("context_free") == 4)
    assert np.array_equal(prefill(program, PROMPT), first)
    assert machine.count("context") == 8
    assert program.health.failures == 0


def _wait_for(condition, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
