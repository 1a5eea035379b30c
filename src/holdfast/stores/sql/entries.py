"""The byte format of log entries: how sessions, turns and runs are packed and read.

A turn is read from its last entry, its request from the entry that accepted it. A session is read
from its identity and the `head` of its last entry. The packed form omits what the entry says
elsewhere. An empty text stands for the id of the entry's own turn, of that turn's first run, of its
owner, for the id that an item's body begins with, and for the event about the turn's state.
`SAME_TIME` stands for a time that equals the turn's own. Of the usual messages only the text is
packed, with the number of the form that surrounds it.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import Any, NamedTuple, get_args

import msgspec

from holdfast.core.ids import RunId, SessionId, Tenant, TurnId, WorkerId, first_run_of
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import HiddenRanges, Record, RecordKind
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Outcome, Run, Source, Turn, WorkerLosses
from holdfast.core.transaction.changes import Entry, Event

SESSION, ACCEPTED, STARTED, STEP, ENDED, ENDED_NEXT = 1, 2, 3, 4, 5, 6
"""Kinds of entries: about no turn, and about a turn in each of its states.

`ENDED_NEXT` ends a turn directly after the entry that started its run. It has no row in the index
by turn: the row of the entry before it leads to both.
"""
ENDS = (ENDED, ENDED_NEXT)
EXPIRED = 0.0
"""In the table of workers: the lease of one that was declared dead; it cannot be renewed."""

SAME_TIME = -1
"""In a packed entry: the turn started when it was accepted, or the run started with its turn."""
pack = msgspec.msgpack.Encoder().encode
"""Encode a value: also bodies and items that were decoded and changed."""


@lru_cache(maxsize=4096)
def session_no(session_id: str) -> int:
    """Return a session's number in the log: 63 bits of its id, or of the id's hash."""
    tail = session_id[-16:]
    if len(session_id) == 35 and tail.isalnum():
        try:
            return int(tail, 16) >> 1
        except ValueError:
            pass
    digest = blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


# ── sessions ────────────────────────────────────────────────────────────────────────────────


class _Head(msgspec.Struct, array_like=True, gc=False):
    epoch: int
    record_no: int
    hidden_count: int
    active_turn_id: TurnId | None
    active_run_id: RunId | None
    owner: WorkerId | None
    hold_until: float | None
    pending_calls: str | None
    last_user_activity_at: float | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    has_failed: bool = False


HEAD_FIELDS = _Head.__struct_fields__
head_values = attrgetter(*HEAD_FIELDS)
head_rest = attrgetter(*HEAD_FIELDS[5:])
_read_head = msgspec.msgpack.Decoder(_Head).decode

IDENTITY = (
    "id", "tenant", "key", "generation", "is_live", "is_visible", "previous_session_id",
    "parent_id", "parent_seq", "parent_record", "created_at", "retired_at", "deleted_at",
    "metadata", "started_by",
)  # fmt: skip
"""The columns of a session's own row."""
identity_values = attrgetter(*IDENTITY)
SESSION_WIDTH = len(IDENTITY) + 6
"""Columns that `read_session` reads: the identity, then n, seq, turns, events, turn and head."""


def pack_head(session: Session, turn_id: TurnId | None = None) -> bytes:
    """Return the part of a session that its last entry stores; `turn_id` is the entry's turn."""
    if turn_id is None or session.active_turn_id != turn_id:
        return pack(head_values(session))
    run_id = session.active_run_id
    return pack(
        (
            session.epoch, session.record_no, session.hidden_count, "",
            "" if run_id == "run" + turn_id.removeprefix("turn") else run_id, *head_rest(session),
        )
    )  # fmt: skip


def read_session(row: Sequence[Any]) -> Session:
    """Return the session of a row: its identity, then n, seq, turns, events, turn and head."""
    (
        session_id, tenant, key, generation, is_live, is_visible, previous, parent_id, parent_seq,
        parent_record, created_at, retired_at, deleted_at, metadata, started_by, n, seq, turns,
        events, turn_id, head,
    ) = row[:SESSION_WIDTH]  # fmt: skip
    kept = _read_head(head)
    if kept.active_turn_id == "":
        kept.active_turn_id = turn_id
        if kept.active_run_id == "":
            kept.active_run_id = first_run_of(turn_id)
    return Session(
        session_id, tenant, key, generation, bool(is_live), bool(is_visible), previous, parent_id,
        parent_seq, parent_record, kept.epoch, n, seq, kept.record_no, events, turns,
        kept.hidden_count, kept.active_turn_id, kept.active_run_id, kept.owner, kept.hold_until,
        kept.pending_calls, created_at, kept.last_user_activity_at, retired_at, deleted_at,
        kept.input_tokens, kept.cached_tokens, kept.output_tokens, kept.reasoning_tokens,
        bytes(metadata), kept.has_failed, started_by,
    )  # fmt: skip


# ── turns and runs ──────────────────────────────────────────────────────────────────────────


class TurnState(msgspec.Struct, array_like=True, gc=False):
    """The state of a turn after one of its entries."""

    number: int
    position: int
    source: Source
    owner: WorkerId
    step: int
    attempts: int
    body_hash: bytes | None
    rewind_after: int | None
    rewind_upto: int | None
    first_seq: int | None
    kept_seq: int | None
    last_seq: int | None
    outcome: Outcome | None
    error_code: str | None
    error_message: str | None
    is_retryable: bool
    accepted_at: float
    started_at: float | None
    ended_at: float | None
    input: bytes | None
    """Set if the turn ended before it started; while it waits, the queue has its input."""
    merged_into: TurnId | None = None
    losses: WorkerLosses | None = None


class RunState(msgspec.Struct, array_like=True, gc=False):
    """The state of a run after one of its entries."""

    id: RunId
    generation: int
    epoch: int
    worker: WorkerId
    step: int
    first_seq: int
    last_seq: int | None
    record_no: int | None
    outcome: Outcome | None
    error_code: str | None
    error_message: str | None
    started_at: float
    ended_at: float | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    result: bytes | None
    heals: bytes | None


class RecordState(msgspec.Struct, array_like=True, gc=False):
    """A record without its session and time, which its entry has."""

    no: int
    kind: RecordKind
    from_seq: int
    to_seq: int
    turn_id: TurnId | None
    undoes: int | None
    body: bytes | None
    created_at: float


class Body(msgspec.Struct, array_like=True, gc=False):
    """The body of an entry. An event says whether it is about the entry's turn."""

    turn: TurnState | None
    runs: list[RunState]
    records: list[RecordState]
    events: list[tuple[str, bool, bytes | None]]
    """Kind, whether it is about the entry's turn, and detail; None means the range of its items.

    An event without a kind is the event of the turn's state.
    """
    hidden: HiddenRanges | None = None


turn_values = attrgetter(*TurnState.__struct_fields__[:-5])
"""The values before the times of its start and end, and its input."""
run_values = attrgetter(*RunState.__struct_fields__[4:11])
run_result = attrgetter(*RunState.__struct_fields__[13:])
_record_values = attrgetter(*RecordState.__struct_fields__)
_decode_body = msgspec.msgpack.Decoder(Body).decode


def pack_entry(entry: Entry) -> bytes:
    """Return the body of an entry."""
    turn = entry.turn
    state: tuple[Any, ...] | None = None
    owner = first_run = detail = began = ended = usual_event = None
    if turn is not None:
        owner, first_run = turn.owner, "run" + turn.id.removeprefix("turn")
        began, ended = turn.started_at, turn.ended_at
        usual_event = _STATE_EVENTS[turn.outcome]
        started = SAME_TIME if began == turn.accepted_at else began
        left_input = turn.input if turn.outcome is not None else None
        state = (*turn_values(turn), started, ended, left_input)
        if turn.losses is not None:
            state = (*state, turn.merged_into, turn.losses)
        elif turn.merged_into is not None:
            state = (*state, turn.merged_into)
        if turn.last_seq is not None and turn.first_seq is not None:
            detail = _ITEM_RANGE % (turn.first_seq, turn.last_seq)
    events: list[tuple[str, bool, bytes | None]] = []
    for event in entry.events:
        kind = "" if event.kind == usual_event else event.kind
        body = None if event.body == detail else event.body
        events += ((kind, event.turn_id is not None, body),)
    runs: list[tuple[Any, ...]] = []
    for run in entry.runs:
        name, worker = "" if run.id == first_run else run.id, run.worker
        worker = WorkerId("") if worker == owner else worker
        start = SAME_TIME if run.started_at == began else run.started_at
        end = SAME_TIME if run.ended_at == ended and ended is not None else run.ended_at
        states = (*run_values(run), start, end, *run_result(run))
        runs += ((name, run.generation, run.epoch, worker, *states),)
    packed = (state, runs, tuple(map(_record_values, entry.records)), events)
    return pack(packed if entry.hidden is None else (*packed, entry.hidden))


_ITEM_RANGE = b'{"first_seq":%d,"last_seq":%d}'


_STATE_EVENTS: dict[Outcome | None, str] = {
    None: "turn.started",
    **{outcome: f"turn.{outcome}" for outcome in get_args(Outcome)},
}
"""The usual event about a turn, by its outcome."""


def read_body(packed: bytes, turn_id: TurnId | None = None) -> Body:
    """Return the body of an entry; without `turn_id`, the first run of the turn has no id."""
    body = _decode_body(packed)
    turn = body.turn
    if turn is None:
        return body
    if turn.started_at == SAME_TIME:
        turn.started_at = turn.accepted_at
    for run in body.runs:
        _complete_run(run, turn, turn_id)
    for place, (kind, is_about, detail) in enumerate(body.events):
        if not kind or detail is None:
            text = detail if detail is not None else _ITEM_RANGE % (turn.first_seq, turn.last_seq)
            body.events[place] = kind or _STATE_EVENTS[turn.outcome], is_about, text
    return body


def _complete_run(run: RunState, turn: TurnState, turn_id: TurnId | None) -> None:
    """Fill in the fields that a packed run inherits from its turn."""
    if not run.worker:
        run.worker = turn.owner
    if not run.id and turn_id is not None:
        run.id = first_run_of(turn_id)
    if run.started_at == SAME_TIME and turn.started_at is not None:
        run.started_at = turn.started_at
    if run.ended_at == SAME_TIME:
        run.ended_at = turn.ended_at


def kind_of(entry: Entry, session: Session, before: Session | None = None) -> int:
    """Return the kind of an entry that leaves the session in this state.

    `before` is the session after the previous entry, if known. While a turn has the lane, the epoch
    is the number of the entry that started its run.
    """
    turn = entry.turn
    if turn is None:
        return SESSION
    if turn.outcome is not None:
        if before is None or before.active_turn_id != turn.id or entry.is_new_turn:
            return ENDED
        return ENDED_NEXT if before.epoch == before.version else ENDED
    if entry.runs and entry.runs[-1].outcome is None and session.active_turn_id == turn.id:
        return STARTED if entry.runs[-1].id == session.active_run_id else STEP
    return ACCEPTED if entry.is_new_turn else STEP


class TurnRow(NamedTuple):
    """The selected columns of a turn: its last entry, its request, and its rows outside the log."""

    session_id: SessionId
    tenant: Tenant
    turn_id: TurnId
    body: bytes
    request: bytes | None
    input: bytes | None
    delivered_step: int | None
    delivered_at: float | None
    retry_claim: int | None


def read_turn(row: Sequence[Any]) -> Turn:
    """Return the turn of a row; a delivery counts only for the step that it was recorded for."""
    turn = TurnRow(*row)
    state = read_body(turn.body).turn
    assert state is not None, f"the last entry of turn {turn.turn_id} has no turn"
    is_current = turn.delivered_step == state.step
    return Turn(
        turn.turn_id, turn.session_id, turn.tenant, state.number, state.position, state.source,
        state.owner, state.step, state.attempts,
        bytes(turn.input) if turn.input is not None else state.input, bytes(turn.request or b""),
        state.body_hash, state.rewind_after, state.rewind_upto, state.first_seq, state.kept_seq,
        state.last_seq, state.outcome, state.error_code, state.error_message, state.is_retryable,
        state.accepted_at, state.started_at, state.ended_at,
        turn.delivered_at if is_current else None,
        (turn.retry_claim or 0) if is_current else 0, state.merged_into, state.losses,
    )  # fmt: skip


def read_run(
    state: RunState,
    turn_id: TurnId,
    session_id: SessionId,
    *,
    partial: bytes | None = None,
    late: bytes | None = None,
) -> Run:
    """Return a run from its state in an entry."""
    return Run(
        state.id or first_run_of(turn_id), turn_id, session_id, state.generation, state.epoch,
        state.worker, state.step,
        state.first_seq, state.last_seq, state.record_no, state.outcome, state.error_code,
        state.error_message, state.started_at, state.ended_at, state.input_tokens,
        state.cached_tokens, state.output_tokens, state.reasoning_tokens, partial, state.result,
        state.heals, late,
    )  # fmt: skip


def read_records(body: bytes, session_id: SessionId) -> list[Record]:
    """Return the records of an entry."""
    return [
        Record(
            session_id, rec.no, rec.kind, rec.from_seq, rec.to_seq, rec.turn_id, rec.undoes,
            rec.body, rec.created_at,
        )
        for rec in read_body(body).records
    ]  # fmt: skip


def read_events(
    body: bytes, session_id: SessionId, tenant: Tenant, turn_id: TurnId | None, last: int, at: float
) -> list[Event]:
    """Return the events of an entry, whose last event has the number `last`."""
    events = read_body(body).events
    first = last - len(events) + 1
    return [
        Event(
            session_id,
            first + index,
            tenant,
            kind,
            turn_id if is_about else None,
            data or b"{}",
            at,
        )
        for index, (kind, is_about, data) in enumerate(events)
    ]


# ── items ───────────────────────────────────────────────────────────────────────────────────


class ItemState(msgspec.Struct, array_like=True, gc=False):
    """An item without the fields that its entry has: session, sequence number and turn."""

    kind: str
    item_id: str | None
    call_id: str | None
    fingerprint: bytes
    is_partial: bool
    body: bytes
    form: int = 0
    """The number of the form that surrounds the packed text; 0 once the item is complete."""


class Items(msgspec.Struct, array_like=True, gc=False):
    """The items of an entry, all of one turn."""

    turn_number: int
    listed: list[ItemState]


_decode_items = msgspec.msgpack.Decoder(Items).decode
_ID_AT = len(b'{"id":"')
"""The offset of the id in a body that begins with it."""
_FORMS = {
    1: (b'{"type":"message","role":"user","content":[{"type":"input_text","text":"', b'"}]}'),
    2: (b'{"role":"user","content":"', b'"}'),
}
"""The JSON around the text of usual messages. Stored entries use these numbers: keep them."""
_ANSWER = b',"type":"message","status":"completed",'
_FORMS_WITH_ID = {
    3: (
        _ANSWER + b'"role":"assistant","content":[{"type":"output_text","text":"',
        b'","annotations":[],"logprobs":[]}]}',
    ),
    4: (
        _ANSWER + b'"content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"',
        b'"}],"role":"assistant"}',
    ),
}
"""The same for bodies that begin with their id: the JSON that follows it."""
_plain_forms = tuple(_FORMS.items())
_forms_with_id = tuple(_FORMS_WITH_ID.items())


def pack_items(items: Sequence[StoredItem]) -> bytes | None:
    """Return the items of an entry as bytes, or None if there are none."""
    if not items:
        return None
    states: list[tuple[Any, ...]] = []
    for item in items:
        kind, name, body = item.kind, item.item_id, item.body
        forms, start, packed_name = _plain_forms, 0, name
        if name is not None and '"' not in name and body.startswith(f'{{"id":"{name}"'.encode()):
            forms, start, packed_name = _forms_with_id, body.index(b'"', _ID_AT) + 1, ""
        rest: tuple[Any, ...] = (item.call_id, item.fingerprint, item.is_partial)
        state: tuple[Any, ...] = (kind, packed_name, *rest, body)
        if kind == "message":
            for form, (before, after) in forms:
                text, end = start + len(before), len(body) - len(after)
                if text <= end and body.startswith(before, start) and body.endswith(after):
                    state = ("", name, *rest, body[text:end], form)
                    break
        states.append(state)
    return pack((items[0].turn_number, states))


def read_items(packed: bytes) -> Items:
    """Return the items of an entry."""
    items = _decode_items(packed)
    for state in items.listed:
        if state.form:
            state.body = _in_form(state.form, state.item_id, state.body)
            state.kind, state.form = "message", 0
        elif state.item_id == "":
            state.item_id = _leading_id(state.body)
    return items


def _in_form(form: int, name: str | None, text: bytes) -> bytes:
    """Rebuild the body of a usual message from its packed text."""
    if form in _FORMS:
        before, after = _FORMS[form]
        return before + text + after
    before, after = _FORMS_WITH_ID[form]
    return b'{"id":"%b"%b%b%b' % ((name or "").encode(), before, text, after)


def _leading_id(body: bytes) -> str:
    return body[_ID_AT : body.index(b'"', _ID_AT)].decode()


def unpack_entries(
    rows: Sequence[Sequence[Any]], session_id: SessionId, from_seq: int, to_seq: int
) -> list[StoredItem]:
    """Return the items of entries that are in a range.

    Each row ends with the number of the entry's last item and its packed items. One loop over all
    rows takes a third of the time of calling `read_items` for each.
    """
    items_found: list[StoredItem] = []
    for row in rows:
        items = _decode_items(row[-1])
        number, seq = items.turn_number, row[-2] - len(items.listed)
        for one in items.listed:
            seq += 1
            if not from_seq <= seq <= to_seq:
                continue
            kind, name, body = one.kind, one.item_id, one.body
            if one.form:
                kind, body = "message", _in_form(one.form, name, body)
            elif name == "":
                name = _leading_id(body)
            items_found += (
                StoredItem(
                    session_id, seq, number, kind, name, one.call_id, one.fingerprint,
                    one.is_partial, body,
                ),
            )  # fmt: skip
    return items_found
