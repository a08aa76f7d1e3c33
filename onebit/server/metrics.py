"""Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from onebit.engine import EngineStats
from onebit.server.generation import Run
from onebit.server.state import ServerState

_TTFT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TPOT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)

_GAUGES = {
    "waiting": "Sequences that wait for a place.",
    "running": "Sequences that run.",
    "pages_total": "KV pages in all.",
    "pages_used": "KV pages that running sequences hold.",
    "pages_cached": "KV pages that only the prefix cache holds.",
    "pages_free": "KV pages that are free.",
}
_COUNTERS = {
    "requests": "Sequences accepted.",
    "finished": "Sequences ended.",
    "rejected": "Requests refused because the queue was full.",
    "prompt_tokens": "Prompt tokens, cached ones included.",
    "cached_tokens": "Prompt tokens that came from the prefix cache.",
    "generated_tokens": "Tokens generated.",
    "preemptions": "Sequences put back for want of KV pages.",
    "device_errors": "Steps that failed on the device.",
    "steps": "Steps run.",
    "step_seconds": "Time inside the program.",
    "engine_seconds": "Time around the program.",
}


class Metrics:
    """All metrics of one server."""

    def __init__(self, state: ServerState) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(state))
        self._requests = Counter(
            "onebit_http_requests",
            "Replies by route and status.",
            ("route", "status"),
            registry=self._registry,
        )
        self._errors = Counter(
            "onebit_http_errors", "Error replies by status.", ("status",), registry=self._registry
        )
        self._in_flight = Gauge(
            "onebit_http_in_flight", "Requests being answered.", registry=self._registry
        )
        self._first = Histogram(
            "onebit_time_to_first_token_seconds",
            "From submission to the first token.",
            buckets=_TTFT,
            registry=self._registry,
        )
        self._each = Histogram(
            "onebit_time_per_output_token_seconds",
            "Mean time between the tokens of an answer.",
            buckets=_TPOT,
            registry=self._registry,
        )
        self._ends = Counter(
            "onebit_answers", "Answers by finish reason.", ("reason",), registry=self._registry
        )

    def begin(self) -> None:
        """Count a request that has arrived."""
        self._in_flight.inc()

    def end(self, route: str, status: int) -> None:
        """Count its reply."""
        self._in_flight.dec()
        self._requests.labels(route, str(status)).inc()
        if status >= 400:
            self._errors.labels(str(status)).inc()

    def finished(self, run: Run) -> None:
        """Count the answers of a run."""
        for finish in run.finishes.values():
            timings = finish.timings
            self._ends.labels(finish.reason).inc()
            self._first.observe((timings.queue_ms + timings.prompt_ms) / 1000)
            if timings.predicted_n > 1:
                self._each.observe(timings.predicted_ms / (timings.predicted_n - 1) / 1000)
        if run.cancelled:
            self._ends.labels("cancelled").inc()

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Reads the engine's own counters when asked."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's metrics; none while there is no engine."""
        served = self._state.served
        if served is None:
            return
        stats = served.engine.stats()
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"onebit_engine_{name}", text, value=getattr(stats, name))
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"onebit_engine_{name}", text, value=getattr(stats, name))
        yield _rows(stats)


def _rows(stats: EngineStats) -> Metric:
    rows, seen, buckets = stats.step_rows, 0, []
    bounds = [*(str(float(b)) for b in rows.bounds), "+Inf"]
    for bound, count in zip(bounds, rows.counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    return HistogramMetricFamily(
        "onebit_engine_step_rows", "Rows of a step.", buckets=buckets, sum_value=rows.total
    )
