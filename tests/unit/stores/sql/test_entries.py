"""Entries of the log: what is packed is read again, and places are found by their counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.ids import SessionId, TurnId
from holdfast.core.model.items import StoredItem, message
from holdfast.core.model.records import Record
from holdfast.core.model.turn import Outcome
from holdfast.core.transaction.changes import Entry, Event, LogAppended
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.change_writer import writes
from holdfast.stores.sql.entries import (
    identity_values,
    pack,
    pack_entry,
    pack_head,
    pack_items,
    read_body,
    read_events,
    read_items,
    read_records,
    read_run,
    read_session,
    read_turn,
    session_no,
    unpack_entries,
)
from holdfast.stores.sql.lookups import find_number
from tests.unit.core.builders import NOW, SESSION, TENANT, a_run, a_session, a_started_turn


def an_item(seq: int) -> StoredItem:
    item = message("user", f"item {seq}")
    return StoredItem(
        SESSION, seq, 2, item.kind, f"msg_{seq}", None, item.fingerprint, False, item.body
    )


ID = "ses_" + "0" * 11 + "f" * 20


def test_a_session_is_read_as_it_was_written() -> None:
    session = replace(
        a_session(), version=7, head_seq=4, turn_count=2, event_no=9, epoch=6, record_no=1,
        hidden_count=1, owner="wrk", active_turn_id="t", active_run_id="r", input_tokens=5,
    )  # fmt: skip
    row = (*identity_values(session), 7, 4, 2, 9, None, pack_head(session))
    assert read_session(row) == session


@pytest.mark.parametrize("run_id", ["run_1", "run_2"])
def test_the_holder_of_a_lane_is_read_from_the_turn_of_the_last_entry(run_id: str) -> None:
    session = replace(a_session(), owner="wrk", active_turn_id="turn_1", active_run_id=run_id)
    identity = identity_values(session)
    row = (*identity, session.version, 0, 0, 0, "turn_1", pack_head(session, TurnId("turn_1")))
    read = read_session(row)
    assert (read.active_turn_id, read.active_run_id) == ("turn_1", run_id)
    row = (*identity, session.version, 0, 0, 0, "turn_2", pack_head(session, TurnId("turn_2")))
    assert read_session(row).active_turn_id == "turn_1"


def test_a_turn_and_its_runs_are_read_as_they_were_written() -> None:
    turn = a_started_turn(request=b"{}", error_code="x", delivered_at=NOW, retry_claim=1)
    run = replace(a_run(a_session(), turn), result=b"answer", heals=b"[]")
    body = pack_entry(Entry(turn=turn, runs=[run]))
    row = (turn.session_id, turn.tenant, turn.id, body, b"{}", None, turn.step, NOW, 1)
    assert read_turn(row) == turn
    assert read_run(read_body(body).runs[0], turn.id, turn.session_id) == run


@pytest.mark.parametrize("run_id", ["run_5", "run_6"])
@pytest.mark.parametrize("worker", ["wrk_1", "wrk_2"])
def test_a_run_is_named_by_its_turn_unless_it_is_a_later_one(run_id: str, worker: str) -> None:
    turn = a_started_turn(id="turn_5", owner="wrk_1")
    run = replace(a_run(a_session(), turn), id=run_id, worker=worker)
    body = pack_entry(Entry(turn=turn, runs=[run]))
    assert read_run(read_body(body).runs[0], turn.id, turn.session_id) == run
    assert read_body(body, turn.id).runs[0].id == run_id


def test_the_end_of_a_turn_tells_the_range_of_its_items() -> None:
    turn = a_started_turn(first_seq=3, last_seq=7)
    details = [b'{"first_seq":3,"last_seq":7}', b'{"first_seq":3,"last_seq":8}', b"{}"]
    events = [
        Event(SESSION, 8 + place, TENANT, "turn.completed", turn.id, detail, NOW)
        for place, detail in enumerate(details)
    ]
    body = pack_entry(Entry(turn=turn, events=events))
    assert details[0] not in body
    assert read_events(body, SESSION, TENANT, turn.id, 10, NOW) == events


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("msg_1", b'{"id":"msg_1","type":"message"}'),
        ("msg_1", b'{"id":"msg_12","type":"message"}'),
        ("msg_1", b'{"type":"message","id":"msg_1"}'),
        ('a","b', b'{"id":"a","b":1}'),
        ("caf\u00e9", '{"id":"caf\u00e9"}'.encode()),
        (None, b'{"id":"msg_1"}'),
    ],
)
def test_an_item_keeps_its_id_whatever_its_body_begins_with(name: str | None, body: bytes) -> None:
    item = replace(an_item(4), item_id=name, body=body)
    packed = pack_items([item])
    assert packed is not None
    assert unpack_entries([(4, packed)], SESSION, 4, 4) == [item]


TEXT = 'it\\"s \u00e9'.encode()
QUESTION = b'{"type":"message","role":"user","content":[{"type":"input_text","text":"%b"}]}'
ANSWER = (
    b'{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":'
    b'[{"type":"output_text","text":"%b","annotations":[],"logprobs":[]}]}'
)
UPSTREAM_ANSWER = (
    b'{"id":"msg_1","type":"message","status":"completed","content":[{"type":"output_text",'
    b'"annotations":[],"logprobs":[],"text":"%b"}],"role":"assistant"}'
)
FORMS = [QUESTION, b'{"role":"user","content":"%b"}', ANSWER, UPSTREAM_ANSWER]


def unpacked(item: StoredItem) -> tuple[int, StoredItem]:
    """Return how long an item is when it is packed, and the item as it is read."""
    packed = pack_items([item])
    assert packed is not None
    (read,) = unpack_entries([(item.seq, packed)], SESSION, item.seq, item.seq)
    return len(packed), read


@pytest.mark.parametrize("text", [b"", TEXT])
@pytest.mark.parametrize("form", FORMS)
def test_of_a_usual_message_only_the_text_is_packed(form: bytes, text: bytes) -> None:
    item = replace(an_item(4), item_id="msg_1", body=form % text)
    size, read = unpacked(item)
    assert read == item
    assert size < len(text) + 40


@pytest.mark.parametrize("form", FORMS)
@given(cut=st.integers(0, 60), name=st.sampled_from(["msg_1", "msg_12", None]))
def test_a_body_that_only_begins_or_ends_like_a_usual_message_is_kept(
    form: bytes, cut: int, name: str | None
) -> None:
    whole = form % b""
    for body in (whole[:cut] + whole[cut + 1 :], whole[: len(whole) - cut], whole[cut:]):
        for kind in ("message", "other"):
            item = replace(an_item(4), kind=kind, item_id=name, body=body)
            assert unpacked(item)[1] == item


def test_entries_that_are_read_together_give_the_items_of_a_range_in_order() -> None:
    usual, named = an_item(2), replace(an_item(3), item_id="msg_1", body=ANSWER % TEXT)
    other = replace(an_item(4), kind="other", item_id="x", body=b'{"id":"x","type":"other"}')
    rows = [(2, pack_items([an_item(1), usual])), (4, pack_items([named, other]))]
    assert unpack_entries(rows, SESSION, 1, 4) == [an_item(1), usual, named, other]
    assert unpack_entries(rows, SESSION, 2, 3) == [usual, named]
    assert unpack_entries(rows, SESSION, 5, 9) == []


def test_items_that_were_read_and_changed_are_packed_whole() -> None:
    item = replace(an_item(4), item_id="msg_1", body=ANSWER % TEXT)
    packed = pack_items([item])
    assert packed is not None
    again = pack(read_items(packed))
    assert unpack_entries([(4, again)], SESSION, 4, 4) == [item]


@pytest.mark.parametrize("started_at", [None, NOW, NOW + 1])
@pytest.mark.parametrize("outcome", [None, "completed", "failed"])
def test_times_and_events_are_read_as_they_were_written(
    started_at: float | None, outcome: Outcome | None
) -> None:
    ended_at = None if outcome is None else NOW + 5
    turn = replace(
        a_started_turn(), accepted_at=NOW, started_at=started_at, ended_at=ended_at,
        outcome=outcome,
    )  # fmt: skip
    runs = [
        replace(a_run(a_session(), turn), started_at=started, ended_at=ended)
        for started in (NOW, NOW + 1, NOW + 2)
        for ended in (None, NOW + 4, NOW + 5)
    ]
    events = [
        Event(SESSION, 8 + at, TENANT, kind, turn.id, b"{}", NOW)
        for at, kind in enumerate(["turn.started", "turn.completed", "turn.failed", "turn.step"])
    ]
    body = pack_entry(Entry(turn=turn, runs=runs, events=events))
    row = (turn.session_id, turn.tenant, turn.id, body, b"", None, None, None, None)
    assert read_turn(row) == turn
    states = read_body(body, turn.id).runs
    assert [read_run(state, turn.id, turn.session_id) for state in states] == runs
    assert read_events(body, SESSION, TENANT, turn.id, 11, NOW) == events


def test_an_answer_of_an_earlier_step_counts_as_not_delivered() -> None:
    turn = a_started_turn(step=1)
    body = pack_entry(Entry(turn=turn))
    row = (turn.session_id, turn.tenant, turn.id, body, b"", None, 0, NOW, 3)
    assert (read_turn(row).delivered_at, read_turn(row).retry_claim) == (None, 0)


def test_input_is_kept_by_the_end_of_a_turn_that_never_started() -> None:
    turn = replace(a_started_turn(), input=b"packed", outcome="cancelled")
    body = pack_entry(Entry(turn=turn))
    row = (turn.session_id, turn.tenant, turn.id, body, b"", None, None, None, None)
    assert read_turn(row).input == b"packed"


def test_records_and_events_are_read_as_they_were_written() -> None:
    session = a_session()
    record = Record(session.id, 3, "rewind", 1, 2, None, None, b"why", NOW)
    turn = a_started_turn()
    events = [
        Event(session.id, 8, TENANT, "turn.started", turn.id, b"{}", NOW),
        Event(session.id, 9, TENANT, "items.hidden", None, b'{"a":1}', NOW),
    ]
    body = pack_entry(Entry(turn=turn, records=[record], events=events))
    assert read_records(body, session.id) == [record]
    assert read_events(body, session.id, TENANT, turn.id, 9, NOW) == events


@pytest.mark.parametrize("session_id", [ID, "ses_1", "ses_" + "z" * 31, "s\udcff"])
def test_the_number_of_a_session_fits_a_column_and_does_not_vary(session_id: str) -> None:
    assert 0 <= session_no(session_id) < 2**63
    assert session_no(session_id) == session_no.__wrapped__(session_id)


def test_sessions_that_differ_have_different_numbers() -> None:
    assert len({session_no(f"ses_{n}") for n in range(10_000)}) == 10_000


def test_the_gate_comes_first_and_counts_are_those_up_to_each_entry() -> None:
    before = replace(a_session(), version=4, head_seq=2, turn_count=1, event_no=5)
    turn = a_started_turn()
    items = [an_item(3), an_item(4)]
    event = Event(before.id, 6, TENANT, "turn.started", turn.id, b"{}", NOW)
    entries = (Entry(turn=turn, is_new_turn=True, items=items), Entry(events=[event]))
    after = replace(before, version=6, head_seq=4, turn_count=2, event_no=6)
    asks = writes([LogAppended(after, before, entries)])
    assert [statement.name for statement, _ in asks[:2]] == ["append_entry", "add_entry"]
    assert asks[0][0].is_fenced
    no = session_no(before.id)
    assert [(v[0], v[1], v[5], v[6], v[7]) for _, v in asks[:2]] == [
        (no, 5, 4, 2, 5), (no, 6, 4, 2, 6),
    ]  # fmt: skip
    packed = asks[0][1][11]
    assert unpack_entries([(4, packed)], SessionId(before.id), 4, 9) == items[1:]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_the_entry_that_holds_a_number_is_found(grown: list[int], data: Any) -> None:
    counts = [sum(grown[: n + 1]) for n in range(len(grown))]
    if not counts[-1]:
        return
    target = data.draw(st.integers(1, counts[-1]))
    session = replace(a_session(), version=len(counts), head_seq=counts[-1])
    steps = find_number(session, "seq", target)
    looks = 0
    try:
        statement, (_, n) = next(steps)
        while True:
            assert statement is sql.COUNTS
            looks += 1
            statement, (_, n) = steps.send([(counts[n - 1], 0, 0)])
    except StopIteration as stop:
        found = stop.value
    assert found == next(n for n, count in enumerate(counts, 1) if count >= target)
    assert looks <= 2 * len(counts).bit_length() + 2
