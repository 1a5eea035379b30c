"""Changes as statements: one row each, so each is one line here."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import astuple

from holdfast.core import changes as ch
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.plan import Ask
from holdfast.stores.sql.statements import Statement

Values = Callable[[Any], tuple[Any, ...]]

_SESSION_PARTS: dict[ch.Part, tuple[Statement, Values]] = {
    "log": (sql.SAVE_LOG, attrgetter(*sql.LOG_CHANGING)),
    "lane": (sql.SAVE_LANE, attrgetter(*sql.LANE_CHANGING)),
    "all": (sql.SAVE_SESSION, attrgetter(*sql.SESSION_CHANGING)),
}
_TURN_PARTS: dict[ch.TurnPart, tuple[Statement, Values]] = {
    "block": (sql.SAVE_BLOCK, attrgetter(*sql.BLOCK_CHANGING)),
    "end": (sql.END_TURN, attrgetter(*sql.END_CHANGING)),
    "all": (sql.SAVE_TURN, attrgetter(*sql.TURN_CHANGING)),
}
_run_changing = attrgetter(*sql.RUN_CHANGING)

# Changes that add one row, and where in the change it is.
_ADDED: dict[type, tuple[Statement, Callable[[Any], msgspec.Struct]]] = {
    ch.SessionAdded: (sql.ADD_SESSION, attrgetter("session")),
    ch.TurnAdded: (sql.ADD_TURN, attrgetter("turn")),
    ch.RunAdded: (sql.ADD_RUN, attrgetter("run")),
    ch.RecordAdded: (sql.ADD_RECORD, attrgetter("record")),
    ch.EventAdded: (sql.ADD_EVENT, attrgetter("event")),
    ch.IdempotencyAdded: (sql.ADD_IDEMPOTENCY, attrgetter("row")),
    ch.CompletionAdded: (sql.ADD_COMPLETION, attrgetter("row")),
    ch.ApiKeyAdded: (sql.ADD_API_KEY, attrgetter("row")),
    ch.TrailAdded: (sql.ADD_TRAIL, attrgetter("row")),
    ch.ItemPlaced: (sql.ADD_ITEM_PLACE, attrgetter("row")),
}


def _save_session(change: ch.SessionSaved) -> list[Ask]:
    statement, values = _SESSION_PARTS[change.part]
    session = change.session
    return [(statement, (*values(session), session.id, change.read_version))]


def _save_turn(change: ch.TurnSaved) -> list[Ask]:
    statement, values = _TURN_PARTS[change.part]
    return [(statement, (*values(change.turn), change.turn.id))]


def _save_run(change: ch.RunSaved) -> list[Ask]:
    return [(sql.SAVE_RUN, (*_run_changing(change.run), change.run.id))]


def _add_items(change: ch.ItemsAdded) -> list[Ask]:
    return [(sql.ADD_ITEM, astuple(item)) for item in change.items]


def _save_provider_state(change: ch.ProviderStateSaved) -> list[Ask]:
    state = change.state
    values = (
        change.session_id, state.slot, state.provider, state.account, state.model,
        state.value, state.covers_seq, change.saved_at,
    )  # fmt: skip
    return [(sql.SAVE_PROVIDER_STATE, values)]


def _drop_provider_state(change: ch.ProviderStateDropped) -> list[Ask]:
    if change.from_seq is not None:
        return [(sql.DROP_PROVIDER_STATE_COVERING, (change.session_id, change.from_seq))]
    if change.slot is None:
        return [(sql.DROP_PROVIDER_STATE, (change.session_id,))]
    return [(sql.DROP_PROVIDER_SLOT, (change.session_id, change.slot))]


def _erase_content(change: ch.ContentErased) -> list[Ask]:
    session_id = change.session_id
    return [
        (statement, (session_id, b"") if "?2" in statement.text else (session_id,))
        for statement in sql.ERASURES
    ]


def _add_journal(change: ch.JournalAdded) -> list[Ask]:
    row = change.row
    added: Ask = (sql.ADD_JOURNAL, astuple(row))
    if row.first_no == 0:
        return [(sql.DROP_JOURNAL, (row.turn_id, row.step)), added]
    return [added]


def _erase_item(change: ch.ItemErased) -> list[Ask]:
    """Blank an item, and forget the events that told of it while it came."""
    return [
        (sql.ERASE_ITEM, (change.session_id, change.seq, change.body, b"")),
        (sql.DROP_JOURNALS_OF_ITEM, (change.session_id, change.seq)),
    ]


def _drop_response(change: ch.ResponseDropped) -> list[Ask]:
    return [
        (sql.DROP_JOURNAL, (change.turn_id, change.step)),
        (sql.ADD_DROPPED_RESPONSE, astuple(change)),
    ]


_WRITERS: dict[type, Callable[[Any], list[Ask]]] = {
    ch.SessionSaved: _save_session,
    ch.TurnSaved: _save_turn,
    ch.RunSaved: _save_run,
    ch.ItemsAdded: _add_items,
    ch.ProviderStateSaved: _save_provider_state,
    ch.ProviderStateDropped: _drop_provider_state,
    ch.CompletionSaved: lambda c: [(sql.SAVE_COMPLETION, (c.turn_id, c.step, c.metadata))],
    ch.ApiKeySaved: lambda c: [(sql.REVOKE_API_KEY, (c.row.id, c.row.revoked_at))],
    ch.ContentErased: _erase_content,
    ch.SummariesErased: lambda c: [(sql.ERASE_SUMMARIES, astuple(c))],
    ch.JournalAdded: _add_journal,
    ch.ResponseDropped: _drop_response,
    ch.ItemErased: _erase_item,
}


def writes(changes: tuple[ch.Change, ...]) -> list[Ask]:
    """Return the statements that carry the changes out, in order."""
    asks: list[Ask] = []
    for change in changes:
        added = _ADDED.get(type(change))
        if added is None:
            asks += _WRITERS[type(change)](change)
        else:
            asks.append((added[0], astuple(added[1](change))))
    return asks
