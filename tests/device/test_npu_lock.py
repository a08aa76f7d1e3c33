"""The device lock between processes, and what becomes of workers whose parent dies."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from onebit.devices.npu.lock import holder, lock_file, take_lock
from onebit.devices.npu.probe import probe_npu
from onebit.devices.npu.process import Memlock
from onebit.findings import DeviceError
from tests.device.conftest import Open
from tests.device.machine import NpuMachine
from tests.fixtures.programs import prefill

PROMPT = [5, 61, 62, 7]
SERVER = """
import json, sys, time
from pathlib import Path
from onebit.config.npu import NpuConfig
from onebit.devices.base import ProgramOptions
from onebit.forward.remote import open_npu
from tests.fixtures.programs import plan_of

model, kernels, root = map(Path, sys.argv[1:])
options = ProgramOptions(context=64, pages=2, page_size=32, max_rows=32, threads=1)
program = open_npu(
    plan_of(model), model / "model.q4nx", kernels, options, NpuConfig(), device_root=root
)
print(json.dumps({"worker": program.worker_pid}), flush=True)
sys.stdin.readline()
program.close()
"""


class Other:
    """Another process that has opened the device."""

    def __init__(self, tiny: Path, kernels: Path, machine: NpuMachine) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, tiny, kernels, machine.root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.worker = json.loads(self.process.stdout.readline())["worker"]

    def end(self) -> None:
        self.process.communicate("\n", timeout=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def other(tiny: Path, kernels: Path, machine: NpuMachine):
    made = Other(tiny, kernels, machine)
    yield made
    if made.process.poll() is None:
        made.kill()


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_waits_says_so_and_takes_over(
    other: Other, open_program: Open, machine: NpuMachine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "onebit.npu")
    assert probe_npu(machine.root, memlock=Memlock(None)).busy == f"process {other.process.pid}"
    threading.Timer(0.7, other.end).start()
    begun = time.monotonic()
    program = open_program()
    assert time.monotonic() - begun > 0.5
    text = f"the device is held by process {other.process.pid}; waiting until it is free"
    assert text in caplog.text
    assert np.isfinite(prefill(program, PROMPT)).all()
    assert machine.count("context") == 8
    assert holder(lock_file(machine.root)) == f"process {os.getpid()}"


def test_gives_up_in_time(other: Other, open_program: Open) -> None:
    with pytest.raises(DeviceError) as caught:
        open_program(lock_timeout=0.5)
    (finding,) = caught.value.findings
    assert finding.code == "npu.lock_timeout"
    assert f"held by process {other.process.pid}" in finding.what
    assert "npu.lock_timeout" in finding.mend
    assert other.process.poll() is None


def test_the_worker_dies_with_its_parent(
    other: Other, open_program: Open, machine: NpuMachine
) -> None:
    assert running(other.worker)
    other.kill()
    wait_for(lambda: not running(other.worker))
    open_program()


def test_a_stopped_worker_dies_with_its_parent(other: Other) -> None:
    """A worker that hangs in the binding can notice nothing by itself."""
    os.kill(other.worker, signal.SIGSTOP)
    other.kill()
    wait_for(lambda: not running(other.worker))


def test_the_lock_is_free_after_close(open_program: Open, machine: NpuMachine) -> None:
    for _ in range(2):
        program = open_program()
        assert holder(lock_file(machine.root)) == f"process {os.getpid()}"
        program.close()
        assert holder(lock_file(machine.root)) == ""
    machine.assert_no_leak()


def test_the_lock_is_free_after_a_failed_start(open_program: Open, machine: NpuMachine) -> None:
    machine.set(always="zeros")
    with pytest.raises(DeviceError):
        open_program()
    assert holder(lock_file(machine.root)) == ""


def test_a_restarted_worker_keeps_the_lock(open_program: Open, machine: NpuMachine) -> None:
    program = open_program()
    os.kill(program.worker_pid, signal.SIGKILL)
    wait_for(lambda: program.health.restarts == 1)
    assert holder(lock_file(machine.root)) == f"process {os.getpid()}"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    link = tmp_path / "lock"
    link.symlink_to(target)
    with pytest.raises(DeviceError, match="lock file cannot be opened"):
        take_lock(1, print, link)
    assert target.read_text() == "mine"
    assert holder(link) == ""


def test_every_user_can_take_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    previous = os.umask(0o077)
    try:
        take_lock(1, print, path).release()
    finally:
        os.umask(previous)
    assert path.stat().st_mode & 0o777 == 0o666
    again = take_lock(1, print, path)
    again.release()
    again.release()
