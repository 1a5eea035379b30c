"""The port to metrics."""

from holdfast.core.model.session import Usage


class Meter:
    """Counts events; never fails and never blocks. This one counts nothing: subclasses do."""

    def turn_accepted(self, source: str, admission: str, *, is_new: bool = True) -> None:
        """Count a request that started or queued a turn, or was recognized as a repeat.

        Without `is_new`, it started or queued an earlier turn again: it has the outputs or the
        approval that the turn waited for, or repeats its request after an interruption.
        """

    def run_ended(self, outcome: str) -> None:
        """Count a run of this process that ended.

        `rejected`: it failed because of its request. `requires_action`: its turn continues, and
        waits for the client's tools or an approval.
        """

    def turn_left(self, outcome: str, *, has_run: bool) -> None:
        """Count a turn that this process neither ended nor works on any more.

        `cancelled`: a reset or another message ended it. `merged`: another turn answers it.
        `failed`: it waited too long. `interrupted`: anything else. `has_run` says whether it had
        its lane.
        """

    def lane_waited(self, seconds: float) -> None:
        """Record how long a turn waited for its lane."""

    def healed(self, failure_class: str, action: str, seconds: float) -> None:
        """Count a healed failure of a provider, and the time that the heal and its pause took."""

    def compacted(self, mode: str, reason: str) -> None:
        """Count a compaction: a log range replaced by a summary, or outputs truncated."""

    def tokens_used(self, upstream: str, model: str, usage: Usage) -> None:
        """Count the tokens of a model call beside the turn's own: that of a compaction."""

    def upstream_answered(
        self, name: str, outcome: str, seconds: float, projection_seconds: float = 0.0
    ) -> None:
        """Record how long a provider took to answer or fail, and its request took to build."""

    def tool_called(self, tool: str, call_id: str, outcome: str, seconds: float) -> None:
        """Record how long a tool of the gateway took to answer or fail."""

    def outbox_waits(self, messages: int, seconds: float) -> None:
        """Record how many messages of channels wait to be sent, and the age of the oldest."""

    def channel_received(self, channel: str, outcome: str, lag_seconds: float | None) -> None:
        """Count a message of a channel; the lag is from when the person sent it to our commit."""

    def channel_sent(self, channel: str, outcome: str) -> None:
        """Count an attempt to send a message of the outbox."""

    def history_lost(self, sessions: int) -> None:
        """Count sessions whose history the database lacks since another server answers."""

    def recovered(self, sessions: int) -> None:
        """Count sessions that were recovered after a worker died."""

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record how long a request took."""
