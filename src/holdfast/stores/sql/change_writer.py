"""Translate changes into statements, in the order in which they are written."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import astuple

from holdfast.core.history.history_hash import HistoryHashRow, ItemPlaceRow
from holdfast.core.transaction import changes as ch
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.channels.statements import WRITERS as CHANNEL_WRITERS
from holdfast.stores.sql.entries import (
    identity_values,
    kind_of,
    pack_entry,
    pack_head,
    pack_items,
    session_no,
)
from holdfast.stores.sql.plan import Ask, write_fields
from holdfast.stores.sql.schedules import WRITERS as SCHEDULE_WRITERS

STOP_REQUEST_SECONDS = 60.0
"""How long a request to end a run is kept: far longer than any caller waits."""
_identity_state = attrgetter("is_live", "retired_at", "deleted_at", "metadata")
"""The columns of a session's own row that change."""
_lane_state = attrgetter("active_turn_id", "active_run_id", "owner", "hold_until")
"""The columns of a lane."""


def _append(change: ch.LogAppended, asks: list[Ask]) -> None:
    """Write the entries, then the identity, lane and item ids that they change."""
    session, before = change.session, change.before
    no = session_no(session.id)
    if before is None:
        asks.append((sql.ADD_SESSION, (no, *identity_values(session))))
    _add_entries(change, no, asks)
    if before is not None and _identity_state(before) != _identity_state(session):
        asks.append((sql.SAVE_SESSION, (*_identity_state(session), no)))
    if session.active_turn_id is None:
        if before is not None and before.active_turn_id is not None:
            asks.append((sql.FREE_LANE, (no,)))
    elif before is None or _lane_state(before) != _lane_state(session):
        asks.append((sql.HOLD_LANE, (no, *_lane_state(session))))
    for entry in change.entries:
        for item in entry.items:
            # An id that ends with the item's sequence number needs no row to be found.
            if item.item_id is not None and item.item_id[-6:] != f"{item.seq:06x}":
                asks += ((sql.ADD_ITEM_ID, (no, item.item_id, item.seq)),)


def _add_entries(change: ch.LogAppended, no: int, asks: list[Ask]) -> None:
    session, entries = change.session, change.entries
    n = session.version - len(entries)
    seq, turns, events = session.head_seq, session.turn_count, session.event_no
    if len(entries) > 1:
        seq -= sum([len(entry.items) for entry in entries])
        turns -= sum([entry.is_new_turn for entry in entries])
        events -= sum([len(entry.events) for entry in entries])
        head = pack_head(session)
    else:
        entry = entries[0]
        head = pack_head(session, entry.turn.id if entry.turn is not None else None)
        seq, turns = seq - len(entry.items), turns - entry.is_new_turn
        events -= len(entry.events)
    statement = sql.ADD_ENTRY if change.before is None else sql.APPEND_ENTRY
    before = change.before
    for entry in entries:
        n += 1
        turn, items, records = entry.turn, entry.items, entry.records
        seq += len(items)
        turns += entry.is_new_turn
        events += len(entry.events)
        # Facts that were copied from an older store keep their original time.
        at = entry.events[-1].at if entry.events else change.at
        asks.append(
            (
                statement,
                (
                    no, n, kind_of(entry, session, before), at,
                    turn.id if turn is not None else None, seq, turns, events,
                    records[-1].no if records else None, head, pack_entry(entry), pack_items(items),
                    turn.request if turn is not None and entry.is_new_turn else None,
                ),
            )
        )  # fmt: skip
        # The first entry is the gate; the following ones are written only if it is.
        statement, before = sql.ADD_ENTRY, None


def _request_stop(row: ch.StopRequestRow, asks: list[Ask]) -> None:
    asks.append((sql.FORGET_STOP_REQUESTS, (row.requested_at - STOP_REQUEST_SECONDS,)))
    asks.append((sql.ADD_STOP_REQUEST, astuple(row)))


def _save_provider_state(change: ch.ProviderStateSaved) -> Ask:
    state = change.state
    return sql.SAVE_PROVIDER_STATE, (
        change.session_id, state.slot, state.provider, state.account, state.model,
        state.value, state.covers_seq, change.saved_at,
    )  # fmt: skip


def _drop_provider_state(change: ch.ProviderStateDropped) -> Ask:
    if change.from_seq is not None:
        return sql.DROP_PROVIDER_STATE_COVERING, (change.session_id, change.from_seq)
    if change.slot is None:
        return sql.DROP_PROVIDER_STATE, (change.session_id,)
    return sql.DROP_PROVIDER_SLOT, (change.session_id, change.slot)


def add_journal(change: ch.JournalAdded, asks: list[Ask]) -> None:
    """Write a batch of a stream; without an entry, it is guarded by the run that holds the lane."""
    row = change.row
    no = session_no(row.session_id)
    values = (row.turn_id, row.step, row.first_no, row.last_no, row.session_id, row.body, no)
    if any(statement is sql.APPEND_ENTRY for statement, _ in asks):
        asks.append((sql.ADD_JOURNAL, values))
    else:
        asks.append((sql.APPEND_JOURNAL, (*values, change.run_id)))
    if row.first_no == 0:
        asks.append((sql.DROP_JOURNAL_REST, (row.turn_id, row.step, 0)))


def _drop_response(change: ch.ResponseDropped, asks: list[Ask]) -> None:
    asks.append((sql.DROP_JOURNAL, (change.turn_id, change.step)))
    asks.append((sql.ADD_DROPPED_RESPONSE, astuple(change)))


def _enqueue(change: ch.QueueSaved) -> Ask:
    turn = change.turn
    return sql.ENQUEUE, (
        session_no(turn.session_id), turn.position, turn.id, turn.owner, turn.input,
    )  # fmt: skip


def _save_partial(change: ch.PartialSaved) -> Ask:
    return sql.SAVE_PARTIAL, (change.run_id, session_no(change.session_id), change.body)


def _join_turn(change: ch.TurnJoined) -> Ask:
    no = session_no(change.session_id)
    return sql.ADD_JOINED_TURN, (change.turn_id, change.into, change.run_id, no)


def _note_late(change: ch.LateWriteNoted) -> Ask:
    no = session_no(change.session_id)
    return sql.ADD_LATE_WRITE, (change.run_id, change.turn_id, no, change.body)


_WRITERS_OF_SEVERAL: dict[type, Callable[[Any, list[Ask]], None]] = {
    ch.LogAppended: _append,
    ch.StopRequestRow: _request_stop,
    ch.JournalAdded: add_journal,
    ch.ResponseDropped: _drop_response,
}
"""How changes with several statements are appended to the list of them."""
_WRITERS: dict[type, Callable[[Any], Ask]] = {
    ch.QueueSaved: _enqueue,
    ch.QueueDropped: write_fields(sql.DEQUEUE),
    ch.PartialSaved: _save_partial,
    ch.PartialDropped: write_fields(sql.DROP_PARTIAL),
    ch.TurnJoined: _join_turn,
    ch.RetryClaimed: write_fields(sql.CLAIM_RETRY),
    ch.LateWriteNoted: _note_late,
    ch.StopRequestDropped: write_fields(sql.DROP_STOP_REQUEST),
    ch.IdempotencyRow: write_fields(sql.ADD_IDEMPOTENCY),
    ch.ProviderStateSaved: _save_provider_state,
    ch.ProviderStateDropped: _drop_provider_state,
    ch.CompletionRow: write_fields(sql.ADD_COMPLETION),
    ch.CompletionSaved: write_fields(sql.SAVE_COMPLETION),
    ch.ApiKeyRow: write_fields(sql.ADD_API_KEY),
    ch.ApiKeySaved: lambda change: (sql.REVOKE_API_KEY, (change.row.id, change.row.revoked_at)),
    HistoryHashRow: write_fields(sql.ADD_HISTORY_HASH),
    ItemPlaceRow: write_fields(sql.ADD_ITEM_PLACE),
    **CHANNEL_WRITERS,
    **SCHEDULE_WRITERS,
}
"""The statement of every other change."""
ERASING = (ch.ContentErased, ch.ItemErased, ch.SummariesErased)
"""Changes that erase content; they are written by plans that read the content first."""


def writes(changes: Sequence[ch.Change]) -> list[Ask]:
    """Return the statements of the changes in order, except those of erasures."""
    asks: list[Ask] = []
    for change in changes:
        kind = type(change)
        if kind in _WRITERS_OF_SEVERAL:
            _WRITERS_OF_SEVERAL[kind](change, asks)
        elif kind in _WRITERS:
            asks.append(_WRITERS[kind](change))
        else:
            assert isinstance(change, ERASING), change
    return asks
