"""Changes as statements: one row each, in the shortest form that says all of it."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from msgspec.structs import astuple

from holdfast.core.transaction import changes as ch
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.plan import Ask
from holdfast.stores.sql.statement_builder import Form, Statement

Values = Callable[[Any], tuple[Any, ...]]
Writer = Callable[[Any, list[Ask]], None]
"""Says how a change is written: adds its statements to a list."""
_Short = tuple[Statement, Values, Values, tuple[Any, ...]]
"""A statement, what it is given of a row, and what the rest of the row has to be."""


def _short(form: Form, *found_by: str) -> _Short:
    given = attrgetter(*form.given, *found_by)
    return form.statement, given, attrgetter(*form.usual), tuple(form.usual.values())


def _adding(name: str, whole: Statement, *forms: Form) -> Writer:
    """Return how the row of that name is added, by the first form that is enough."""
    row_of = attrgetter(name)
    shorts = [_short(form) for form in forms]

    def add(change: Any, asks: list[Ask]) -> None:
        row = row_of(change)
        for statement, given, rest, usual in shorts:
            if rest(row) == usual:
                asks.append((statement, given(row)))
                return
        asks.append((whole, astuple(row)))

    return add


_SESSION_PARTS: dict[ch.Part, tuple[Statement, Values]] = {
    "log": (sql.SAVE_LOG, attrgetter(*sql.LOG_CHANGING, "id")),
    "lane": (sql.SAVE_LANE, attrgetter(*sql.LANE_CHANGING, "id")),
    "all": (sql.SAVE_SESSION, attrgetter(*sql.SESSION_CHANGING, "id")),
}
_TURN_PARTS: dict[ch.TurnPart, tuple[Statement, Values]] = {
    "block": (sql.SAVE_BLOCK, attrgetter(*sql.BLOCK_CHANGING, "id")),
    "end": (sql.END_TURN, attrgetter(*sql.END_CHANGING, "id")),
    "all": (sql.SAVE_TURN, attrgetter(*sql.TURN_CHANGING, "id")),
}
_run_values = attrgetter(*sql.RUN_CHANGING, "id")
_END_TURN_WELL = _short(sql.END_TURN_WELL, "id")
_END_RUN_WELL = _short(sql.END_RUN_WELL, "id")
_ADD_PLAIN_ITEM = _short(sql.ADD_PLAIN_ITEM)


def _save_session(change: ch.SessionSaved, asks: list[Ask]) -> None:
    statement, values = _SESSION_PARTS[change.part]
    asks.append((statement, (*values(change.session), change.read_version)))


def _save_turn(change: ch.TurnSaved, asks: list[Ask]) -> None:
    turn, part = change.turn, change.part
    statement, values, rest, usual = _END_TURN_WELL
    if part != "end" or rest(turn) != usual:
        statement, values = _TURN_PARTS[part]
    asks.append((statement, values(turn)))


def _save_run(change: ch.RunSaved, asks: list[Ask]) -> None:
    run = change.run
    statement, values, rest, usual = _END_RUN_WELL
    if rest(run) != usual:
        statement, values = sql.SAVE_RUN, _run_values
    asks.append((statement, values(run)))


def _add_items(change: ch.ItemsAdded, asks: list[Ask]) -> None:
    statement, given, rest, usual = _ADD_PLAIN_ITEM
    for item in change.items:
        if rest(item) == usual:
            asks.append((statement, given(item)))
        else:
            asks.append((sql.ADD_ITEM, astuple(item)))


def _save_provider_state(change: ch.ProviderStateSaved, asks: list[Ask]) -> None:
    state = change.state
    values = (
        change.session_id, state.slot, state.provider, state.account, state.model,
        state.value, state.covers_seq, change.saved_at,
    )  # fmt: skip
    asks.append((sql.SAVE_PROVIDER_STATE, values))


def _drop_provider_state(change: ch.ProviderStateDropped, asks: list[Ask]) -> None:
    if change.from_seq is not None:
        asks.append((sql.DROP_PROVIDER_STATE_COVERING, (change.session_id, change.from_seq)))
    elif change.slot is None:
        asks.append((sql.DROP_PROVIDER_STATE, (change.session_id,)))
    else:
        asks.append((sql.DROP_PROVIDER_SLOT, (change.session_id, change.slot)))


def _save_completion(change: ch.CompletionSaved, asks: list[Ask]) -> None:
    asks.append((sql.SAVE_COMPLETION, (change.turn_id, change.step, change.metadata)))


def _save_api_key(change: ch.ApiKeySaved, asks: list[Ask]) -> None:
    asks.append((sql.REVOKE_API_KEY, (change.row.id, change.row.revoked_at)))


def _erase_content(change: ch.ContentErased, asks: list[Ask]) -> None:
    session_id = change.session_id
    asks += [
        (statement, (session_id, b"") if "?2" in statement.text else (session_id,))
        for statement in sql.ERASURES
    ]


def _erase_item(change: ch.ItemErased, asks: list[Ask]) -> None:
    """Blank an item, and forget the events that told of it while it came."""
    asks.append((sql.ERASE_ITEM, (change.session_id, change.seq, change.body, b"")))
    asks.append((sql.DROP_JOURNALS_OF_ITEM, (change.session_id, change.seq)))


def _erase_summaries(change: ch.SummariesErased, asks: list[Ask]) -> None:
    asks.append((sql.ERASE_SUMMARIES, astuple(change)))


def _add_journal(change: ch.JournalAdded, asks: list[Ask]) -> None:
    row = change.row
    if row.first_no == 0:
        asks.append((sql.DROP_JOURNAL, (row.turn_id, row.step)))
    asks.append((sql.ADD_JOURNAL, astuple(row)))


def _drop_response(change: ch.ResponseDropped, asks: list[Ask]) -> None:
    asks.append((sql.DROP_JOURNAL, (change.turn_id, change.step)))
    asks.append((sql.ADD_DROPPED_RESPONSE, astuple(change)))


_WRITERS: dict[type, Writer] = {
    ch.SessionAdded: _adding("session", sql.ADD_SESSION),
    ch.SessionSaved: _save_session,
    ch.TurnAdded: _adding("turn", sql.ADD_TURN, sql.ADD_BEGUN_TURN, sql.ADD_DONE_TURN),
    ch.TurnSaved: _save_turn,
    ch.RunAdded: _adding("run", sql.ADD_RUN, sql.ADD_BEGUN_RUN),
    ch.RunSaved: _save_run,
    ch.ItemsAdded: _add_items,
    ch.RecordAdded: _adding("record", sql.ADD_RECORD),
    ch.EventAdded: _adding("event", sql.ADD_EVENT),
    ch.IdempotencyAdded: _adding("row", sql.ADD_IDEMPOTENCY),
    ch.ProviderStateSaved: _save_provider_state,
    ch.ProviderStateDropped: _drop_provider_state,
    ch.CompletionAdded: _adding("row", sql.ADD_COMPLETION),
    ch.CompletionSaved: _save_completion,
    ch.ApiKeyAdded: _adding("row", sql.ADD_API_KEY),
    ch.ApiKeySaved: _save_api_key,
    ch.ContentErased: _erase_content,
    ch.ItemErased: _erase_item,
    ch.SummariesErased: _erase_summaries,
    ch.JournalAdded: _add_journal,
    ch.ResponseDropped: _drop_response,
    ch.TrailAdded: _adding("row", sql.ADD_TRAIL),
    ch.ItemPlaced: _adding("row", sql.ADD_ITEM_PLACE),
}


def writes(changes: tuple[ch.Change, ...]) -> list[Ask]:
    """Return the statements that carry the changes out, in order."""
    asks: list[Ask] = []
    for change in changes:
        _WRITERS[type(change)](change, asks)
    return asks
