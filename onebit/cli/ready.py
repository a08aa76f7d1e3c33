"""The ready line: one structured line that says what serves, and how."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from onebit.config.logging import LoggingConfig

SHOWN = ("route", "device", "kernels", "numerics")


def process_age() -> float:
    """Return the seconds since this process was started, interpreter and imports included."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def ready_line(
    config: LoggingConfig, name: str, facts: Mapping[str, object], url: str, seconds: float
) -> str:
    """Return the ready line, human or JSON.

    Args:
        config: Says which form.
        name: Name under which the model is served.
        facts: A session's facts.
        url: Where it is served.
        seconds: From the start of the process until now.
    """
    fields: dict[str, object] = {"model": name, **{key: facts.get(key, "-") for key in SHOWN}}
    if "npu_streams" in facts:
        fields["npu-streams"] = facts["npu_streams"]
    if config.format == "json":
        return json.dumps(
            {"event": "ready", **fields, "url": url, "load_seconds": round(seconds, 3)},
            ensure_ascii=False,
        )
    shown = " ".join(f"{key}={shlex.quote(str(value))}" for key, value in fields.items())
    shown = shown.replace("npu-streams=", "[npu-streams=")
    if "npu-streams" in fields:
        shown += "]"
    return f"ready: {shown} {url} load={seconds:.1f}s"
