"""`serve` as a process: what a supervisor sees from its start to its end."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.fixtures.child import PATIENCE, Child, free_port

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    children: list[Child] = []

    def begin(*arguments: str | Path, port: int | None = None, script: str = "") -> Child:
        port = free_port() if port is None else port
        command = [sys.executable, "-m", "onebit.cli"]
        if script:
            command = [sys.executable, "-c", script]
        command += [*map(str, arguments), "--port", str(port)]
        child = Child(command, port, {"ONEBIT_CACHE_DIR": str(tmp_path / "cache")})
        children.append(child)
        return child

    yield begin
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
            child.process.communicate()


def test_a_supervisors_child(start: Start, tiny: Path) -> None:
    child = start(
        "serve", "-m", tiny, "--device", "auto", "--alias", "My.Model", "--ctx-size", "64"
    )
    child.wait_ready()
    models = httpx.get(f"{child.url}/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["My.Model"]
    health = httpx.get(f"{child.url}/health").json()
    assert (health["route"], health["device"], health["context"]) == ("model-generic", "cpu", 64)
    assert health["device_why"].startswith("no NPU: ")
    assert child.complete()
    status, out, _ = child.stop()
    assert status == 0
    (line,) = out.strip().splitlines()
    assert line.startswith("ready: model=My.Model route=model-generic device=cpu kernels=")
    assert f" {child.url} load=" in line
    assert " numerics=" in line


def test_the_ready_line_as_json(start: Start, tiny: Path) -> None:
    child = start("serve", "-m", tiny, "--log-format", "json")
    child.wait_ready()
    status, out, err = child.stop(signal.SIGINT)
    assert status == 0
    ready = json.loads(out)
    assert (ready["event"], ready["url"], ready["route"]) == ("ready", child.url, "model-generic")
    assert ready["load_seconds"] > 0
    assert all(json.loads(line)["level"] for line in err.strip().splitlines())


def test_the_same_bytes_from_every_entry_point(start: Start, tiny: Path, tmp_path: Path) -> None:
    answers = []
    for arguments in (
        ("serve", "-m", tiny),
        ("serve", "-m", tiny),
        ("forward-serve", "-m", tiny / "model.q4nx"),
    ):
        child = start(*arguments)
        child.wait_ready()
        answers.append([child.complete("Hello"), child.complete("Another prompt")])
        child.stop()
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] != answers[0][1]


def test_a_busy_port_ends_the_second_server_before_weights(start: Start, tiny: Path) -> None:
    first = start("serve", "-m", tiny)
    first.wait_ready()
    # a model that is not there: had it been looked at, the finding would be another
    second = start("serve", "-m", tiny.parent / "absent", port=first.port)
    status, out, err = second.end()
    assert (status, out) == (1, "")
    (line,) = err.strip().splitlines()
    assert f"cannot listen on 127.0.0.1:{first.port}: address already in use" in line
    assert first.complete()


def test_a_port_held_by_a_listener_that_never_accepts(start: Start, tiny: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(0)
        status, _, err = start("serve", "-m", tiny, port=holder.getsockname()[1]).end()
    assert status == 1
    assert "address already in use" in err


@pytest.mark.parametrize("host", ["256.0.0.1", "1.2.3", "::zz", "203.0.113.7"])
def test_an_address_that_is_not_ours(start: Start, tiny: Path, host: str) -> None:
    status, _, err = start("serve", "-m", tiny, "--host", host).end()
    assert status == 1
    (line,) = err.strip().splitlines()
    assert host in line
    assert "host" in line


def test_a_public_address_needs_a_key(start: Start, tiny: Path) -> None:
    status, _, err = start("serve", "-m", tiny, "--host", "0.0.0.0").end()
    assert status == 1
    assert "no API key is set" in err


def test_a_missing_key_file_is_one_line(start: Start, tiny: Path) -> None:
    status, _, err = start("serve", "-m", tiny, "--api-keys-file", "/absent/keys").end()
    assert status == 2
    (line,) = err.strip().splitlines()
    assert "/absent/keys" in line


def test_a_broken_directory_never_opens_the_port(start: Start, tiny: Path) -> None:
    (tiny / "config.json").write_text("{")
    child = start("serve", "-m", tiny)
    answered = False
    while child.process.poll() is None:
        with socket.socket() as sock:
            answered = answered or sock.connect_ex(("127.0.0.1", child.port)) == 0
        time.sleep(0.005)
    assert not answered
    status, out, err = child.end()
    assert (status, out) == (1, "")
    assert "config.json:1" in err


SLOW = """
import time
from dataclasses import replace

from onebit.cli import serve
from onebit.cli.main import main
from onebit.findings import DeviceError, error

world = serve.this_world()

def slow(opening):
    time.sleep({seconds})
    if {fails}:
        raise DeviceError(error("npu.gone", "the device is gone", "reboot"))
    return world.open_program(opening)

serve.this_world = lambda: replace(world, open_program=slow)
main()
"""
"""A command line whose device takes its time to open."""


def slow_server(seconds: float, *, fails: bool = False) -> str:
    return SLOW.format(seconds=seconds, fails=fails)


def test_while_loading_everything_is_503(start: Start, tiny: Path) -> None:
    child = start("serve", "-m", tiny, script=slow_server(2))
    end = time.monotonic() + PATIENCE
    while child.health() == 0 and time.monotonic() < end:
        time.sleep(0.02)
    reply = httpx.get(f"{child.url}/health")
    assert reply.status_code == 503
    assert reply.json()["status"] == "loading"
    body = {"prompt": "x", "max_tokens": 1}
    refused = httpx.post(f"{child.url}/v1/completions", json=body)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    child.wait_ready()
    assert child.complete()
    assert child.stop()[0] == 0


def test_sigterm_while_loading_ends_at_once(start: Start, tiny: Path) -> None:
    child = start("serve", "-m", tiny, script=slow_server(30))
    while child.health() == 0:
        time.sleep(0.02)
    begun = time.monotonic()
    status, out, _ = child.stop()
    assert (status, out) == (0, "")
    assert time.monotonic() - begun < 10


def test_a_load_that_fails_ends_the_process_with_its_finding(start: Start, tiny: Path) -> None:
    child = start("serve", "-m", tiny, script=slow_server(0.5, fails=True))
    status, out, err = child.end()
    assert (status, out) == (1, "")
    assert "the device is gone -> reboot [npu.gone]" in err
