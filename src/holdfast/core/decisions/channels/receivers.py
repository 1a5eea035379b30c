"""Whether a channel receives, and since when it has not, for operators."""

from msgspec.structs import replace

from holdfast.core.model.channels import ReceiverRow
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import NoteReceiver
from holdfast.core.transaction.facts import Facts

MAX_REASON = 300


def note_receiver(command: NoteReceiver, facts: Facts) -> Decision[None]:
    """Record that a channel receives and its last gap, or why it cannot receive."""
    now = facts.now
    known = facts.receiver or ReceiverRow(channel=command.channel, kind=command.kind)
    row = replace(known, kind=command.kind, keeps_seconds=command.keeps_seconds)
    if command.reason:
        since = known.failing_since if known.is_failing else now
        reason = command.reason[:MAX_REASON]
        row = replace(row, failing_since=since, failed_at=now, reason=reason)
        return Decision(None, (row,))
    if is_gap(row, now):
        row = replace(row, gap_from=row.received_at, gap_until=now)
    return Decision(None, (replace(row, received_at=now, reason=""),))


def is_gap(row: ReceiverRow, now: float) -> bool:
    """Whether nothing was received for longer than the platform keeps messages."""
    if row.received_at is None or not row.keeps_seconds:
        return False
    return now - row.received_at > row.keeps_seconds
