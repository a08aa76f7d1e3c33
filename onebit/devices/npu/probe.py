"""Looks for a usable NPU, from the outside in, before a weight is read.

First the kernel's view (PCI, driver, device node, permission, firmware), then this process's
memory limit, then pyxrt in a process of its own. Each thing that can be wrong has its own finding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from onebit.devices.npu.ask import Answer, ask_pyxrt
from onebit.devices.npu.lock import ROOT, holder, lock_file
from onebit.devices.npu.process import HEAP_BYTES, Memlock, may_open
from onebit.findings import Finding, Where, error

VENDOR: Final = 0x1022
FIRST_GENERATION: Final = 0x1502
SECOND_GENERATION: Final = 0x17F0
REVISIONS: Final = {0x10: "Strix", 0x11: "Strix Halo", 0x20: "Krackan"}
"""PCI revisions of the second generation that the designs are made for."""
MIN_FIRMWARE: Final = (1, 1, 0, 0)
MIN_PROTOCOL: Final = 7
MIN_XRT: Final = (2, 21, 75)
"""The first with hw_context(device, elf)."""
DRIVER: Final = "amdxdna"
_CPU = "or set `device: cpu`"


@dataclass(frozen=True, slots=True)
class NpuProbe:
    """Whether an NPU can be used now."""

    usable: bool
    what: str
    """The device's name, or in one line why there is none."""
    findings: tuple[Finding, ...] = ()
    busy: str = ""
    """Who holds the device lock, if somebody does."""


class _Found(Exception):
    """Stops the probe: what was found makes the rest moot."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.what)


def probe_npu(
    device_root: Path = ROOT,
    *,
    ask: Callable[[], Answer] = ask_pyxrt,
    openable: Callable[[Path], bool] = may_open,
    memlock: Memlock | None = None,
) -> NpuProbe:
    """Return whether this process can use an NPU, and if not, exactly why.

    Args:
        device_root: Where /sys, /dev and the lock file lie; another one in tests.
        ask: Asks pyxrt.
        openable: Whether the device node may be opened.
        memlock: How much memory may be locked; None asks the kernel.
    """
    try:
        pci = _pci_device(device_root)
        name = _generation(pci)
        _driver(pci)
        _node(device_root, openable)
        firmware = _text(pci / "fw_version")
        _firmware(firmware, pci)
        short = (memlock or Memlock.of_this_process()).finding(HEAP_BYTES)
        if short is not None:
            raise _Found(short)
        described = _pyxrt(ask())
    except _Found as found:
        return NpuProbe(False, found.finding.what, (found.finding,))
    return NpuProbe(True, f"{described or name} ({name})", busy=holder(lock_file(device_root)))


def _pci_device(root: Path) -> Path:
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _number(device / "vendor") == VENDOR and _number(device / "device") in (
            FIRST_GENERATION,
            SECOND_GENERATION,
        ):
            return device
    what = "this machine has no AMD NPU: no PCI device 1022:17f0"
    raise _Found(error("npu.absent", what, f"enable the NPU (IPU) in the firmware set-up, {_CPU}"))


def _generation(pci: Path) -> str:
    where = Where(file=str(pci))
    device, revision = _number(pci / "device"), _number(pci / "revision")
    if device == FIRST_GENERATION:
        what = "the NPU is of the first generation (PCI 1022:1502); designs need the second (17f0)"
        raise _Found(error("npu.generation", what, "set `device: cpu`", where))
    if revision not in REVISIONS:
        known = ", ".join(f"{number:02x}" for number in REVISIONS)
        what = (
            f"the NPU is PCI 1022:17f0 revision {revision:02x}, which this version does not know "
            f"(known: {known})"
        )
        mend = f"see whether a newer onebit knows it, {_CPU}"
        raise _Found(error("npu.revision", what, mend, where))
    return f"AMD XDNA2 NPU, {REVISIONS[revision]}"


def _driver(pci: Path) -> None:
    link = pci / "driver"
    bound = link.resolve().name if link.exists() else ""
    if bound != DRIVER:
        state = f"is bound to the driver {bound}" if bound else "has no driver loaded"
        mend = f"load it: `sudo modprobe {DRIVER}` (Linux 6.14 or newer has it), {_CPU}"
        what = f"the NPU {state}, expected {DRIVER}"
        raise _Found(error("npu.driver", what, mend, Where(file=str(pci))))


def _node(root: Path, openable: Callable[[Path], bool]) -> None:
    nodes = sorted((root / "dev/accel").glob("accel*"))
    if not nodes:
        what = f"the driver {DRIVER} is loaded, but there is no device node /dev/accel/accel*"
        mend = f"see `dmesg | grep {DRIVER}` for why the driver failed to start the NPU, {_CPU}"
        raise _Found(error("npu.node", what, mend, Where(file=str(root / "dev/accel"))))
    if not openable(nodes[0]):
        mend = (
            "join the group that owns it: `sudo usermod -aG render $USER`, then log in again; in a "
            "systemd service: `SupplementaryGroups=render`"
        )
        what = "permission denied: this user may not read and write the NPU's device node"
        raise _Found(error("npu.permission", what, mend, Where(file=str(nodes[0]))))


def _firmware(found: str, place: Path) -> None:
    version = _version(found)
    if version and version < MIN_FIRMWARE:
        _too_old("npu.firmware", f"NPU firmware {found}", MIN_FIRMWARE, "linux-firmware", place)


def _pyxrt(answer: Answer) -> str:
    """Return the device's name as XRT gives it."""
    if answer.import_error:
        what = f"pyxrt cannot be imported: {answer.import_error}"
        mend = f"install XRT and `source /opt/xilinx/xrt/setup.sh` (it sets PYTHONPATH), {_CPU}"
        raise _Found(error("npu.pyxrt", what, mend))
    if answer.died:
        what = f"pyxrt was asked about the NPU, and {answer.died}"
        raise _Found(error("npu.pyxrt_died", what, f"see whether `xrt-smi examine` works, {_CPU}"))
    if answer.open_error:
        raise _Found(_open_failed(answer.open_error))
    if not answer.count:
        what = f"XRT sees no device (enumerate_devices() is 0), though {DRIVER} has one"
        mend = f"install the NPU plugin of XRT (xrt_plugin-amdxdna), {_CPU}"
        raise _Found(error("npu.no_device", what, mend))
    host, platform = _json(answer.info.get("host")), _json(answer.info.get("platform"))
    xrt = _find(host, "version", r"\d+(\.\d+){2}")
    if xrt and _version(xrt) < MIN_XRT:
        _too_old("npu.xrt", f"XRT {xrt}", MIN_XRT, "XRT and its NPU plugin")
    firmware = _find(platform, "firmware_version", r"\d+(\.\d+)+")
    if firmware and _version(firmware) < MIN_FIRMWARE:
        _too_old("npu.firmware", f"NPU firmware {firmware}", MIN_FIRMWARE, "linux-firmware")
    protocol = _find(platform, "protocol", r"\d+.*")
    if protocol and _version(protocol) < (MIN_PROTOCOL,):
        _too_old("npu.protocol", f"firmware protocol {protocol}", (MIN_PROTOCOL,), "linux-firmware")
    return answer.info.get("name", "")


def _open_failed(text: str) -> Finding:
    if "Permission denied" in text:
        mend = "join the group that owns the node: `sudo usermod -aG render $USER`, then log in"
        return error("npu.permission", f"pyxrt.device(0) failed: {text}", mend)
    if "mmap" in text and "-11" in text:
        mend = "raise the limit of locked memory: `ulimit -l unlimited` or `LimitMEMLOCK=infinity`"
        return error("npu.memlock", f"pyxrt.device(0) failed: {text}", mend)
    return error("npu.open", f"pyxrt.device(0) failed: {text}", f"see `xrt-smi examine`, {_CPU}")


def _too_old(
    code: str, found: str, least: tuple[int, ...], package: str, place: Path | None = None
) -> None:
    what = f"{found} is too old: at least {'.'.join(map(str, least))} is needed"
    where = Where(file=str(place)) if place is not None else None
    raise _Found(error(code, what, f"update {package} and start the machine anew, {_CPU}", where))


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except ValueError:
        return None


def _find(data: Any, key: str, pattern: str) -> str:
    """Return the first value of `key`, at any depth, that looks like a version."""
    for name, value in _items(data):
        if name == key and re.fullmatch(pattern, str(value)):
            return str(value)
    return ""


def _items(data: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        yield from data.items()
    for child in (
        data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    ):
        yield from _items(child)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _number(path: Path) -> int:
    text = _text(path)
    try:
        return int(text, 16)
    except ValueError:
        return -1


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
