"""Convert outbox rows to values, and changes about channels to statements."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import astuple

from holdfast.core.model.channels import ChatRow, DeadUpdateRow, PairingRow, ReceiverRow
from holdfast.core.model.delivery import OutboxRow
from holdfast.core.transaction import changes as ch
from holdfast.stores.sql.channels import statements as sql
from holdfast.stores.sql.plan import Ask, Row, Statement


def read_receiver(row: Row) -> ReceiverRow:
    """Return the state of a channel's receiver from its columns."""
    return ReceiverRow(**dict(zip(ReceiverRow.__struct_fields__, row, strict=True)))


def read_message(row: Row) -> OutboxRow:
    """Return a message from its columns."""
    values = dict(zip(OutboxRow.__struct_fields__, row, strict=False))
    values["is_maybe_duplicate"] = bool(values["is_maybe_duplicate"])
    return OutboxRow(**values)


def _values(row: OutboxRow) -> tuple[Any, ...]:
    return tuple(
        int(value) if isinstance(value, bool) else value for value in astuple(row)
    )  # fmt: skip


def _save_message(change: ch.OutboxSaved) -> Ask:
    row, before = change.row, change.before
    return sql.SAVE_MESSAGE, (
        row.id, row.state, row.text, row.refusals, row.next_at, row.created_at, row.owner,
        row.external_id, int(row.is_maybe_duplicate), row.error, row.settled_at, before.state,
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


def _fields(statement: Statement) -> Callable[[Any], Ask]:
    return lambda change: (statement, astuple(change))


WRITERS: dict[type, Callable[[Any], Ask]] = {
    ch.OutboxAdded: lambda change: (sql.ADD_MESSAGE, _values(change.row)),
    ch.OutboxFileAdded: _fields(sql.ADD_FILE),
    ch.OutboxFileDropped: _fields(sql.DROP_FILE),
    ch.PlaceholderOpened: lambda change: (sql.OPEN_PLACEHOLDER, _values(change.row)),
    ch.PlaceholderStopped: _fields(sql.STOP_PLACEHOLDER),
    ch.ApprovalEnded: _fields(sql.END_APPROVAL),
    ch.OutboxSaved: _save_message,
    ch.OutboxRestDropped: _fields(sql.DROP_REST),
    ch.OutboxPruned: _fields(sql.PRUNE_OUTBOX),
    ch.CursorMoved: _move_cursor,
    PairingRow: _fields(sql.SAVE_PAIRING),
    ch.PairingDropped: _fields(sql.DROP_PAIRING),
    ch.ChannelHeld: _hold,
    ch.ChannelReleased: _fields(sql.DROP_HOLD),
    ChatRow: _fields(sql.SAVE_CHAT),
    DeadUpdateRow: _fields(sql.ADD_DEAD_UPDATE),
    ch.BotTurnsSaved: _save_bot_turns,
    ch.BotTurnsDropped: _fields(sql.DROP_BOT_TURNS),
    ReceiverRow: _fields(sql.SAVE_RECEIVER),
}
"""The statement that writes each change about a channel."""
