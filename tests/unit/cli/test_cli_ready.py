"""The ready line and the log lines."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from onebit.cli.logs import HumanFormatter, JsonFormatter
from onebit.cli.output import show_findings, size, table
from onebit.cli.ready import process_age, ready_line
from onebit.config.logging import LoggingConfig
from onebit.findings import Where, error

FACTS = {"route": "model-generic", "device": "npu", "kernels": "/opt/my kernels",
         "numerics": "int8-npu"}  # fmt: skip
URL = "http://127.0.0.1:8000"


def test_the_human_ready_line() -> None:
    line = ready_line(LoggingConfig(), "m", FACTS, URL, 0.84)
    assert line == (
        "ready: model=m route=model-generic device=npu kernels='/opt/my kernels' "
        "numerics=int8-npu http://127.0.0.1:8000 load=0.8s"
    )


def test_streams_stand_in_the_ready_line() -> None:
    line = ready_line(LoggingConfig(), "m", {**FACTS, "npu_streams": 2}, URL, 1)
    assert " numerics=int8-npu [npu-streams=2] http://" in line


def test_the_ready_line_as_json() -> None:
    config = LoggingConfig(format="json")
    data = json.loads(ready_line(config, "m", {**FACTS, "npu_streams": 2}, URL, 0.8444))
    assert data == {"event": "ready", "model": "m", **FACTS, "npu-streams": 2, "url": URL,
                    "load_seconds": 0.844}  # fmt: skip


def test_the_age_of_this_process() -> None:
    assert 0 < process_age() < 3600


def record(**extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "onebit.x", "levelname": "INFO", "msg": "a %d", "args": (1,), **extra}
    )
    try:
        raise ValueError("why")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


def test_log_lines_for_people() -> None:
    lines = HumanFormatter().format(record()).splitlines()
    assert lines[0].endswith("info onebit.x: a 1")
    assert lines[-1] == "ValueError: why"


def test_log_lines_as_json() -> None:
    data = json.loads(JsonFormatter().format(record(request_id="r1")))
    assert (data["message"], data["level"], data["request_id"]) == ("a 1", "info", "r1")
    assert "ValueError: why" in data["traceback"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (10**13, "10000.0 GB")],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_tables_are_aligned() -> None:
    assert table([("a", "bb"), ("ccc", "d")]) == ["a    bb", "ccc  d"]
    assert table([]) == []


def test_hostile_names_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([error("x.y", "bad", "mend", Where(field="a\x1b[2Jb\n"))])
    out = capsys.readouterr().err
    assert "\x1b" not in out
    assert "\\x1b[2Jb\\n" in out
