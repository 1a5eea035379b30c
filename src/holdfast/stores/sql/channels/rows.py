"""Convert rows about channels to values, and changes to statements."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import astuple

from holdfast.core.model.channels import ChatRow, DeadUpdateRow, PairingRow, ReceiverRow
from holdfast.core.model.delivery import OutboxRow
from holdfast.core.transaction import changes as ch
from holdfast.stores.sql.channels import statements as sql
from holdfast.stores.sql.plan import Ask, row_reader, write_fields

read_receiver = row_reader(ReceiverRow)
read_message = row_reader(OutboxRow)


def _save_message(change: ch.OutboxSaved) -> Ask:
    row, before = change.row, change.before
    return sql.SAVE_MESSAGE, (
        row.id, row.state, row.text, row.refusals, row.next_at, row.created_at, row.owner,
        row.external_id, row.is_maybe_duplicate, row.error, row.settled_at, before.state,
        before.owner or "", before.approval,
    )  # fmt: skip


def _hold(change: ch.ChannelHeld) -> Ask:
    if change.before is None:
        return sql.TAKE_HOLD, (change.channel, change.owner, change.at)
    return sql.MOVE_HOLD, (change.channel, change.owner, change.at, change.before)


def _move_cursor(change: ch.CursorMoved) -> Ask:
    if change.before is None:
        return sql.START_CURSOR, (change.view, *change.after)
    return sql.MOVE_CURSOR, (change.view, *change.after, *change.before)


def _save_bot_turns(change: ch.BotTurnsSaved) -> Ask:
    if change.before is None:
        return sql.START_BOT_TURNS, astuple(change.row)
    return sql.SAVE_BOT_TURNS, (*astuple(change.row), change.before.messages)


WRITERS: dict[type, Callable[[Any], Ask]] = {
    ch.OutboxAdded: lambda change: (sql.ADD_MESSAGE, astuple(change.row)),
    ch.OutboxFileAdded: write_fields(sql.ADD_FILE),
    ch.OutboxFileDropped: write_fields(sql.DROP_FILE),
    ch.PlaceholderOpened: lambda change: (sql.OPEN_PLACEHOLDER, astuple(change.row)),
    ch.PlaceholderStopped: write_fields(sql.STOP_PLACEHOLDER),
    ch.ApprovalEnded: write_fields(sql.END_APPROVAL),
    ch.OutboxSaved: _save_message,
    ch.OutboxRestDropped: write_fields(sql.DROP_REST),
    ch.OutboxPruned: write_fields(sql.PRUNE_OUTBOX),
    ch.CursorMoved: _move_cursor,
    PairingRow: write_fields(sql.SAVE_PAIRING),
    ch.PairingDropped: write_fields(sql.DROP_PAIRING),
    ch.ChannelHeld: _hold,
    ch.ChannelReleased: write_fields(sql.DROP_HOLD),
    ChatRow: write_fields(sql.SAVE_CHAT),
    DeadUpdateRow: write_fields(sql.ADD_DEAD_UPDATE),
    ch.BotTurnsSaved: _save_bot_turns,
    ch.BotTurnsDropped: write_fields(sql.DROP_BOT_TURNS),
    ReceiverRow: write_fields(sql.SAVE_RECEIVER),
}
"""The statement that writes each change about a channel."""
