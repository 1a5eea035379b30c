"""Who may write to a channel, who receives for it, and which chats it knows."""

from msgspec.structs import replace

from holdfast.core.errors import NotFound
from holdfast.core.ids import TurnId
from holdfast.core.model.channels import ChatRow, DeadUpdateRow, PairingRow
from holdfast.core.model.delivery import OutboxMessage
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import (
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


class PairingNotFound(NotFound):
    """The channel has no open pairing with this code."""

    code = "pairing_not_found"


def request_pairing(command: cmd.RequestPairing, facts: Facts) -> Decision[PairingRow]:
    """Create a pairing code and send it to its sender, once while the code is valid."""
    known = next((row for row in facts.pairings if row.sender == command.sender), None)
    if known is not None and (known.approved_at is not None or known.is_open(facts.now)):
        return Decision(known)
    row = PairingRow(
        command.channel, command.sender, command.tenant, command.name, command.code, command.chat,
        facts.now, facts.now + command.valid_seconds,
    )  # fmt: skip
    changes: list[Change] = [row]
    is_open = [one for one in facts.pairings if one.is_open(facts.now)]
    oldest_first = sorted(is_open, key=lambda one: one.created_at)
    excess = len(is_open) + 1 - command.max_open
    changes += [PairingDropped(one.channel, one.sender) for one in oldest_first[: max(excess, 0)]]
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
    row = next((one for one in facts.pairings if one.code == code), None)
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
