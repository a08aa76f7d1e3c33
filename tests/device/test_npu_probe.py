"""The probe: each thing that can be wrong with a machine has its own finding (D01, D02)."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from onebit.devices.npu.ask import Answer, ask_pyxrt
from onebit.devices.npu.probe import probe_npu
from onebit.devices.npu.process import HEAP_BYTES, Memlock
from onebit.findings import DeviceError
from tests.device.conftest import Open
from tests.device.machine import NpuMachine

UNLIMITED = Memlock(None)


def asked_never() -> Answer:
    raise AssertionError("pyxrt must not be asked")


@pytest.mark.parametrize(("revision", "name"), [("10", "Strix"), ("11", "Halo"), ("20", "Krackan")])
def test_known_devices_are_usable(revision: str, name: str, machine: NpuMachine) -> None:
    (machine.pci / "revision").write_text(f"0x{revision}\n")
    found = probe_npu(machine.root, memlock=UNLIMITED)
    assert found.usable
    assert found.findings == ()
    assert "RyzenAI-npu5" in found.what
    assert name in found.what
    assert found.busy == ""


def no_device(machine: NpuMachine) -> None:
    for file in machine.pci.iterdir():
        file.unlink()
    machine.pci.rmdir()


def first_generation(machine: NpuMachine) -> None:
    (machine.pci / "device").write_text("0x1502\n")


def unknown_revision(machine: NpuMachine) -> None:
    (machine.pci / "revision").write_text("0x7f\n")


def no_driver(machine: NpuMachine) -> None:
    (machine.pci / "driver").unlink()


def other_driver(machine: NpuMachine) -> None:
    no_driver(machine)
    other = machine.root / "sys/bus/pci/drivers/vfio-pci"
    other.mkdir()
    (machine.pci / "driver").symlink_to(other)


def no_node(machine: NpuMachine) -> None:
    machine.node.unlink()


def old_firmware(machine: NpuMachine) -> None:
    (machine.pci / "fw_version").write_text("1.0.0.63\n")


@pytest.mark.parametrize(
    ("change", "code", "what", "mend"),
    [
        (no_device, "npu.absent", "no PCI device 1022:17f0", "set-up"),
        (first_generation, "npu.generation", "first generation (PCI 1022:1502)", "device: cpu"),
        (unknown_revision, "npu.revision", "revision 7f", "newer onebit"),
        (no_driver, "npu.driver", "has no driver loaded, expected amdxdna", "modprobe amdxdna"),
        (other_driver, "npu.driver", "is bound to the driver vfio-pci", "modprobe amdxdna"),
        (no_node, "npu.node", "no device node", "dmesg"),
        (old_firmware, "npu.firmware", "1.0.0.63 is too old: at least 1.1.0.0", "linux-firmware"),
    ],
)
def test_what_the_kernel_shows(change, code: str, what: str, mend: str, machine) -> None:
    change(machine)
    found = probe_npu(machine.root, ask=asked_never, memlock=UNLIMITED)
    assert not found.usable
    (finding,) = found.findings
    assert finding.code == code
    assert what in finding.what == found.what
    assert mend in finding.mend


def test_permission(machine: NpuMachine) -> None:
    asked: list[Path] = []

    def refuse(node: Path) -> bool:
        asked.append(node)
        return False

    (finding,) = probe_npu(machine.root, ask=asked_never, openable=refuse).findings
    assert finding.code == "npu.permission"
    assert finding.where.file == str(machine.node)
    assert "usermod -aG render" in finding.mend
    assert asked == [machine.node]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_a_node_of_root(machine: NpuMachine) -> None:
    machine.node.chmod(0)
    (finding,) = probe_npu(machine.root, ask=asked_never).findings
    assert finding.code == "npu.permission"


def test_memlock_of_this_process(machine: NpuMachine) -> None:
    found = probe_npu(machine.root, ask=asked_never, memlock=Memlock(64 << 10))
    (finding,) = found.findings
    assert finding.code == "npu.memlock"
    assert "may lock 0.1 MiB" in finding.what
    assert "needs 64 MiB" in finding.what
    assert "ulimit -l" in finding.mend
    assert "LimitMEMLOCK=infinity" in finding.mend


def test_memlock_counts_weights_before_they_load(open_program: Open, machine, monkeypatch) -> None:
    monkeypatch.setattr(
        Memlock, "of_this_process", classmethod(lambda cls: Memlock(HEAP_BYTES + 4096))
    )
    with pytest.raises(DeviceError, match=r"may lock 64\.0 MiB") as caught:
        open_program()
    assert caught.value.findings[0].code == "npu.memlock"
    assert machine.count("device") == 0


def test_the_limit_is_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, 65536))
    monkeypatch.setattr(Path, "read_text", lambda self: "Name:\tx\nCapEff:\t0000000000000000\n")
    assert Memlock.of_this_process() == Memlock(65536)
    monkeypatch.setattr(Path, "read_text", lambda self: "CapEff:\t0000000000004000\n")
    assert Memlock.of_this_process() == Memlock(None)  # CAP_IPC_LOCK
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert Memlock.of_this_process() == Memlock(None)


GOOD = Answer(count=1, info={"name": "RyzenAI-npu5", "host": '{"build": {"version": "2.26.0"}}'})


@pytest.mark.parametrize(
    ("answer", "code", "what"),
    [
        (Answer(import_error="No module named 'pyxrt'"), "npu.pyxrt", "No module named 'pyxrt'"),
        (Answer(died="it did not answer within 30 s"), "npu.pyxrt_died", "did not answer"),
        (Answer(count=0), "npu.no_device", "XRT sees no device"),
        (
            Answer(
                count=1, open_error="Open /dev/accel/accel0 failed (err=-13): Permission denied"
            ),
            "npu.permission",
            "pyxrt.device(0) failed: Open /dev/accel/accel0 failed (err=-13)",
        ),
        (
            Answer(count=1, open_error="mmap(addr=0, len=67108864) failed (err=-11): Resource"),
            "npu.memlock",
            "mmap(addr=0, len=67108864) failed (err=-11)",
        ),
        (Answer(open_error="No such library 'libxrt_core.so.2'"), "npu.open", "libxrt_core"),
        (
            GOOD.model_copy(update={"info": {"host": '{"version": "2.20.1"}'}}),
            "npu.xrt",
            "XRT 2.20.1 is too old: at least 2.21.75",
        ),
        (
            GOOD.model_copy(update={"info": {"platform": '{"firmware_version": "1.0.0.63"}'}}),
            "npu.firmware",
            "NPU firmware 1.0.0.63 is too old: at least 1.1.0.0",
        ),
        (
            GOOD.model_copy(update={"info": {"platform": '[{"protocol": 6}]'}}),
            "npu.protocol",
            "firmware protocol 6 is too old: at least 7",
        ),
    ],
)
def test_what_pyxrt_says(answer: Answer, code: str, what: str, machine: NpuMachine) -> None:
    found = probe_npu(machine.root, ask=lambda: answer, memlock=UNLIMITED)
    (finding,) = found.findings
    assert (finding.code, found.usable) == (code, False)
    assert what in finding.what


NO_LIBRARY = "libxrt_coreutil.so.2: cannot open shared object file"
REFUSED = "Open /dev/accel/accel0 failed (err=-13): Permission denied"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ({}, Answer(count=1)),
        ({"devices": 0}, Answer(count=0)),
        ({"permission": True}, Answer(count=1, open_error=REFUSED)),
        ({"import_error": NO_LIBRARY}, Answer(import_error=NO_LIBRARY)),
    ],
)
def test_asking_the_binding(script: dict, expected: Answer, machine: NpuMachine) -> None:
    machine.set(**script)
    answer = ask_pyxrt()
    assert answer.model_copy(update={"info": {}}) == expected
    assert (answer.info.get("name") == "RyzenAI-npu5") == (expected == Answer(count=1))


def test_without_pyxrt(machine: NpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    assert ask_pyxrt() == Answer(import_error="No module named 'pyxrt'")
    assert replace(probe_npu(machine.root, memlock=UNLIMITED), findings=()).what == (
        "pyxrt cannot be imported: No module named 'pyxrt'"
    )
