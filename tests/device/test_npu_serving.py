"""`serve` on the fake NPU: refusals, answers, faults seen by a client (D01, D03)."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from onebit.devices.npu.lock import lock_file, take_lock
from tests.device.conftest import Run
from tests.device.design_files import write_kernels
from tests.device.machine import FAKE, NpuMachine
from tests.fixtures.child import Child, free_port
from tests.fixtures.programs import plan_of
from tests.fixtures.tiny_container import write_tiny


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model with its kernels."""
    directory = tmp_path / "model"
    write_tiny(directory)
    write_kernels(directory / "npu", plan_of(directory))
    return directory


class Server(Child):
    """`onebit serve` on the fake machine."""

    def __init__(self, model: Path, machine: NpuMachine, *arguments: str) -> None:
        port = free_port()
        command = [sys.executable, "-m", "onebit.cli", "serve", "-m", str(model)]
        command += ["--port", str(port), "--ctx-size", "256", *arguments]
        super().__init__(command, port, machine.environ)

    def body(self) -> dict[str, Any]:
        return httpx.get(f"{self.url}/health", timeout=5).json()

    def try_complete(self, max_tokens: int = 8, **more: Any) -> httpx.Response:
        body = {"prompt": "Hello", "max_tokens": max_tokens, "temperature": 0, **more}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=30)


@pytest.fixture
def serve(model: Path, machine: NpuMachine) -> Iterator[Any]:
    started: list[Server] = []

    def start(*arguments: str, ready: bool = True) -> Server:
        server = Server(model, machine, *arguments)
        started.append(server)
        if ready:
            server.wait_ready()
        return server

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()


def without_pyxrt(machine: NpuMachine, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE.parents[2]))


def without_device(machine: NpuMachine, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.set(devices=0)


def without_kernels(machine: NpuMachine, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (model / "npu").iterdir():
        file.unlink()


def with_one_design_less(machine: NpuMachine, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "npu/full_i8_O_K256_N256.elf").unlink()


CASES = {
    without_pyxrt: ("npu.pyxrt", "pyxrt cannot be imported: No module named 'pyxrt'"),
    without_device: ("npu.no_device", "XRT sees no device"),
    without_kernels: ("npu.no_kernels", "there is no NPU kernel set for this model (hidden 256"),
    with_one_design_less: ("npu.kernel_missing", "the kernel set has no full_i8_O_K256_N256.elf"),
}


@pytest.mark.parametrize("change", CASES)
def test_refusals_of_the_npu(change, run: Run, machine, model: Path, monkeypatch) -> None:
    change(machine, model, monkeypatch)
    code, text = CASES[change]
    for command in ("serve", "explain"):
        result = run(command, "-m", model, "--device", "npu", "--port", free_port())
        assert result.status == 1
        said = result.err + result.out
        assert f"[{code}]" in said
        assert text in said
        assert set(re.findall(r"\[(npu\.\w+)\]", said)) == {code}
    result = run("explain", "-m", model, "--device", "auto", "--json")
    assert result.status == 0
    device = json.loads(result.out)["device"]
    assert device["device"] in ("cpu", "reference")
    assert text in device["why"]
    assert "\n" not in device["why"]


def test_a_held_device(run: Run, machine: NpuMachine, model: Path) -> None:
    lock = take_lock(1, print, lock_file(machine.root))
    try:
        device = json.loads(run("explain", "-m", model, "--json").out)["device"]
        assert device["device"] in ("cpu", "reference")
        assert f"in use by process {os.getpid()}" in device["why"]
        begun = time.monotonic()
        flags = ("--device", "npu", "--npu-lock-timeout", "0.5", "--port", free_port())
        result = run("serve", "-m", model, *flags)
        assert result.status == 1
        assert "[npu.lock_timeout]" in result.err
        assert time.monotonic() - begun < 20
    finally:
        lock.release()


def test_the_cpu_asks_nothing_of_the_npu(run: Run, machine: NpuMachine, model: Path) -> None:
    machine.set(import_error="must not be imported")
    assert run("explain", "-m", model, "--device", "cpu").status == 0
    assert run("validate", model).status == 0
    assert machine.events() == []


def test_serves_and_frees_everything(serve, machine: NpuMachine) -> None:
    server = serve("--device", "npu", "--npu-streams", "2")
    texts = {server.complete(max_tokens=12) for _ in range(3)}
    body = server.body()
    assert (body["status"], body["device"], body["numerics"]) == ("ok", "npu", "int8-npu")
    assert (body["npu"]["state"], body["npu"]["restarts"]) == ("ready", 0)
    status, out, err = server.stop()
    assert status == 0
    assert "device=npu" in out + err
    assert "[npu-streams=2]" in out + err
    machine.assert_no_leak()
    host = serve("--device", "npu", "--npu-gemm", "host")
    assert {host.complete(max_tokens=12)} == texts
    assert host.stop()[0] == 0


def test_auto_takes_the_npu(serve, machine: NpuMachine) -> None:
    server = serve()
    assert server.body()["device"] == "npu"
    assert server.stop()[0] == 0


@pytest.mark.parametrize("kind", ["timeout", "hang", "abort", "zeros"])
def test_a_fault_ends_its_request_only(kind: str, serve, machine: NpuMachine) -> None:
    server = serve("--device", "npu", "--npu-launch-timeout", "0.5")
    expected = server.complete(max_tokens=8)
    assert machine.count("launch") > 20
    machine.fault(kind, ahead=0)  # in the prefill
    reply = server.try_complete()
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "device_error"
    assert server.complete(max_tokens=8) == expected
    machine.fault(kind, ahead=30)  # some steps into the decoding
    reply = server.try_complete(max_tokens=30, stream=True, ignore_eos=True)
    events = [line for line in reply.text.splitlines() if line.startswith("data: ")]
    assert reply.status_code == 200
    assert len(events) > 1
    assert json.loads(events[-1][6:])["error"]["code"] == "device_error"
    assert '"finish_reason":"stop"' not in reply.text
    assert server.complete(max_tokens=8) == expected
    assert server.body()["status"] == "ok"
    assert server.stop()[0] == 0


def test_health_tells_of_a_failure(serve, machine: NpuMachine) -> None:
    server = serve("--device", "npu")
    machine.fault("timeout")
    assert server.try_complete().status_code == 503
    body = server.body()
    assert body["status"] == "degraded"
    assert "ERT_CMD_STATE_TIMEOUT" in body["npu"]["reason"]
    assert body["npu"]["failures"] == 1
    assert server.stop()[0] == 0


def test_a_failed_self_test_refuses_the_npu(serve, machine: NpuMachine) -> None:
    machine.set(always="untouched")
    server = serve("--device", "npu", ready=False)
    status, out, err = server.end()
    assert status == 1
    assert "[npu.output_untouched]" in err
    assert "ready" not in out


def test_a_fault_during_shutdown(serve, machine: NpuMachine) -> None:
    server = serve("--device", "npu", "--npu-launch-timeout", "0.5")
    machine.set(seconds=0.02)
    with httpx.Client(timeout=30) as client:
        body = {"prompt": "Hello", "max_tokens": 200, "stream": True, "ignore_eos": True}
        with client.stream("POST", f"{server.url}/v1/completions", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            machine.set(always="hang")
            server.process.terminate()
            list(lines)
    begun = time.monotonic()
    assert server.end()[0] == 0
    assert time.monotonic() - begun < 30
