"""Commands about channels: the facts that each one needs, and its decision."""

from typing import Any

from msgspec.structs import replace

from holdfast.core.decisions.channels import access, outbox, turns
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.channels import BotTurnsRow, ChannelHoldRow, PairingRow
from holdfast.core.model.delivery import OutboxRow, first_part, outbox_id
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.commands import Command
from holdfast.core.transaction.facts import Facts
from holdfast.stores.sql.channels import statements as sql
from holdfast.stores.sql.channels.statements import read_message, read_receiver
from holdfast.stores.sql.lookups import (
    find_repeat,
    find_turn,
    is_living,
    lane_facts,
    lane_of_key,
    no_facts,
    open_turns,
)
from holdfast.stores.sql.plan import Plan, every_as, one, one_as


def placeholder_facts(command: cmd.OpenPlaceholder, now: float) -> Plan[Facts]:
    """Read the lane of the run, and the placeholder that an earlier attempt opened."""
    facts = yield from lane_facts(command.fence.session_id, now)
    session = facts.session
    if session is None or session.active_turn_id is None:
        return facts
    placeholder = outbox_id(session.active_turn_id, first_part(command.step))
    return (yield from _with_message(facts, placeholder))


def message_facts(
    command: cmd.KeepPlaceholder | cmd.SettleDelivery | cmd.ReviseDelivery, now: float
) -> Plan[Facts]:
    """Read the message."""
    return _with_message(Facts(now=now), command.id)


def _with_message(facts: Facts, message_id: str) -> Plan[Facts]:
    messages = yield from every_as(read_message, sql.MESSAGE, message_id)
    return replace(facts, messages=tuple(messages))


def queue_facts(command: cmd.QueueMessages, now: float) -> Plan[Facts]:
    """Read whether it was done before: by its key, or as the same command."""
    facts = Facts(now=now)
    if command.idempotency_key is not None:
        for key in (command.idempotency_key, *command.more_keys):
            facts = yield from _with_repeat(facts, command.tenant, key)
            if facts.repeat is not None:
                break
        return facts
    if command.messages:
        return (yield from _with_message(facts, outbox_id(command.record_id, 0)))
    return facts


def cursor_facts(command: cmd.QueueFacts, now: float) -> Plan[Facts]:
    """Read the follower's position, and the last records of the facts' sessions."""
    row = yield from one(sql.CURSOR, command.view)
    last_records: dict[SessionId, int] = {}
    for session_id in {fact.session_id for fact in command.facts if fact.session_id}:
        found = yield from one(sql.LAST_RECORD, session_id)
        if found is not None:
            last_records[session_id] = found[0]
    cursor = (row[0], row[1]) if row is not None else None
    return Facts(now=now, cursor=cursor, last_records=last_records)


def _with_repeat(facts: Facts, tenant: Tenant, key: str) -> Plan[Facts]:
    return replace(facts, repeat=(yield from find_repeat(tenant, key)))


def due_facts(command: cmd.ClaimDeliveries, now: float) -> Plan[Facts]:
    """Read the messages that are due, at most one of each conversation."""
    late = now - command.orphaned_after_seconds
    messages: list[OutboxRow] = []
    for channel in command.channels:
        if command.again:
            parameters = (channel, command.worker)
            messages += yield from every_as(read_message, sql.CLAIMED_MESSAGES, *parameters)
        limit_left = command.limit - len(messages)
        if limit_left > 0:
            limits = (channel, command.worker, now, late, limit_left)
            messages += yield from every_as(read_message, sql.DUE_MESSAGES, *limits)
    return Facts(now=now, messages=tuple(messages))


def stop_facts(command: cmd.StopTurns, now: float) -> Plan[Facts]:
    """Read the lane of the key and its open turns, unless the command was already done."""
    facts = yield from _with_repeat(Facts(now=now), command.tenant, command.idempotency_key)
    if facts.repeat is not None:
        return facts
    facts = yield from lane_of_key(command.tenant, command.key, now)
    if facts.session is None:
        return facts
    return replace(facts, open_turns=(yield from open_turns(facts.session.id)))


def edit_facts(command: cmd.EditWaiting, now: float) -> Plan[Facts]:
    """Read the lane of the key and the turn of the message, unless the edit was already done."""
    facts = yield from _with_repeat(Facts(now=now), command.tenant, command.idempotency_key)
    if facts.repeat is not None:
        return facts
    edited = yield from find_repeat(command.tenant, command.edited_key)
    if edited is None:
        return facts
    facts = yield from lane_of_key(command.tenant, command.key, now)
    turn = yield from find_turn(edited.turn_id)
    return replace(facts, turn=turn, edited=edited)


def pairing_facts(
    command: cmd.RequestPairing | cmd.ApprovePairing | cmd.RevokePairing, now: float
) -> Plan[Facts]:
    """Read every pairing of the channel; their number is bounded."""
    facts = Facts(now=now)
    if isinstance(command, cmd.RequestPairing):
        facts = yield from _with_repeat(facts, command.tenant, command.idempotency_key)
    pairings = yield from every_as(PairingRow, sql.PAIRINGS, command.channel)
    return replace(facts, pairings=tuple(pairings))


def hold_facts(command: cmd.HoldChannel, now: float) -> Plan[Facts]:
    """Read who receives for the channel, and whether that worker is alive."""
    row = yield from one(sql.HOLD, command.channel)
    if row is None:
        return Facts(now=now)
    hold = ChannelHoldRow(*row[:3])
    return Facts(now=now, hold=hold, is_holder_alive=is_living(row[3]))


def bot_turn_facts(command: cmd.CountBotTurn | cmd.ForgetBotTurns, now: float) -> Plan[Facts]:
    """Read the count of turns that bots had in the chat."""
    bot_turns = yield from one_as(BotTurnsRow, sql.BOT_TURNS, command.channel, command.chat)
    return Facts(now=now, bot_turns=bot_turns)


def receiver_facts(command: cmd.NoteReceiver, now: float) -> Plan[Facts]:
    """Read the recorded state of the channel's receiver."""
    receiver = yield from one_as(read_receiver, sql.RECEIVER, command.channel)
    return Facts(now=now, receiver=receiver)


DECIDED: dict[type[Command[Any]], tuple[Any, Any]] = {
    cmd.OpenPlaceholder: (placeholder_facts, outbox.open_placeholder),
    cmd.KeepPlaceholder: (message_facts, outbox.keep_placeholder),
    cmd.QueueMessages: (queue_facts, outbox.queue_messages),
    cmd.QueueFacts: (cursor_facts, outbox.queue_facts),
    cmd.ClaimDeliveries: (due_facts, outbox.claim_deliveries),
    cmd.SettleDelivery: (message_facts, outbox.settle_delivery),
    cmd.ReviseDelivery: (message_facts, outbox.revise_delivery),
    cmd.PruneOutbox: (no_facts, outbox.prune_outbox),
    cmd.StopTurns: (stop_facts, turns.stop_turns),
    cmd.EditWaiting: (edit_facts, turns.edit_waiting),
    cmd.RequestPairing: (pairing_facts, access.request_pairing),
    cmd.ApprovePairing: (pairing_facts, access.approve_pairing),
    cmd.RevokePairing: (pairing_facts, access.revoke_pairing),
    cmd.HoldChannel: (hold_facts, access.hold_channel),
    cmd.ReleaseChannel: (no_facts, access.release_channel),
    cmd.RememberChat: (no_facts, access.remember_chat),
    cmd.DeadLetterUpdate: (no_facts, access.dead_letter_update),
    cmd.NoteReceiver: (receiver_facts, access.note_receiver),
    cmd.CountBotTurn: (bot_turn_facts, access.count_bot_turn),
    cmd.ForgetBotTurns: (bot_turn_facts, access.forget_bot_turns),
}
"""How each command is decided."""
