"""Prometheus metrics.

Every turn updates several metrics, so an update is an addition in a dictionary. The Prometheus
library is loaded only when `/metrics` is read.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
COMMANDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Labels = tuple[str, ...]


class _Counter:
    """A counter with labels."""

    def __init__(self, name: str, help_text: str, labels: Labels = ()) -> None:
        self._name, self._help, self._labels = name, help_text, labels
        self.counts: defaultdict[Labels, int] = defaultdict(int, {} if labels else {(): 0})

    def collect(self) -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for labels, count in self.counts.items():
            family.add_metric(labels, count)
        return family


class _Histogram:
    """A histogram with labels."""

    def __init__(
        self, name: str, help_text: str, buckets: tuple[float, ...], labels: Labels = ()
    ) -> None:
        self._name, self._help, self._labels, self._buckets = name, help_text, labels, buckets
        self._rows: defaultdict[Labels, tuple[list[int], list[float]]] = defaultdict(self._row)
        if not labels:
            self._rows[()] = self._row()

    def _row(self) -> tuple[list[int], list[float]]:
        return [0] * (len(self._buckets) + 1), [0.0]

    def add(self, amount: float, labels: Labels = ()) -> None:
        counts, total = self._rows[labels]
        counts[bisect_left(self._buckets, amount)] += 1
        total[0] += amount

    def collect(self) -> "Metric":
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for labels, (counts, total) in self._rows.items():
            family.add_metric(labels, list(_cumulative(self._buckets, counts)), total[0])
        return family


def _cumulative(buckets: tuple[float, ...], counts: list[int]) -> Iterator[tuple[str, float]]:
    """Yield each bucket's upper bound with its cumulative count."""
    total = 0
    for bound, count in zip((*buckets, float("inf")), counts, strict=True):
        total += count
        yield "+Inf" if bound == float("inf") else str(float(bound)), total


class PrometheusMeter:
    """The metrics of one gateway; several gateways in one process do not share them."""

    def __init__(self) -> None:
        self._accepted = _Counter(
            "holdfast_turns_accepted", "Accepted turns.", ("source", "admission")
        )
        self._ended = _Counter(
            "holdfast_runs_ended", "Runs of this process, by outcome.", ("outcome",)
        )
        self._waited = _Histogram(
            "holdfast_lane_wait_seconds", "Time that queued turns waited for their lane.", SECONDS
        )
        self._healed = _Counter(
            "holdfast_heals",
            "Provider failures that were healed within their turn.",
            ("failure_class",),
        )
        self._compacted = _Counter(
            "holdfast_compactions", "Log ranges replaced by a summary.", ("mode", "reason")
        )
        self._upstream = _Histogram(
            "holdfast_upstream_seconds", "Duration of provider calls.", SECONDS,
            ("upstream", "outcome"),
        )  # fmt: skip
        self._commit = _Histogram(
            "holdfast_commit_seconds", "Duration of store transactions.", SECONDS
        )
        self._batch = _Histogram(
            "holdfast_commit_commands", "Commands per store transaction.", COMMANDS
        )
        self._recovered = _Counter(
            "holdfast_sessions_recovered", "Sessions recovered after a worker was lost."
        )
        self._requests = _Histogram(
            "holdfast_request_seconds", "Duration of HTTP requests.", SECONDS,
            ("method", "route", "status"),
        )  # fmt: skip

    def turn_accepted(self, source: str, admission: str) -> None:
        """Count an accepted turn."""
        self._accepted.counts[source, admission] += 1

    def run_ended(self, outcome: str) -> None:
        """Count an ended run."""
        self._ended.counts[(outcome,)] += 1

    def lane_waited(self, seconds: float) -> None:
        """Record a wait for a lane."""
        self._waited.add(seconds)

    def healed(self, failure_class: str) -> None:
        """Count a heal."""
        self._healed.counts[(failure_class,)] += 1

    def compacted(self, mode: str, reason: str) -> None:
        """Count a compaction."""
        self._compacted.counts[mode, reason] += 1

    def upstream_answered(self, name: str, outcome: str, seconds: float) -> None:
        """Record a provider call."""
        self._upstream.add(seconds, (name, outcome))

    def committed(self, commands: int, seconds: float) -> None:
        """Record a store transaction."""
        self._commit.add(seconds)
        self._batch.add(commands)

    def recovered(self, sessions: int) -> None:
        """Count recovered sessions."""
        self._recovered.counts[()] += sessions

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record an answered request."""
        self._requests.add(seconds, (method, route, str(status)))

    def collect(self) -> "Iterable[Metric]":
        """Return all metrics as the Prometheus library expects them."""
        metrics = (
            self._accepted, self._ended, self._waited, self._healed, self._compacted,
            self._upstream, self._commit, self._batch, self._recovered, self._requests,
        )  # fmt: skip
        return [metric.collect() for metric in metrics]

    def render(self) -> bytes:
        """Return all metrics in the text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
