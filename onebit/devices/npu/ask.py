"""Asks pyxrt about the machine, in a process of its own: the binding may hang, abort or crash.

`python -m onebit.devices.npu.ask` prints one JSON object, the fields of `Answer`.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

TIMEOUT = 30.0
"""Seconds that importing XRT and opening the device may take."""
_INFO = ("name", "bdf", "platform", "host")


class Answer(BaseModel):
    """What pyxrt says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    import_error: str = ""
    """Why pyxrt cannot be imported."""
    died: str = ""
    """How the asking process ended, if it gave no answer."""
    count: int = 0
    """Devices that XRT sees."""
    open_error: str = ""
    """XRT's text when device 0 could not be opened."""
    info: dict[str, str] = {}
    """`device.get_info` of name, bdf, platform and host, where they answer."""


def ask_pyxrt(timeout: float = TIMEOUT) -> Answer:
    """Return what pyxrt says about this machine; never raises for what XRT does."""
    argv = [sys.executable, "-m", "onebit.devices.npu.ask"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return Answer(died=f"it did not answer within {timeout:g} s")
    try:
        return Answer.model_validate_json(done.stdout.strip().rpartition("\n")[2])
    except ValidationError:
        tail = done.stderr.strip().rpartition("\n")[2][:300]
        return Answer(died=f"it ended with status {done.returncode}: {tail}")


def _ask() -> dict[str, Any]:
    try:
        pyxrt = importlib.import_module("pyxrt")
    except ImportError as problem:
        return {"import_error": str(problem)}
    try:
        count = pyxrt.enumerate_devices()
    except RuntimeError as problem:
        return {"open_error": str(problem).strip()}
    if not count:
        return {}
    try:
        device = pyxrt.device(0)
    except RuntimeError as problem:
        return {"count": count, "open_error": str(problem).strip()}
    return {"count": count, "info": _info(pyxrt, device)}


def _info(pyxrt: Any, device: Any) -> dict[str, str]:
    found = {}
    for key in _INFO:
        try:
            found[key] = str(device.get_info(getattr(pyxrt.xrt_info_device, key)))
        except (AttributeError, RuntimeError):
            continue  # this version has no such key
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_ask()) + "\n")
