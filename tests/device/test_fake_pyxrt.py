"""The fake binding is held to what the real one was observed to do."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from tests.device.design_files import design_elf
from tests.device.machine import NpuMachine

OPENED = """
import pyxrt, gc, struct
import numpy as np
T, F = (pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE,
        pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE)
dev = pyxrt.device(0)
ctx = pyxrt.hw_context(dev, pyxrt.elf("design.elf"))
kernel = pyxrt.ext.kernel(ctx, "main:seq")
a, b, c = (pyxrt.ext.bo(dev, size) for size in (128 * 128, 128 * 256, 4 * 128 * 256))
run = pyxrt.run(kernel)
for i, place in enumerate((a, b, c)):
    run.set_arg(i, place)
"""


def play(machine: NpuMachine, code: str, opened: bool = False) -> subprocess.CompletedProcess[str]:
    (machine.base / "design.elf").write_bytes(design_elf(128, 256))
    text = (OPENED if opened else "import pyxrt\n") + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", text], cwd=machine.base, capture_output=True, text=True, timeout=20
    )


def says(machine: NpuMachine, expression: str, opened: bool = False) -> str:
    code = f"""
    try:
        print({expression})
    except Exception as problem:
        print(type(problem).__name__, repr(str(problem)))
    """
    done = play(machine, code, opened)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("script", "expression", "expected"),
    [
        ({"devices": 0}, "pyxrt.enumerate_devices()", "0"),
        ({"devices": 0}, "pyxrt.device(0)", "RuntimeError \" No such device with index '0'\""),
        ({"devices": 0}, "pyxrt.device('0')", "RuntimeError \" No such device with index '0'\""),
        ({}, "pyxrt.device('')", "ValueError 'stoul'"),
        ({}, "pyxrt.device('a b')", "RuntimeError \"No such device 'a b': Invalid argument\""),
        ({}, "type(pyxrt.device()).__name__", "device"),
        (
            {"permission": True},
            "pyxrt.device(0)",
            "RuntimeError 'Open /dev/accel/accel0 failed (err=-13): Permission denied'",
        ),
        ({"permission": True}, "pyxrt.enumerate_devices()", "1"),
        (
            {},
            "pyxrt.elf('absent')",
            "RuntimeError 'absent is not found or is not a valid ELF file'",
        ),
        (
            {},
            "pyxrt.elf(__import__('sys').executable)",
            "RuntimeError 'ELF contains unsupported platform OS/ABI: 0'",
        ),
        ({}, "int(pyxrt.ert_cmd_state.ERT_CMD_STATE_TIMEOUT)", "8"),
        ({}, "isinstance(pyxrt.ert_cmd_state.ERT_CMD_STATE_TIMEOUT, int)", "False"),
        ({}, "pyxrt.ert_cmd_state.ERT_CMD_STATE_TIMEOUT == 8", "True"),
        ({}, "pyxrt.ert_cmd_state(99).name", "???"),
        ({}, "hasattr(pyxrt, '__version__')", "False"),
    ],
)
def test_without_a_context(script: dict, expression: str, expected: str, machine) -> None:
    machine.set(**script)
    assert says(machine, expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (
            "pyxrt.bo(dev, 64, pyxrt.bo.normal, 0)",
            "RuntimeError 'unsupported buffer type: none flag (err=95): Operation not supported'",
        ),
        (
            "pyxrt.ext.kernel(ctx, 'gemm')",
            "RuntimeError 'no ELF found with given kernel name in ctx'",
        ),
        (
            "pyxrt.ext.kernel(ctx, 'main:nope')",
            "RuntimeError 'Unable to find group idx for given kernel: main:nope'",
        ),
        ("run.state().name", "ERT_CMD_STATE_NEW"),
        ("run.wait(1, 2)", "TypeError"),
        ("run.set_arg(9, a)", "IndexError 'vector::_M_range_check'"),
        ("run.set_arg(0, None)", "TypeError"),
        ("a.sync(0)", "TypeError"),
        (
            "a.sync(T, 65, 128 * 128 - 64)",
            "RuntimeError \"Invalid BO offset and size for sync'ing: 16320, 65 (err=22): "
            'Invalid argument"',
        ),
        ("(a.map().format, a.map().readonly, a.map().obj)", "('B', False, None)"),
        ("a.size(), len(pyxrt.ext.bo(dev, 5).map())", "16384 4096"),
        ("set(bytes(a.map())) == {0}", "False"),
    ],
)
def test_with_a_context(expression: str, expected: str, machine: NpuMachine) -> None:
    said = says(machine, expression, opened=True)
    assert said.startswith(expected) if expected == "TypeError" else said == expected


def test_multiplies_what_was_synced(machine: NpuMachine) -> None:
    done = play(
        machine,
        """
        rng = np.random.default_rng(1)
        A, B = (rng.integers(-127, 128, shape, np.int8) for shape in ((128, 128), (128, 256)))
        for place, values in ((a, A), (b, B)):
            np.frombuffer(place.map(), np.int8)[:values.size] = values.reshape(-1)
            place.sync(T)
        np.frombuffer(a.map(), np.int8)[:] = 0  # not synced: the device does not see it
        run.start()
        run.wait(1000)
        before = np.frombuffer(c.map(), np.int32).copy()
        c.sync(F)
        C = np.frombuffer(c.map(), np.int32)[: 128 * 256].reshape(128, 256)
        expected = A.astype(np.int64) @ B.astype(np.int64)
        print(run.state().name, (C == expected).all(), (before == expected.reshape(-1)).all())
        """,
        opened=True,
    )
    assert done.stdout.split() == ["ERT_CMD_STATE_COMPLETED", "True", "False"], done.stderr


def test_an_api_timeout_leaves_the_command_in_flight(machine: NpuMachine) -> None:
    machine.set(seconds=0.2)
    done = play(
        machine,
        """
        run.start()
        print(run.wait(1).name, run.state().name)
        try:
            run.start()
        except RuntimeError as problem:
            print(problem)
        while int(run.state()) < 4:
            run.wait(1)
        print(run.state().name)
        """,
        opened=True,
    )
    assert done.stdout.splitlines() == [
        "ERT_CMD_STATE_TIMEOUT ERT_CMD_STATE_NEW",
        "bad command state, can't launch",
        "ERT_CMD_STATE_COMPLETED",
    ]


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("run.start(); del run; gc.collect()", signal.SIGABRT),
        ("run.start()", signal.SIGABRT),  # still in flight at exit
        ("kernel.group_id(0)", signal.SIGSEGV),
        ("pyxrt.run().start()", signal.SIGSEGV),
        ("pyxrt.hw_context(pyxrt.device(), pyxrt.elf('design.elf'))", signal.SIGSEGV),
        ("m = a.map(); del a; gc.collect(); m[0]", signal.SIGSEGV),
        ("run.start(); del c, place; gc.collect(); run.wait(9000)", signal.SIGSEGV),
    ],
)
def test_ways_to_end_the_process(code: str, number: int, machine: NpuMachine) -> None:
    machine.set(seconds=0.3)
    assert play(machine, code, opened=True).returncode == -number


@pytest.mark.parametrize("code", ["run.wait(5)", "run.start(); run.wait(5)"])
def test_waits_that_never_end(code: str, machine: NpuMachine) -> None:
    """On a run that was not started, and when the driver hangs; the GIL is held all the while."""
    machine.set(always="deaf")
    (machine.base / "design.elf").write_bytes(design_elf(128, 256))
    watch = "import threading, os; threading.Timer(0.5, os._exit, (0,)).start()\n"
    argv = [sys.executable, "-c", OPENED + watch + code]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(argv, cwd=machine.base, timeout=3, check=False)


def test_one_process_has_the_hardware(machine: NpuMachine) -> None:
    done = play(
        machine,
        """
        import subprocess, sys
        code = (
            "import pyxrt\\n"
            "try: pyxrt.hw_context(pyxrt.device(0), pyxrt.elf('design.elf'))\\n"
            "except RuntimeError as problem: print(problem)"
        )
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
        """,
        opened=True,
    )
    assert done.stdout.strip() == (
        "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-22): Invalid argument"
    )


def test_a_context_goes_with_the_last_of_its_runs(machine: NpuMachine) -> None:
    play(machine, "del ctx, kernel; gc.collect(); del run; gc.collect()", opened=True)
    assert machine.count("context_free") == 1
    play(machine, "del ctx, kernel; gc.collect()", opened=True)
    assert machine.count("context_free") == 1
