"""What is counted for operators, without saying where the counts go."""

from typing import Protocol


class Meter(Protocol):
    """Takes note of what happened; never fails, never waits."""

    def turn_accepted(self, source: str, admission: str) -> None:
        """A turn was started, queued or recognised as a repeat."""
        ...

    def run_ended(self, outcome: str) -> None:
        """A run of this process ended."""
        ...

    def lane_waited(self, seconds: float) -> None:
        """A turn waited so long for its lane."""
        ...

    def healed(self, failure_class: str) -> None:
        """A failure of a provider was mended within its turn."""
        ...

    def compacted(self, mode: str, reason: str) -> None:
        """A part of a log is shown as less from now on."""
        ...

    def upstream_answered(self, name: str, outcome: str, seconds: float) -> None:
        """A provider answered, or failed, after so long."""
        ...

    def committed(self, commands: int, seconds: float) -> None:
        """A transaction with so many commands took so long."""
        ...

    def recovered(self, sessions: int) -> None:
        """So many sessions were settled after a worker was lost."""
        ...

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        ...


class NoMeter:
    """Takes note of nothing."""

    def turn_accepted(self, source: str, admission: str) -> None:
        """Nothing."""

    def run_ended(self, outcome: str) -> None:
        """Nothing."""

    def lane_waited(self, seconds: float) -> None:
        """Nothing."""

    def healed(self, failure_class: str) -> None:
        """Nothing."""

    def compacted(self, mode: str, reason: str) -> None:
        """Nothing."""

    def upstream_answered(self, name: str, outcome: str, seconds: float) -> None:
        """Nothing."""

    def committed(self, commands: int, seconds: float) -> None:
        """Nothing."""

    def recovered(self, sessions: int) -> None:
        """Nothing."""

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Nothing."""
