"""The counts as Prometheus reads them: what an operator would want to be woken up by."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
COMMANDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class PrometheusMeter:
    """A registry of its own, so that several gateways in one process do not mix."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._accepted = Counter(
            "holdfast_turns_accepted", "Turns taken in.", ["source", "admission"],
            registry=registry,
        )  # fmt: skip
        self._ended = Counter(
            "holdfast_runs_ended", "Runs of this process, by how they ended.", ["outcome"],
            registry=registry,
        )  # fmt: skip
        self._waited = Histogram(
            "holdfast_lane_wait_seconds", "How long queued turns waited for their lane.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._healed = Counter(
            "holdfast_heals", "Provider failures mended within their turn.", ["failure_class"],
            registry=registry,
        )  # fmt: skip
        self._upstream = Histogram(
            "holdfast_upstream_seconds", "How long providers took.", ["upstream", "outcome"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._commit = Histogram(
            "holdfast_commit_seconds", "How long transactions took.", buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self._batch = Histogram(
            "holdfast_commit_commands", "Commands that shared a transaction.", buckets=COMMANDS,
            registry=registry,
        )  # fmt: skip
        self._recovered = Counter(
            "holdfast_sessions_recovered", "Sessions settled after a worker was lost.",
            registry=registry,
        )  # fmt: skip
        self._requests = Histogram(
            "holdfast_request_seconds", "How long requests took.", ["method", "route", "status"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip

    def turn_accepted(self, source: str, admission: str) -> None:
        """Count a turn."""
        self._accepted.labels(source, admission).inc()

    def run_ended(self, outcome: str) -> None:
        """Count a run."""
        self._ended.labels(outcome).inc()

    def lane_waited(self, seconds: float) -> None:
        """Count a wait."""
        self._waited.observe(seconds)

    def healed(self, failure_class: str) -> None:
        """Count a heal."""
        self._healed.labels(failure_class).inc()

    def upstream_answered(self, name: str, outcome: str, seconds: float) -> None:
        """Count a call."""
        self._upstream.labels(name, outcome).observe(seconds)

    def committed(self, commands: int, seconds: float) -> None:
        """Count a transaction."""
        self._commit.observe(seconds)
        self._batch.observe(commands)

    def recovered(self, sessions: int) -> None:
        """Count what was settled."""
        self._recovered.inc(sessions)

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def render(self) -> bytes:
        """Return everything, as it is scraped."""
        return generate_latest(self._registry)
