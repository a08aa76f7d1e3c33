"""Counters of the engine, as a snapshot for metrics and /health."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

ROW_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper bounds of the buckets of the rows-per-step histogram; one more bucket has no bound."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts per bucket (not cumulative), the last without bound, and the sum of all values."""

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    total: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Counters run from the engine's start; the rest is of the moment."""

    waiting: int
    """Sequences that wait: never run yet, or preempted."""
    running: int
    pages_total: int
    pages_used: int
    """Pages that running sequences hold."""
    pages_cached: int
    """Pages that only the prefix cache holds; free for the taking."""
    pages_free: int
    requests: int
    """Sequences ever accepted."""
    finished: int
    rejected: int
    """Requests refused because the queue was full."""
    prompt_tokens: int
    """Prompt tokens of sequences that have run, cached ones included."""
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    generated_tokens: int
    preemptions: int
    device_errors: int
    steps: int
    step_rows: Histogram
    step_seconds: float
    """Time spent inside the program, summed over the steps."""
    engine_seconds: float
    """Time spent around the program: schedule, settle and collect."""
    accepting: bool
    """Whether `submit` would take a request, the queue aside."""


class Counters:
    """The running counts behind `EngineStats`; written by the engine thread alone."""

    def __init__(self) -> None:
        self.finished = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.preemptions = 0
        self.device_errors = 0
        self.steps = 0
        self.step_seconds = 0.0
        self.engine_seconds = 0.0
        self._rows = [0] * (len(ROW_BOUNDS) + 1)
        self._row_sum = 0

    def count_rows(self, rows: int) -> None:
        """Count one step of `rows` rows."""
        self.steps += 1
        self._rows[bisect_left(ROW_BOUNDS, rows)] += 1
        self._row_sum += rows

    def rows(self) -> Histogram:
        """Return the histogram of rows per step."""
        return Histogram(ROW_BOUNDS, tuple(self._rows), self._row_sum)
