"""The ready line: one structured line that says what serves, and how."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from onebit.config.logging import LoggingConfig

SHOWN = ("route", "device", "kernels", "numerics")


def ready_line(
    config: LoggingConfig, name: str, facts: Mapping[str, object], url: str, seconds: float
) -> str:
    """Return the ready line, human or JSON.

    Args:
        config: Says which form.
        name: Name under which the model is served.
        facts: A session's facts.
        url: Where it is served.
        seconds: From the start of the command until now.
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
