"""The pace keeps the time between tokens bounded on devices of any speed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onebit.engine.pace import Pace

CEILING = 256


def read_prompt(
    pace: Pace, seconds: Callable[[int], float], rows_to_read: int = 4000
) -> tuple[list[int], list[float]]:
    """Read a prompt beside one generating sequence; returns rows and times of the steps."""
    rows, times = [], []
    while sum(rows) < rows_to_read:
        now = min(pace.rows(1, 1), rows_to_read - sum(rows))
        took = seconds(now)
        pace.record(1, now, took)
        rows.append(now)
        times.append(took)
    return rows, times


DEVICES = {
    "dear rows": lambda rows: 0.020 + 0.010 * rows,
    "cheap rows": lambda rows: 0.020 + 0.0001 * rows,
    "tiles of 16": lambda rows: 0.020 + 0.015 * -(-rows // 16),
    "dear when few": lambda rows: 0.020 + (0.06 if 0 < rows < 8 else 0.002 * rows),
    "row as dear as a step": lambda rows: 0.020 + 0.020 * rows,
}


@pytest.mark.parametrize("name", DEVICES)
def test_no_step_takes_more_than_five_plain_ones(name: str) -> None:
    pace = Pace(CEILING, 2.0)
    for _ in range(5):
        assert pace.rows(1, 1) >= 0
        pace.record(1, 0, 0.020)
    rows, times = read_prompt(pace, DEVICES[name])
    late = times[2:]
    assert max(late) <= 5 * 0.020
    assert max(rows) <= CEILING


def test_cheap_rows_reach_the_ceiling() -> None:
    pace = Pace(CEILING, 2.0)
    pace.record(1, 0, 0.020)
    rows, _ = read_prompt(pace, DEVICES["cheap rows"], 8000)
    assert max(rows) == CEILING
    assert len(rows) < 60


def test_dear_rows_use_the_time_they_may() -> None:
    pace = Pace(CEILING, 2.0)
    pace.record(1, 0, 0.020)
    rows, times = read_prompt(pace, DEVICES["dear rows"])
    assert max(rows[2:]) == 4
    assert np.median(times) == pytest.approx(0.060)


def test_noise_and_slower_rows_further_on_stay_bounded() -> None:
    random = np.random.default_rng(0)
    pace = Pace(CEILING, 2.0)
    pace.record(1, 0, 0.020)
    read = 0

    def seconds(rows: int) -> float:
        nonlocal read
        read += rows
        return (0.020 + 0.001 * (1 + read / 2000) * rows) * random.uniform(1.0, 1.3)

    _, times = read_prompt(pace, seconds)
    assert max(times[2:]) <= 5 * 0.020


def test_with_nothing_to_stall_the_whole_chunk_is_read() -> None:
    assert Pace(CEILING, 2.0).rows(0, 1) == CEILING


def test_a_step_without_prompt_rows_is_measured_first_and_now_and_then() -> None:
    pace = Pace(CEILING, 2.0)
    assert pace.rows(3, 1) == 0
    pace.record(3, 0, 0.02)
    rows, _ = read_prompt(pace, DEVICES["dear rows"])
    plain = [index for index, count in enumerate(rows) if count == 0]
    assert plain
    assert np.diff(plain).min() >= 64


def test_each_number_of_generating_sequences_has_a_time_of_its_own() -> None:
    pace = Pace(CEILING, 2.0)
    pace.record(1, 0, 0.010)
    pace.record(1, 1, 0.012)
    assert pace.rows(8, 1) == 0  # not measured yet
    pace.record(8, 0, 0.100)
    assert pace.rows(1, 1) == 10
    pace.record(8, 10, 0.120)
    assert pace.rows(8, 1) == 20  # bounded by the growth of the chunk, not by the time


@pytest.mark.parametrize(
    ("generating", "reading", "stall"), [(1, 2, 3.0), (1, 7, 3.5), (4, 4, 1.5)]
)
def test_the_more_wait_the_more_is_read(generating: int, reading: int, stall: float) -> None:
    pace = Pace(CEILING, 1.5)
    pace.record(generating, 0, 0.020)
    for _ in range(20):
        rows = pace.rows(generating, reading)
        pace.record(generating, rows, 0.020 + 0.001 * rows)
    assert rows == pytest.approx(stall * 20, abs=1)
