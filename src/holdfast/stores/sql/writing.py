"""Changes as statements: one row each, so each is one line here."""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from msgspec.structs import astuple

from holdfast.core import changes as ch
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.plan import Ask

_session_changing = attrgetter(*sql.SESSION_CHANGING)
_log_changing = attrgetter(*sql.LOG_CHANGING)
_block_changing = attrgetter(*sql.BLOCK_CHANGING)
_turn_changing = attrgetter(*sql.TURN_CHANGING)
_run_changing = attrgetter(*sql.RUN_CHANGING)


def _save_session(change: ch.SessionSaved) -> Iterator[Ask]:
    session = change.session
    if change.is_log_only:
        yield sql.SAVE_LOG, (*_log_changing(session), session.id, change.read_version)
        return
    yield sql.SAVE_SESSION, (*_session_changing(session), session.id, change.read_version)


def _save_turn(change: ch.TurnSaved) -> Iterator[Ask]:
    turn = change.turn
    if change.is_block_only:
        yield sql.SAVE_BLOCK, (*_block_changing(turn), turn.id)
    else:
        yield sql.SAVE_TURN, (*_turn_changing(turn), turn.id)


def _save_provider_state(change: ch.ProviderStateSaved) -> Iterator[Ask]:
    state = change.state
    yield (
        sql.SAVE_PROVIDER_STATE,
        (
            change.session_id, state.slot, state.provider, state.account, state.model,
            state.value, state.covers_seq, change.saved_at,
        ),
    )  # fmt: skip


def _drop_provider_state(change: ch.ProviderStateDropped) -> Iterator[Ask]:
    if change.from_seq is not None:
        yield sql.DROP_PROVIDER_STATE_COVERING, (change.session_id, change.from_seq)
    elif change.slot is None:
        yield sql.DROP_PROVIDER_STATE, (change.session_id,)
    else:
        yield sql.DROP_PROVIDER_SLOT, (change.session_id, change.slot)


def _erase_content(change: ch.ContentErased) -> Iterator[Ask]:
    for statement in sql.ERASURES:
        if "?2" in statement.text:
            yield statement, (change.session_id, b"")
        else:
            yield statement, (change.session_id,)


def _add_journal(change: ch.JournalAdded) -> Iterator[Ask]:
    row = change.row
    if row.first_no == 0:
        yield sql.DROP_JOURNAL, (row.turn_id, row.step)
    yield sql.ADD_JOURNAL, astuple(row)


def _drop_response(change: ch.ResponseDropped) -> Iterator[Ask]:
    yield sql.DROP_JOURNAL, (change.turn_id, change.step)
    yield sql.ADD_DROPPED_RESPONSE, astuple(change)


_WRITERS: dict[type, Callable[[Any], Iterator[Ask]]] = {
    ch.SessionAdded: lambda c: iter([(sql.ADD_SESSION, astuple(c.session))]),
    ch.SessionSaved: _save_session,
    ch.TurnAdded: lambda c: iter([(sql.ADD_TURN, astuple(c.turn))]),
    ch.TurnSaved: _save_turn,
    ch.RunAdded: lambda c: iter([(sql.ADD_RUN, astuple(c.run))]),
    ch.RunSaved: lambda c: iter([(sql.SAVE_RUN, (*_run_changing(c.run), c.run.id))]),
    ch.ItemsAdded: lambda c: iter([(sql.ADD_ITEM, astuple(item)) for item in c.items]),
    ch.RecordAdded: lambda c: iter([(sql.ADD_RECORD, astuple(c.record))]),
    ch.EventAdded: lambda c: iter([(sql.ADD_EVENT, astuple(c.event))]),
    ch.IdempotencyAdded: lambda c: iter([(sql.ADD_IDEMPOTENCY, astuple(c.row))]),
    ch.ProviderStateSaved: _save_provider_state,
    ch.ProviderStateDropped: _drop_provider_state,
    ch.CompletionAdded: lambda c: iter([(sql.ADD_COMPLETION, astuple(c.row))]),
    ch.CompletionSaved: lambda c: iter([(sql.SAVE_COMPLETION, (c.turn_id, c.step, c.metadata))]),
    ch.ApiKeyAdded: lambda c: iter([(sql.ADD_API_KEY, astuple(c.row))]),
    ch.ApiKeySaved: lambda c: iter([(sql.REVOKE_API_KEY, (c.row.id, c.row.revoked_at))]),
    ch.ContentErased: _erase_content,
    ch.SummariesErased: lambda c: iter([(sql.ERASE_SUMMARIES, astuple(c))]),
    ch.JournalAdded: _add_journal,
    ch.ResponseDropped: _drop_response,
    ch.TrailAdded: lambda c: iter([(sql.ADD_TRAIL, astuple(c.row))]),
    ch.ItemPlaced: lambda c: iter([(sql.ADD_ITEM_PLACE, astuple(c.row))]),
    ch.ItemErased: lambda c: iter([(sql.ERASE_ITEM, (c.session_id, c.seq, c.body, b""))]),
}


def writes(changes: tuple[ch.Change, ...]) -> list[Ask]:
    """Return the statements that carry the changes out, in order; runs come after their turns."""
    asks: list[Ask] = []
    runs: list[Ask] = []
    for change in changes:
        place = runs if type(change) is ch.RunAdded else asks
        place.extend(_WRITERS[type(change)](change))
    return asks + runs
