"""Transcripts: unchanged bytes, sequence numbers without gaps, a log that only grows."""

import asyncio
from typing import Any

import pytest

from holdfast.core.errors import ItemNotFound, SessionBusy
from holdfast.core.ids import SessionId
from holdfast.core.model.items import ERASED_ITEM, read_item
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Fork, Hide
from holdfast.ports.store import ItemQuery
from holdfast.testing.store_client import StoreClient

ODD_BODIES = (
    b'{"type":"message","role":"user","content":"plain"}',
    b'{ "role" : "user",\n  "content" : [ ] }',
    b'{"type":"holodeck_call","call_id":"c","payload":{"n":1e400,"x":[null,{}]}}',
    '{"type":"message","role":"user","content":"å \\u0000 \\ud83e\\udd9e 🦞"}'.encode(),
    b'{"type":"reasoning","id":"rs_1","encrypted_content":"gAAAA==","summary":[]}',
    b'{"type":"x","number":12345678901234567890123456789,"number":0.1}',
)


class TranscriptContract:
    """Promise 8: history only grows."""

    async def test_items_are_kept_byte_for_byte(self, caller: StoreClient) -> None:
        bodies = [*ODD_BODIES, b'{"type":"big","data":"' + b"x" * 300_000 + b'"}']
        run = await caller.start(key="k", items=[read_item(body) for body in bodies])
        await caller.finish(run, items=tuple(read_item(body) for body in bodies))
        items = await caller.read.items(await caller.session(run.session), ItemQuery())
        assert [item.body for item in items] == bodies * 2

    async def test_a_waiting_turns_items_are_kept_byte_for_byte(self, caller: StoreClient) -> None:
        run = await caller.start("first", key="k")
        waiting = await caller.wait(key="k", items=[read_item(body) for body in ODD_BODIES])
        await caller.finish(run)
        await caller.claim(waiting.turn)
        items = await caller.read.items(await caller.session(run.session), ItemQuery())
        assert [item.body for item in items[1:]] == list(ODD_BODIES)

    async def test_sequence_numbers_have_no_gaps_and_turns_are_whole_blocks(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", "b", key="k")
        await caller.extend(run, "c")
        await caller.extend(run, "d", "e")
        await caller.finish(run, "f")
        await caller.append("g", "h", key="k")
        await caller.converse("i", "j", key="k")
        assert await caller.texts(run.session) == list("abcdefghij")
        assert_sound(await picture(caller, run.session.id))

    async def test_the_items_of_a_turn_are_the_same_found_by_the_turn_or_by_their_numbers(
        self, caller: StoreClient
    ) -> None:
        await caller.converse("a", "b", key="k")
        run = await caller.start("c", key="k")
        await caller.extend(run, "d", "e")
        await caller.finish(run, "f")
        await caller.converse("g", "h", key="k")
        for after, limit in ((2, 4), (3, 2), (1, 3), (4, None)):
            by_number = await caller.texts(run.session, after=after, limit=limit)
            found = await caller.texts(
                run.session, after=after, limit=limit, view="log", turn_id=run.turn.id
            )
            assert found == by_number, (after, limit)
        fork = Fork(
            tenant=caller.tenant, session_id=run.session.id,
            new_id=SessionId(caller.ids.new("ses")), after_seq=None,
        )  # fmt: skip
        forked = await caller.submit(fork)
        found = await caller.texts(forked, after=2, limit=4, view="log", turn_id=run.turn.id)
        assert found == list("cdef")

    async def test_appends_from_everywhere_at_once_keep_their_blocks(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        await asyncio.gather(
            *(
                one.append(f"{name}{n}a", f"{name}{n}b", key="k")
                for n in range(10)
                for name, one in (("here", caller), ("there", other))
            )
        )
        session = await caller.reserve("k")
        assert_sound(await picture(caller, session.id))
        texts = await caller.texts(session)
        assert len(texts) == 40
        assert all(
            first[:-1] == second[:-1] for first, second in zip(texts[::2], texts[1::2], strict=True)
        )

    async def test_an_append_is_one_completed_turn(self, caller: StoreClient) -> None:
        appended = await caller.append("a", "b", key="k")
        turn = appended.turn
        assert (turn.outcome, turn.first_seq, turn.last_seq) == ("completed", 1, 2)
        assert appended.session.head_seq == 2

    async def test_an_append_does_not_push_in_where_a_turn_runs_or_waits(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        before = await picture(caller, run.session.id)
        with pytest.raises(SessionBusy):
            await caller.append("b", key="k")
        assert await picture(caller, run.session.id) == before

    async def test_pages_can_be_read_from_either_end(self, caller: StoreClient) -> None:
        session = (await caller.append(*"abcdefgh", key="k")).session
        assert await caller.texts(session) == list("abcdefgh")
        assert await caller.texts(session, limit=3) == list("abc")
        assert await caller.texts(session, limit=3, after=3) == list("def")
        assert await caller.texts(session, limit=3, after=6) == list("gh")
        assert await caller.texts(session, limit=3, order="desc") == list("hgf")
        assert await caller.texts(session, limit=3, after=6, order="desc") == list("edc")
        assert await caller.texts(session, after=8) == []
        assert await caller.texts(session, after=1, order="desc") == []
        assert await caller.texts(session, limit=0) == []

    async def test_hidden_items_leave_the_view_and_stay_in_the_log(
        self, caller: StoreClient
    ) -> None:
        session = (await caller.append(*"abcdefgh", key="k")).session
        await _hide(caller, session, 2, 3)
        await _hide(caller, session, 6, 6)
        assert await caller.texts(session) == list("adegh")
        assert await caller.texts(session, view="log") == list("abcdefgh")
        assert await caller.texts(session, limit=2, after=1) == list("de")
        assert await caller.texts(session, limit=3, order="desc") == list("hge")
        now = await caller.session(session)
        assert await caller.read.hidden(now) == [(2, 3), (6, 6)]
        assert [record.kind for record in await caller.read.records(now)] == ["hide", "hide"]
        assert now.item_count == 5
        assert_sound(await picture(caller, session.id))

    async def test_ranges_that_overlap_are_hidden_once(self, caller: StoreClient) -> None:
        session = (await caller.append(*"abcdef", key="k")).session
        await _hide(caller, session, 2, 4)
        await _hide(caller, session, 3, 5)
        assert await caller.texts(session) == list("af")
        assert_sound(await picture(caller, session.id))

    @pytest.mark.parametrize(("first", "last"), [(0, 1), (1, 4), (3, 2), (-1, -1)])
    async def test_what_is_not_there_cannot_be_hidden(
        self, caller: StoreClient, first: int, last: int
    ) -> None:
        session = (await caller.append(*"abc", key="k")).session
        before = await picture(caller, session.id)
        with pytest.raises(ItemNotFound):
            await _hide(caller, session, first, last)
        assert await picture(caller, session.id) == before

    async def test_erasing_blanks_an_item_and_leaves_its_place(self, caller: StoreClient) -> None:
        session = (await caller.append("a", "secret", "c", key="k")).session
        await _hide(caller, session, 2, 2, erase=True)
        now = await caller.session(session)
        log = await caller.read.items(now, ItemQuery(view="log"))
        assert [item.seq for item in log] == [1, 2, 3]
        assert b"secret" not in log[1].body
        assert (log[1].fingerprint, log[1].call_id) == (b"", None)
        assert await caller.texts(session) == ["a", "c"]

    async def test_erasing_a_range_blanks_each_of_its_items(self, caller: StoreClient) -> None:
        session = (await caller.append(*"abcd", key="k")).session
        await _hide(caller, session, 1, 3, erase=True)
        now = await caller.session(session)
        log = await caller.read.items(now, ItemQuery(view="log"))
        assert [item.seq for item in log if item.body == ERASED_ITEM] == [1, 2, 3]

    async def test_a_rewind_hides_what_its_turn_no_longer_wants_when_it_starts(
        self, caller: StoreClient
    ) -> None:
        await caller.converse("a", "b", key="k")
        ended = await caller.converse("c", "d", key="k")
        run = await caller.start("e", key="k", rewind=(2, 4))
        assert await caller.texts(run.session) == ["a", "b", "e"]
        assert await caller.texts(run.session, view="log") == list("abcde")
        assert ended.session.id == run.session.id
        await caller.finish(run, "f")
        assert_sound(await picture(caller, run.session.id))

    async def test_a_rewind_hides_nothing_that_came_after_it_was_asked_for(
        self, caller: StoreClient
    ) -> None:
        await caller.converse("a", "b", key="k")
        run = await caller.start("c", key="k")
        waiting = await caller.wait("e", key="k", rewind=(0, 2))
        await caller.finish(run, "d")
        await caller.claim(waiting.turn)
        assert await caller.texts(run.session) == ["c", "d", "e"]
        assert_sound(await picture(caller, run.session.id))

    async def test_a_session_without_items_reads_as_empty(self, caller: StoreClient) -> None:
        session = await caller.reserve("k")
        assert await caller.texts(session, order="desc", limit=5) == []
        assert await caller.read.hidden(session) == []
        assert await caller.read.records(session) == []


async def _hide(
    caller: StoreClient, session: Session, first: int, last: int, *, erase: bool = False
) -> None:
    await caller.submit(
        Hide(tenant=caller.tenant, session_id=session.id, from_seq=first, to_seq=last, erase=erase)
    )


MANY = 1000


async def picture(caller: StoreClient, session_id: str) -> dict[str, Any]:
    """Return everything readable about one session; an erased one shows nothing."""
    read = caller.read
    view = await read.session(caller.tenant, session_id=SessionId(session_id))
    if view is None:
        return {"session": None}
    session: Session = view.session
    turns = await read.turns(session.id, limit=MANY)
    return {
        "session": session,
        "status": view.status,
        "queued_turns": view.queued_turns,
        "log": await read.items(session, ItemQuery(view="log")),
        "visible": await read.items(session, ItemQuery()),
        "hidden": await read.hidden(session),
        "records": await read.records(session),
        "turns": turns,
        "runs": [run for turn in turns for run in await read.runs(turn.turn.id)],
        "provider_state": await read.provider_state(session.id),
        "events": await read.events(session.id, after=0, limit=MANY),
    }


def without_runs(shown: dict[str, Any]) -> dict[str, Any]:
    """Return a picture without the runs: everything that a fenced run must not change."""
    return {name: value for name, value in shown.items() if name != "runs"}


def assert_sound(shown: dict[str, Any]) -> None:
    """Check what must always hold for every session: numbers without gaps, whole blocks."""
    session = shown["session"]
    if session is None:
        return
    assert [item.seq for item in shown["log"]] == list(range(1, session.head_seq + 1))
    assert len(shown["visible"]) == session.item_count
    assert [view.turn.number for view in shown["turns"]] == list(range(1, session.turn_count + 1))
    assert [event.no for event in shown["events"]] == list(range(1, session.event_no + 1))
    assert [record.no for record in shown["records"]] == list(range(1, session.record_no + 1))
    blocks = [item.turn_number for item in shown["visible"] if item.session_id == session.id]
    seen: list[int] = []
    for number in blocks:
        if not seen or seen[-1] != number:
            assert number not in seen, "the items of two turns interleave"
            seen.append(number)
    epochs = [run.epoch for run in shown["runs"]]
    assert len(epochs) == len(set(epochs))
