"""A machine with a fake NPU: sysfs and device node below a root, a scripted pyxrt, and its log."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FAKE = Path(__file__).parent / "fake_pyxrt"


@dataclass
class NpuMachine:
    """One fake machine; `environ` makes any process see it."""

    base: Path
    script: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "tmp").mkdir(parents=True)
        self.plug()
        self.set(log=str(self.log_file), lock=str(self.base / "hardware"))

    @property
    def root(self) -> Path:
        return self.base / "root"

    @property
    def log_file(self) -> Path:
        return self.base / "log"

    @property
    def pci(self) -> Path:
        return self.root / "sys/bus/pci/devices/0000:c5:00.1"

    @property
    def node(self) -> Path:
        return self.root / "dev/accel/accel0"

    @property
    def environ(self) -> dict[str, str]:
        return {
            "FAKE_PYXRT": str(self.base / "fake.json"),
            "PYTHONPATH": f"{FAKE}:{FAKE.parents[2]}",
            "ONEBIT_DEVICE_ROOT": str(self.root),
        }

    def plug(
        self, device: str = "0x17f0", revision: str = "0x11", driver: str | None = "amdxdna"
    ) -> None:
        """Put the PCI device and its node there."""
        self.pci.mkdir(parents=True, exist_ok=True)
        facts = {"vendor": "0x1022", "device": device, "revision": revision}
        for name, text in {**facts, "fw_version": "1.1.2.65"}.items():
            (self.pci / name).write_text(text + "\n")
        if driver is not None:
            bound = self.root / "sys/bus/pci/drivers" / driver
            bound.mkdir(parents=True)
            (self.pci / "driver").symlink_to(bound)
        self.node.parent.mkdir(parents=True, exist_ok=True)
        self.node.touch()

    def set(self, **facts: Any) -> None:
        """Change the script; a running fake sees it at its next launch."""
        self.script.update(facts)
        path = self.base / "fake.json"
        (self.base / "fake.new").write_text(json.dumps(self.script))
        (self.base / "fake.new").replace(path)

    def fault(self, kind: str, ahead: int = 0) -> None:
        """Script a fault for the launch after the next `ahead` ones."""
        number = self.count("launch") + ahead
        self.set(faults={**self.script.get("faults", {}), str(number): kind})

    def events(self) -> list[dict[str, Any]]:
        if not self.log_file.exists():
            return []
        return [json.loads(line) for line in self.log_file.read_text().splitlines()]

    def count(self, what: str) -> int:
        return Counter(event["what"] for event in self.events())[what]

    def assert_no_leak(self) -> None:
        """Every process that ended cleanly had freed all contexts and buffers before."""
        ends = [event for event in self.events() if event["what"] == "exit"]
        assert ends
        assert [(e["contexts"], e["bos"]) for e in ends] == [(0, 0)] * len(ends)
