"""Who may write to a channel, who receives for it and since when, and which chats it knows."""

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import NotFound
from holdfast.core.ids import TurnId
from holdfast.core.model.channels import (
    BotTurnsRow,
    ChatRow,
    DeadUpdateRow,
    PairingRow,
    ReceiverRow,
)
from holdfast.core.model.delivery import OutboxMessage
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import (
    BotTurnsDropped,
    BotTurnsSaved,
    Change,
    ChannelHeld,
    ChannelReleased,
    Decision,
    IdempotencyRow,
    OutboxAdded,
    PairingDropped,
    refuse,
)
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.outgoing import message_row

PAIRING_TEXT = (
    "You are not allowed to write here yet. Ask the operator to approve the code {code} "
    "(your id is {sender}). It is valid for {minutes:.0f} minutes."
)

MAX_REASON = 300


class PairingNotFound(NotFound):
    """The channel has no open pairing with this code."""

    code = "pairing_not_found"


def request_pairing(command: cmd.RequestPairing, facts: Facts) -> Decision[PairingRow]:
    """Create a pairing code and send it to its sender, once while the code is valid."""
    existing = next((row for row in facts.pairings if row.sender == command.sender), None)
    if existing is not None and (existing.approved_at is not None or existing.is_open(facts.now)):
        return Decision(existing)
    row = PairingRow(
        command.channel, command.sender, command.tenant, command.name, command.code, command.chat,
        facts.now, facts.now + command.valid_seconds,
    )  # fmt: skip
    changes: list[Change] = [row]
    is_open = [pairing for pairing in facts.pairings if pairing.is_open(facts.now)]
    oldest_first = sorted(is_open, key=lambda pairing: pairing.created_at)
    excess = len(is_open) + 1 - command.max_open
    changes += [
        PairingDropped(pairing.channel, pairing.sender)
        for pairing in oldest_first[: max(excess, 0)]
    ]
    if facts.repeat is None:
        named = TurnId(command.record_id)
        key = IdempotencyRow(command.tenant, command.idempotency_key, b"", named, 0, facts.now)
        text = PAIRING_TEXT.format(
            code=row.code, sender=row.sender, minutes=command.valid_seconds / 60
        )
        message = OutboxMessage(channel=command.channel, chat=command.chat, text=text)
        outgoing = message_row(
            message, tenant=command.tenant, source=command.record_id, part=0, now=facts.now
        )
        changes += [key, OutboxAdded(outgoing)]
    return Decision(row, tuple(changes))


def approve_pairing(command: cmd.ApprovePairing, facts: Facts) -> Decision[PairingRow]:
    """Approve the sender who was given the code; the code binds to that sender alone."""
    code = command.code.strip().upper()
    row = next((pairing for pairing in facts.pairings if pairing.code == code), None)
    if row is None or not (row.approved_at is not None or row.is_open(facts.now)):
        return refuse(PairingNotFound(f"channel {command.channel} has no open pairing {code!r}"))
    if row.approved_at is not None:
        return Decision(row)
    approved = replace(row, approved_at=facts.now)
    return Decision(approved, (approved,))


def revoke_pairing(command: cmd.RevokePairing, facts: Facts) -> Decision[bool]:
    """Delete a pairing, approved or not."""
    if not any(row.sender == command.sender for row in facts.pairings):
        return Decision(command.again)
    return Decision(True, (PairingDropped(command.channel, command.sender),))


def hold_channel(command: cmd.HoldChannel, facts: Facts) -> Decision[bool]:
    """Make a worker the receiver of a channel, if its receiver is not alive."""
    hold = facts.hold
    if hold is not None and hold.owner == command.worker:
        return Decision(True)
    if hold is not None and facts.is_holder_alive:
        return Decision(False)
    before = hold.owner if hold is not None else None
    return Decision(True, (ChannelHeld(command.channel, command.worker, before, facts.now),))


def release_channel(command: cmd.ReleaseChannel, _: Facts) -> Decision[None]:
    """Release a channel: no worker receives for it."""
    return Decision(None, (ChannelReleased(command.channel, command.worker),))


def remember_chat(command: cmd.RememberChat, facts: Facts) -> Decision[None]:
    """Record a chat, so that schedules and operators may write to it."""
    rows = [ChatRow(command.channel, command.chat, command.successor, facts.now)]
    rows += [
        ChatRow(command.channel, alias, "", facts.now, command.chat) for alias in command.aliases
    ]
    return Decision(None, tuple(rows))


def dead_letter_update(command: cmd.DeadLetterUpdate, facts: Facts) -> Decision[None]:
    """Record an update that could not be handled."""
    row = DeadUpdateRow(command.channel, command.update_id, command.reason[:500], facts.now)
    return Decision(None, (row,))


def note_receiver(command: cmd.NoteReceiver, facts: Facts) -> Decision[None]:
    """Record that a channel receives and its last gap, or why it cannot receive."""
    now = facts.now
    receiver = facts.receiver or ReceiverRow(channel=command.channel, kind=command.kind)
    row = replace(receiver, kind=command.kind, keeps_seconds=command.keeps_seconds)
    if command.reason:
        since = receiver.failing_since if receiver.is_failing else now
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


def count_bot_turn(command: cmd.CountBotTurn, facts: Facts) -> Decision[bool]:
    """Count a message of a bot; count a repeated delivery once."""
    known = facts.bot_turns
    counted = msgspec.json.decode(known.messages, type=list[str]) if known is not None else []
    if command.message in counted:
        return Decision(True)
    if len(counted) >= command.limit:
        return Decision(False)
    messages = msgspec.json.encode([*counted, command.message]).decode()
    row = BotTurnsRow(command.channel, command.chat, messages)
    return Decision(True, (BotTurnsSaved(row, known),))


def forget_bot_turns(command: cmd.ForgetBotTurns, facts: Facts) -> Decision[None]:
    """Reset the count; write nothing if no bot had a turn."""
    if facts.bot_turns is None:
        return Decision(None)
    return Decision(None, (BotTurnsDropped(command.channel, command.chat),))
