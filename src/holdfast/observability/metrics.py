"""Prometheus metrics of one gateway process.

Every turn counts several times, so counting only updates dictionaries, and histogram values are
sorted into buckets in batches. The Prometheus library is imported by the first scrape.
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING
from weakref import ref

from holdfast.core.model.session import Usage
from holdfast.ports.meter import Meter
from holdfast.ports.request_context import RequestContext, current_request

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Buckets for short requests."""
TURN_SECONDS = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800)
"""Buckets for model calls, which take seconds to minutes."""
MAX_LABEL_SETS = 200
"""Most combinations of tenant, upstream and model with their own labels; the rest is `other`."""
MAX_TENANT_MODELS = 50
"""The same for one tenant, of models that the configuration does not name."""
UNKNOWN, OTHER = "unknown", "other"
WAITING = "requires_action"
"""The outcome of a run whose turn waits for the client's tools or an approval."""
MAX_UNSORTED = 1024
"""The most histogram values that may wait to be sorted into buckets."""

Labels = tuple[str, ...]


class _Counter:
    """A counter by labels."""

    def __init__(self, name: str, help_text: str, labels: Labels = ()) -> None:
        self._name, self._help_text, self._labels = name, help_text, labels
        self.counts: defaultdict[Labels, int] = defaultdict(int, {} if labels else {(): 0})

    def collect(self) -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(self._name, self._help_text, labels=self._labels)
        for labels, count in self.counts.items():
            family.add_metric(labels, count)
        return family


class _TokenCounter(_Counter):
    """Tokens by their direction and further labels."""

    def __init__(self, name: str, help_text: str, labels: Labels) -> None:
        super().__init__(name, help_text, labels)
        self.unsorted: deque[tuple[Usage, Labels]] = deque()
        """As in a histogram: what was used since the last `sort`."""

    def sort(self) -> None:
        """Count what is waiting."""
        while self.unsorted:
            usage, labels = self.unsorted.popleft()
            self.counts[("input", *labels)] += usage.input_tokens
            self.counts[("cached", *labels)] += usage.cached_tokens
            self.counts[("output", *labels)] += usage.output_tokens

    def collect(self) -> "Metric":
        self.sort()
        return super().collect()


class _Histogram:
    """A histogram by labels."""

    def __init__(
        self, name: str, help_text: str, buckets: tuple[float, ...], labels: Labels = ()
    ) -> None:
        self._name, self._help_text, self._labels, self._buckets = name, help_text, labels, buckets
        self._rows: defaultdict[Labels, tuple[list[int], list[float]]] = defaultdict(self._row)
        if not labels:
            self._rows[()] = self._row()
        self.unsorted: deque[tuple[float, Labels]] = deque()
        """The values since the last `sort`, which code that appends must call in time."""

    def _row(self) -> tuple[list[int], list[float]]:
        return [0] * (len(self._buckets) + 1), [0.0]

    def sort(self) -> None:
        """Sort the waiting values into their buckets."""
        while self.unsorted:
            amount, labels = self.unsorted.popleft()
            counts, total = self._rows[labels]
            counts[bisect_left(self._buckets, amount)] += 1
            total[0] += amount

    def collect(self) -> "Metric":
        from prometheus_client.core import HistogramMetricFamily

        self.sort()
        family = HistogramMetricFamily(self._name, self._help_text, labels=self._labels)
        for labels, (counts, total) in self._rows.items():
            family.add_metric(labels, list(_cumulative(self._buckets, counts)), total[0])
        return family


def _cumulative(buckets: tuple[float, ...], counts: list[int]) -> Iterator[tuple[str, float]]:
    """Yield each bucket's upper bound with the number of values up to it."""
    total = 0
    for edge, count in zip((*buckets, float("inf")), counts, strict=True):
        total += count
        yield "+Inf" if edge == float("inf") else str(float(edge)), total


class _Gauge:
    """A value that is read at each scrape."""

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self._name, self._help_text, self._read = name, help_text, read

    def collect(self) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        return GaugeMetricFamily(self._name, self._help_text, value=self._read())


class _ReadHistogram:
    """A histogram without labels that another part counts, and that is read at each scrape."""

    def __init__(
        self,
        name: str,
        help_text: str,
        buckets: tuple[float, ...],
        read: Callable[[], tuple[list[int], float]],
    ) -> None:
        self._name, self._help_text, self._buckets, self._read = name, help_text, buckets, read

    def collect(self) -> "Metric":
        from prometheus_client.core import HistogramMetricFamily

        counts, total = self._read()
        family = HistogramMetricFamily(self._name, self._help_text, labels=())
        family.add_metric((), list(_cumulative(self._buckets, counts)), total)
        return family


class PrometheusMeter(Meter):
    """The metrics of one gateway, in its own registry."""

    def __init__(self) -> None:
        by_route = ("tenant", "upstream", "model")
        self._accepted = _Counter(
            "holdfast_turns_accepted", "Requests of turns accepted.", ("source", "admission")
        )
        self._ended = _Counter(
            "holdfast_runs_ended", "Runs of this process, by outcome.", ("outcome",)
        )
        self._turns = _Counter("holdfast_turns", "Turns ended.", ("outcome", *by_route))
        self._turn_seconds = _Histogram(
            "holdfast_turn_seconds", "From request to answer.", TURN_SECONDS, by_route
        )
        self._first_token = _Histogram(
            "holdfast_first_token_seconds", "From request to the first upstream event.",
            TURN_SECONDS, by_route,
        )  # fmt: skip
        self._tokens = _TokenCounter(
            "holdfast_tokens", "Tokens of answers and summaries.", ("kind", *by_route)
        )
        self._lane_wait = _Histogram(
            "holdfast_lane_wait_seconds", "Time that queued turns waited.", TURN_SECONDS
        )
        self._healed = _Counter(
            "holdfast_heals", "Provider failures healed within their turn.", ("failure_class",)
        )
        self._compacted = _Counter(
            "holdfast_compactions", "Log ranges replaced by a summary.", ("mode", "reason")
        )
        self._upstream = _Histogram(
            "holdfast_upstream_seconds", "Duration of upstream attempts.", TURN_SECONDS,
            ("upstream", "outcome"),
        )  # fmt: skip
        self._tools = _Histogram(
            "holdfast_tool_seconds", "Duration of tool calls.", TURN_SECONDS, ("tool", "outcome")
        )
        self._lost = _Counter(
            "holdfast_sessions_lost", "Sessions whose history a failover has shortened."
        )
        self._recovered = _Counter(
            "holdfast_sessions_recovered", "Sessions recovered after a lease was lost."
        )
        self._requests = _Histogram(
            "holdfast_request_seconds", "Duration of requests.", SECONDS,
            ("method", "route", "status"),
        )  # fmt: skip
        self._add_channel_metrics()
        self._unsorted = (
            self._turn_seconds, self._first_token, self._lane_wait, self._upstream,
            self._requests, self._tools, self._inbox_lag, self._tokens,
        )  # fmt: skip
        # Keyed weakly: a turn that ends without being counted is removed with its request.
        self._queued: dict[ref[RequestContext], float] = {}
        self._running: set[ref[RequestContext]] = set()
        self.known_models: frozenset[str] = frozenset()
        """Models that the configuration names: they have labels whatever clients send."""
        self._label_sets: set[Labels] = set()
        self._tenant_models: Counter[str] = Counter()
        """How many label sets each tenant has with other models."""
        self._tool_names: set[str] = set()
        self._read: list[_Gauge | _ReadHistogram] = [*self._queue_gauges()]

    def _add_channel_metrics(self) -> None:
        self._outbox = (0, 0.0)
        self._received = _Counter(
            "holdfast_channel_messages", "Messages of channels, by what became of them.",
            ("channel", "outcome"),
        )  # fmt: skip
        self._sends = _Counter(
            "holdfast_channel_sends", "Attempts to send messages of the outbox, by outcome.",
            ("channel", "outcome"),
        )  # fmt: skip
        self._inbox_lag = _Histogram(
            "holdfast_inbox_lag_seconds", "From a person's sending to our commit.", TURN_SECONDS,
            ("channel",),
        )  # fmt: skip

    def _queue_gauges(self) -> list[_Gauge]:
        return [
            _Gauge(
                "holdfast_outbox_messages", "Messages of channels that wait to be sent.",
                lambda: self._outbox[0],
            ),
            _Gauge(
                "holdfast_outbox_oldest_seconds", "Age of the oldest message in the outbox.",
                lambda: self._outbox[1],
            ),
            _Gauge(
                "holdfast_turns_queued", "Turns of this process that wait for their lane.",
                lambda: len(self._queued),
            ),
            _Gauge(
                "holdfast_oldest_queued_seconds", "Age of the longest waiting turn.",
                self._oldest_queued,
            ),
            _Gauge(
                "holdfast_turns_in_flight", "Turns of this process that run.",
                lambda: len(self._running),
            ),
        ]  # fmt: skip

    def shutdown(self) -> None:
        """Do nothing: only a meter that exports has something to release."""

    def add_gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a value that is read at each scrape."""
        self._read.append(_Gauge(name, help_text, read))

    def add_histogram(
        self,
        name: str,
        help_text: str,
        buckets: tuple[float, ...],
        read: Callable[[], tuple[list[int], float]],
    ) -> None:
        """Add a histogram whose counts by bucket and sum are read at each scrape."""
        self._read.append(_ReadHistogram(name, help_text, buckets, read))

    def _oldest_queued(self) -> float:
        return time.monotonic() - min(self._queued.values()) if self._queued else 0.0

    def turn_accepted(self, source: str, admission: str, *, is_new: bool = True) -> None:
        """Count an accepted turn, or an earlier one that continues."""
        is_continued = not is_new and admission != "repeated"
        self._accepted.counts[source, "continued" if is_continued else admission] += 1
        context = current_request.get()
        if context is None:
            return
        if admission == "queued":
            self._queued[ref(context, self._forget_queued)] = time.monotonic()
        elif admission == "started":
            self._running.add(ref(context, self._running.discard))

    def _forget_queued(self, context: "ref[RequestContext]") -> None:
        self._queued.pop(context, None)

    def run_ended(self, outcome: str) -> None:
        """Count a run, and the turn of the current request if it has ended."""
        self._ended.counts[(outcome,)] += 1
        context = current_request.get()
        if context is None:
            return
        self._running.discard(ref(context))
        if self._queued:
            self._queued.pop(ref(context), None)
        labels = (context.tenant or UNKNOWN, context.upstream or UNKNOWN, context.model or UNKNOWN)
        if labels not in self._label_sets:
            labels = self._limited_labels(labels)
        if outcome != WAITING:
            self._turns.counts[(outcome, *labels)] += 1
        self._turn_seconds.unsorted.append((time.monotonic() - context.started_at, labels))
        if context.first_token_at is not None:
            seconds = context.first_token_at - context.started_at
            self._first_token.unsorted.append((seconds, labels))
        usage, context.usage = context.usage, None
        if usage is not None:
            self._tokens.unsorted.append((usage, labels))

    def tokens_used(self, upstream: str, model: str, usage: Usage) -> None:
        """Count the tokens of a compaction."""
        context = current_request.get()
        tenant = context.tenant if context is not None else None
        labels = self._limited_labels((tenant or UNKNOWN, upstream, model))
        self._tokens.unsorted.append((usage, labels))

    def turn_left(self, outcome: str, *, has_run: bool) -> None:
        """Count a run that lost its lane, and its turn if that was cancelled."""
        if has_run:
            self._ended.counts[(outcome,)] += 1
        context = current_request.get()
        if context is None:
            return
        self._running.discard(ref(context))
        self._queued.pop(ref(context), None)
        if has_run and outcome == "cancelled":
            labels = self._limited_labels(
                (context.tenant or UNKNOWN, context.upstream or UNKNOWN, context.model or UNKNOWN)
            )
            self._turns.counts[(outcome, *labels)] += 1

    def _limited_labels(self, labels: tuple[str, str, str]) -> tuple[str, str, str]:
        """Return labels for tenant, upstream and model; `other` if there are too many.

        Clients choose the model's name, so it becomes `other` first, and only in the labels of its
        own tenant: alerts by upstream and on the metrics of other tenants keep working.
        """
        if labels in self._label_sets:
            return labels
        tenant, upstream, model = labels
        if model not in self.known_models:
            is_full = len(self._label_sets) >= MAX_LABEL_SETS
            if is_full or self._tenant_models[tenant] >= MAX_TENANT_MODELS:
                labels = (tenant, upstream, OTHER)
            else:
                self._tenant_models[tenant] += 1
        if labels not in self._label_sets and len(self._label_sets) >= 2 * MAX_LABEL_SETS:
            return OTHER, OTHER, OTHER
        self._label_sets.add(labels)
        return labels

    def lane_waited(self, seconds: float) -> None:
        """Count a wait for a lane."""
        self._lane_wait.unsorted.append((seconds, ()))
        context = current_request.get()
        if context is not None:
            self._queued.pop(ref(context), None)
            self._running.add(ref(context, self._running.discard))

    def healed(
        self,
        failure_class: str,
        action: str,  # noqa: ARG002 - for traces
        seconds: float,  # noqa: ARG002 - for traces
    ) -> None:
        """Count a heal."""
        self._healed.counts[(failure_class,)] += 1

    def compacted(self, mode: str, reason: str) -> None:
        """Count a compaction."""
        self._compacted.counts[mode, reason] += 1

    def upstream_answered(
        self,
        name: str,
        outcome: str,
        seconds: float,
        projection_seconds: float = 0.0,  # noqa: ARG002 - for traces
    ) -> None:
        """Count an upstream attempt."""
        self._upstream.unsorted.append((seconds, (name, outcome)))
        if len(self._upstream.unsorted) > MAX_UNSORTED:
            self._sort()

    def outbox_waits(self, messages: int, seconds: float) -> None:
        """Set the depth of the outbox."""
        self._outbox = (messages, seconds)

    def channel_received(self, channel: str, outcome: str, lag_seconds: float | None) -> None:
        """Count a message of a channel."""
        self._received.counts[channel, outcome] += 1
        if lag_seconds is not None:
            self._inbox_lag.unsorted.append((max(lag_seconds, 0.0), (channel,)))
            if len(self._inbox_lag.unsorted) > MAX_UNSORTED:
                self._sort()

    def channel_sent(self, channel: str, outcome: str) -> None:
        """Count an attempt to send."""
        self._sends.counts[channel, outcome] += 1

    def tool_called(
        self,
        tool: str,
        call_id: str,  # noqa: ARG002 - for traces
        outcome: str,
        seconds: float,
    ) -> None:
        """Count a tool call."""
        if tool not in self._tool_names:
            if len(self._tool_names) >= MAX_LABEL_SETS:
                tool = OTHER
            else:
                self._tool_names.add(tool)
        self._tools.unsorted.append((seconds, (tool, outcome)))
        if len(self._tools.unsorted) > MAX_UNSORTED:
            self._sort()

    def history_lost(self, sessions: int) -> None:
        """Count sessions whose history the database lacks."""
        self._lost.counts[()] += sessions

    def recovered(self, sessions: int) -> None:
        """Count recovered sessions."""
        self._recovered.counts[()] += sessions

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.unsorted.append((seconds, (method, route, str(status))))
        if len(self._requests.unsorted) > MAX_UNSORTED:
            self._sort()

    def _sort(self) -> None:
        for metric in self._unsorted:
            metric.sort()

    def collect(self) -> "Iterable[Metric]":
        """Return all metrics for the Prometheus library."""
        metrics: tuple[_Counter | _Histogram | _Gauge | _ReadHistogram, ...] = (
            self._accepted, self._ended, self._turns, self._turn_seconds, self._first_token,
            self._tokens, self._lane_wait, self._healed, self._compacted, self._upstream,
            self._tools, self._recovered, self._lost, self._requests,
            self._received, self._sends, self._inbox_lag, *self._read,
        )  # fmt: skip
        return [metric.collect() for metric in metrics]

    def render(self) -> bytes:
        """Return all metrics in the exposition format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
