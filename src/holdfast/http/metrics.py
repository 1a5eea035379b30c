"""The counts as Prometheus reads them: what an operator would want to be woken up by.

Counting happens several times in every turn, so it is an addition in a dictionary; the library
that writes them down is loaded when somebody reads them.
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


class _Counts:
    """How often, by label."""

    def __init__(self, name: str, told: str, labels: Labels = ()) -> None:
        self._name, self._told, self._labels = name, told, labels
        self.counts: defaultdict[Labels, int] = defaultdict(int, {} if labels else {(): 0})

    def collect(self) -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(self._name, self._told, labels=self._labels)
        for labels, count in self.counts.items():
            family.add_metric(labels, count)
        return family


class _Spread:
    """How much, by label, in buckets."""

    def __init__(
        self, name: str, told: str, buckets: tuple[float, ...], labels: Labels = ()
    ) -> None:
        self._name, self._told, self._labels, self._buckets = name, told, labels, buckets
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

        family = HistogramMetricFamily(self._name, self._told, labels=self._labels)
        for labels, (counts, total) in self._rows.items():
            family.add_metric(labels, list(_summed(self._buckets, counts)), total[0])
        return family


def _summed(buckets: tuple[float, ...], counts: list[int]) -> Iterator[tuple[str, float]]:
    """Yield each bucket's edge with how many were at most that."""
    total = 0
    for edge, count in zip((*buckets, float("inf")), counts, strict=True):
        total += count
        yield "+Inf" if edge == float("inf") else str(float(edge)), total


class PrometheusMeter:
    """A registry of its own, so that several gateways in one process do not mix."""

    def __init__(self) -> None:
        self._accepted = _Counts(
            "holdfast_turns_accepted", "Turns taken in.", ("source", "admission")
        )
        self._ended = _Counts(
            "holdfast_runs_ended", "Runs of this process, by how they ended.", ("outcome",)
        )
        self._waited = _Spread(
            "holdfast_lane_wait_seconds", "How long queued turns waited for their lane.", SECONDS
        )
        self._healed = _Counts(
            "holdfast_heals", "Provider failures mended within their turn.", ("failure_class",)
        )
        self._compacted = _Counts(
            "holdfast_compactions", "Parts of logs that are shown as less.", ("mode", "reason")
        )
        self._upstream = _Spread(
            "holdfast_upstream_seconds", "How long providers took.", SECONDS,
            ("upstream", "outcome"),
        )  # fmt: skip
        self._commit = _Spread("holdfast_commit_seconds", "How long transactions took.", SECONDS)
        self._batch = _Spread(
            "holdfast_commit_commands", "Commands that shared a transaction.", COMMANDS
        )
        self._recovered = _Counts(
            "holdfast_sessions_recovered", "Sessions settled after a worker was lost."
        )
        self._requests = _Spread(
            "holdfast_request_seconds", "How long requests took.", SECONDS,
            ("method", "route", "status"),
        )  # fmt: skip

    def turn_accepted(self, source: str, admission: str) -> None:
        """Count a turn."""
        self._accepted.counts[source, admission] += 1

    def run_ended(self, outcome: str) -> None:
        """Count a run."""
        self._ended.counts[(outcome,)] += 1

    def lane_waited(self, seconds: float) -> None:
        """Count a wait."""
        self._waited.add(seconds)

    def healed(self, failure_class: str) -> None:
        """Count a heal."""
        self._healed.counts[(failure_class,)] += 1

    def compacted(self, mode: str, reason: str) -> None:
        """Count a compaction."""
        self._compacted.counts[mode, reason] += 1

    def upstream_answered(self, name: str, outcome: str, seconds: float) -> None:
        """Count a call."""
        self._upstream.add(seconds, (name, outcome))

    def committed(self, commands: int, seconds: float) -> None:
        """Count a transaction."""
        self._commit.add(seconds)
        self._batch.add(commands)

    def recovered(self, sessions: int) -> None:
        """Count what was settled."""
        self._recovered.counts[()] += sessions

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.add(seconds, (method, route, str(status)))

    def collect(self) -> "Iterable[Metric]":
        """Return everything, as Prometheus's library takes it."""
        counted = (
            self._accepted, self._ended, self._waited, self._healed, self._compacted,
            self._upstream, self._commit, self._batch, self._recovered, self._requests,
        )  # fmt: skip
        return [one.collect() for one in counted]

    def render(self) -> bytes:
        """Return everything, as it is scraped."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
