"""A device that fails: the step ends with its own error, and the next one works."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from onebit.findings import DeviceError, KvLost
from onebit.forward.npu_program import Patience
from tests.device.conftest import Open
from tests.device.machine import NpuMachine
from tests.fixtures.programs import one_sequence, prefill

PROMPT = [5, 61, 62, 7, 200, 9]
IN_PROCESS = {
    "error": ("npu.launch_failed", "ERT_CMD_STATE_ERROR"),
    "abort_state": ("npu.launch_failed", "ERT_CMD_STATE_ABORT"),
    "timeout": ("npu.launch_failed", "ERT_CMD_STATE_TIMEOUT"),
    "noresponse": ("npu.launch_failed", "ERT_CMD_STATE_NORESPONSE"),
    "submit": ("npu.submit", "DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed (err=-22)"),
    "untouched": ("npu.output_untouched", "did not write its whole output"),
    "half": ("npu.output_untouched", "did not write its whole output"),
    "zeros": ("npu.output_zero", "all zeros"),
}
"""Faults after which the process goes on with new contexts."""
FATAL = {
    "hang": ("npu.launch_timeout", "did not finish within 0.5 s"),
    "deaf": ("npu.worker_died", "no sign of life"),
    "abort": ("npu.worker_died", "SIGABRT"),
}
"""Faults that take the process with them."""


def fails(program, code: str, text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        prefill(program, PROMPT)
    (finding,) = caught.value.findings
    assert finding.code == code
    assert text in finding.what
    assert finding.mend


@pytest.mark.parametrize("ahead", [0, 5])
@pytest.mark.parametrize("kind", IN_PROCESS)
def test_a_failed_launch_ends_its_step_only(
    kind: str, ahead: int, open_program: Open, machine: NpuMachine
) -> None:
    program = open_program(streams=1 + ahead % 2)
    expected = prefill(program, PROMPT)
    worker = program.worker_pid
    contexts = machine.count("context")
    machine.fault(kind, ahead)
    fails(program, *IN_PROCESS[kind])
    assert program.alive
    assert program.health.state == "degraded"
    assert IN_PROCESS[kind][1] in program.health.reason
    assert np.array_equal(prefill(program, PROMPT), expected)
    assert (program.health.state, program.health.failures) == ("ready", 1)
    assert program.worker_pid == worker
    assert machine.count("context") > contexts
    program.close()
    machine.assert_no_leak()


def test_the_kv_of_earlier_steps_outlives_a_failed_one(
    open_program: Open, machine: NpuMachine
) -> None:
    program = open_program()
    expected = prefill(program, [*PROMPT, 77])[-1]
    prefill(program, PROMPT)
    step = one_sequence([77], len(PROMPT), 8, [0])
    machine.fault("error", 2)
    with pytest.raises(DeviceError):
        program.step(step)
    np.testing.assert_allclose(program.step(step)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", FATAL)
def test_a_lost_process_is_started_again(
    kind: str, open_program: Open, machine: NpuMachine
) -> None:
    program = open_program(launch_timeout=0.5)
    expected = prefill(program, PROMPT)
    worker = program.worker_pid
    machine.fault(kind, 3)
    fails(program, *FATAL[kind])
    with pytest.raises(KvLost):
        prefill(program, PROMPT)
    assert np.array_equal(prefill(program, PROMPT), expected)
    assert (program.health.state, program.health.restarts) == ("ready", 1)
    assert program.worker_pid != worker


def test_a_signal_during_a_wait_is_no_failure(open_program: Open, machine: NpuMachine) -> None:
    program = open_program()
    expected = prefill(program, PROMPT)
    machine.fault("interrupted", 1)
    assert np.array_equal(prefill(program, PROMPT), expected)
    assert program.health.failures == 0


def test_a_device_that_goes_and_comes_back(open_program: Open, machine: NpuMachine) -> None:
    program = open_program()
    expected = prefill(program, PROMPT)
    machine.set(lost=True)
    fails(program, "npu.submit", "No such device")
    fails(program, "npu.context", "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-19)")
    for _ in range(3):
        with pytest.raises(DeviceError, match="is down"):
            prefill(program, PROMPT)
    assert program.health.state == "down"
    assert program.alive
    starts = machine.count("device")
    assert starts <= 2, "no endless retry"
    machine.set(lost=False)
    deadline = time.monotonic() + 20
    while program.health.state != "ready":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(KvLost):
        prefill(program, PROMPT)
    assert np.array_equal(prefill(program, PROMPT), expected)


def test_killed_in_a_step(open_program: Open, machine: NpuMachine) -> None:
    program = open_program()
    expected = prefill(program, PROMPT)
    machine.set(seconds=0.2)
    threading.Timer(0.3, os.kill, (program.worker_pid, signal.SIGKILL)).start()
    fails(program, "npu.worker_died", "ended by SIGKILL")
    machine.set(seconds=0)
    with pytest.raises(KvLost):
        prefill(program, PROMPT)
    assert np.array_equal(prefill(program, PROMPT), expected)


def test_killed_between_steps(open_program: Open) -> None:
    program = open_program()
    expected = prefill(program, PROMPT)
    os.kill(program.worker_pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while program.health.restarts == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "SIGKILL" in program.health.reason
    with pytest.raises(KvLost):
        prefill(program, PROMPT)
    assert np.array_equal(prefill(program, PROMPT), expected)


def test_closing_during_a_step(open_program: Open, machine: NpuMachine) -> None:
    program = open_program(launch_timeout=30.0)
    machine.set(seconds=0.05)
    errors = []

    def step() -> None:
        try:
            prefill(program, PROMPT)
        except DeviceError as problem:
            errors.append(problem)

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.1)
    program.close()
    thread.join(10)
    assert not thread.is_alive()
    assert not program.alive
    program.close()
    with pytest.raises(DeviceError, match="closed"):
        prefill(program, PROMPT)


@pytest.mark.parametrize(
    ("script", "code", "text"),
    [
        ({"always": "untouched"}, "npu.output_untouched", "did not write"),
        ({"always": "zeros"}, "npu.output_zero", "all zeros"),
        ({"always": "wrong"}, "npu.self_test", "1 of"),
        ({"context_error": 22}, "npu.context", "(err=-22): Invalid argument"),
        ({"old_xrt": True}, "npu.xrt", "XRT is too old"),
        ({"lost": True}, "npu.open", "No such device"),
        ({"memory": 200_000}, "npu.buffer", "Cannot allocate memory"),
        ({"import_error": "libxrt_coreutil.so.2: no such file"}, "npu.pyxrt", "libxrt_coreutil"),
        ({"faults": {"0": "abort"}}, "npu.worker_died", "SIGABRT"),
        ({"faults": {"0": "deaf"}}, "npu.worker_died", "no sign of life"),
    ],
)
def test_a_device_that_fails_its_self_test_is_never_ready(
    script: dict, code: str, text: str, open_program: Open, machine: NpuMachine
) -> None:
    machine.set(**script)
    with pytest.raises(DeviceError) as caught:
        open_program(launch_timeout=0.5)
    (finding,) = caught.value.findings
    assert finding.code == code
    assert text in finding.what


def test_closing_while_the_worker_starts_again(open_program: Open, machine: NpuMachine) -> None:
    program = open_program(patience=Patience(stall=60, close=60, pauses=(0,)))
    machine.set(always="deaf")
    os.kill(program.worker_pid, signal.SIGKILL)
    launches = machine.count("launch")
    deadline = time.monotonic() + 10
    while machine.count("launch") == launches:  # its self-test hangs in the binding
        assert time.monotonic() < deadline
        time.sleep(0.02)
    begun = time.monotonic()
    program.close()
    assert time.monotonic() - begun < 5
