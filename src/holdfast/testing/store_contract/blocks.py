"""Runs that another process executes: whole blocks, stored once, in the session they began in."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.errors import (
    IdempotencyMismatch,
    SessionBusy,
    SessionMoved,
    SessionNotFound,
    TurnNotFound,
)
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.items import ERASED_ITEM
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Appended, Delete, Fork, Hide, Pop, Popped, Reset
from holdfast.ports.store import ItemQuery
from holdfast.testing.store_client import StoreClient, text_of
from holdfast.testing.store_contract.transcript import assert_sound, picture

_LOG = ItemQuery(view="log")


class BlockContract:
    """Promises 3, 4 and 8, for callers that only store what they ran."""

    async def test_batches_of_a_turn_are_one_block(self, caller: StoreClient) -> None:
        first = await _add(caller, "A", 0, "a", "b")
        second = await _add(caller, "A", 1, "c")
        assert await caller.texts(first.session) == ["a", "b", "c"]
        assert second.turn.id == first.turn.id
        assert (second.turn.first_seq, second.turn.last_seq) == (1, 3)
        assert second.turn.outcome == "completed"
        assert_sound(await picture(caller, first.session.id))

    async def test_two_turns_that_cross_read_back_as_whole_blocks(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        await _add(caller, "A", 0, "question A")
        await _add(other, "B", 0, "question B")
        await _add(caller, "A", 1, "call A", "output A")
        await _add(other, "B", 1, "answer B")
        done = await _add(caller, "A", 2, "answer A")
        assert await caller.texts(done.session) == [
            "question B", "answer B", "question A", "call A", "output A", "answer A",
        ]  # fmt: skip
        shown = await picture(caller, done.session.id)
        assert {record.kind for record in shown["records"]} == {"move"}
        assert_sound(shown)

    async def test_many_turns_at_once_stay_whole(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        async def work(one: StoreClient, name: str) -> None:
            for ordinal in range(4):
                await _add(one, name, ordinal, f"{name}{ordinal}")

        await asyncio.gather(
            *(
                work(one, f"{who}{n}")
                for n in range(6)
                for who, one in (("h", caller), ("t", other))
            )
        )
        session = await caller.reserve("k")
        texts = await caller.texts(session)
        assert len(texts) == 48
        for place in range(0, 48, 4):
            name = texts[place][:-1]
            assert texts[place : place + 4] == [f"{name}{n}" for n in range(4)]
        assert_sound(await picture(caller, session.id))

    async def test_the_same_batch_of_a_turn_is_added_once(self, caller: StoreClient) -> None:
        await _add(caller, "A", 0, "yes")
        done = await _add(caller, "A", 1, "ok")
        for ordinal, text in ((0, "yes"), (1, "ok")):
            await _add(caller, "A", ordinal, text, again=True)
        assert await caller.texts(done.session) == ["yes", "ok"]

    async def test_a_real_second_yes_is_kept(self, caller: StoreClient) -> None:
        await _add(caller, "A", 0, "yes")
        done = await _add(caller, "B", 0, "yes")
        assert await caller.texts(done.session) == ["yes", "yes"]

    async def test_a_batch_id_counts_once_and_stands_for_its_items(
        self, caller: StoreClient
    ) -> None:
        done = await _add(caller, "A", 0, "a", idempotency_key="batch", body_hash=b"1")
        repeat = await _add(caller, "B", 0, "a", idempotency_key="batch", body_hash=b"1")
        assert repeat.turn.id == done.turn.id
        with pytest.raises(IdempotencyMismatch):
            await _add(caller, "C", 0, "b", idempotency_key="batch", body_hash=b"2")
        assert await caller.texts(done.session) == ["a"]

    async def test_the_tail_of_a_turn_stays_in_the_generation_it_began_in(
        self, caller: StoreClient
    ) -> None:
        old = (await _add(caller, "A", 0, "question")).session
        new = await caller.reset(old)
        tail = await _add(caller, "A", 1, "answer")
        assert tail.session.id == old.id
        assert await caller.texts(old) == ["question", "answer"]
        assert await caller.texts(new) == []
        assert (await caller.session(new)).version == new.version

    async def test_a_turn_may_begin_in_a_retired_session_that_it_names(
        self, caller: StoreClient
    ) -> None:
        old = await caller.reserve("k")
        new = await caller.reset(old)
        done = await _add(caller, "A", 0, "late", session_id=old.id)
        assert done.session.id == old.id
        assert await caller.texts(new) == []

    async def test_a_turn_with_a_spare_id_continues_at_the_head_and_otherwise_starts_another_turn(
        self, caller: StoreClient
    ) -> None:
        first = await _add(caller, "A", 0, "a")
        known = {"known": first}
        second = await _add(caller, "A", 1, "b", spare_turn_id=TurnId("turn_S1"), **known)
        assert (second.turn.id, second.turn.step) == (first.turn.id, 1)
        await _add(caller, "B", 0, "between")
        known = {"known": second}
        spare = {"spare_turn_id": TurnId("turn_S2"), **known}
        again = await _add(caller, "A", 1, "b", again=True, spare_turn_id=TurnId("turn_S1"))
        assert (again.turn.id, again.turn.step) == (first.turn.id, 1), "it was added in its place"
        third = await _add(caller, "A", 2, "c", **spare)
        assert third.turn.id == "turn_S2"
        again = await _add(caller, "A", 2, "c", again=True, **spare)
        assert again.turn.id == "turn_S2"
        assert await caller.texts(first.session) == ["a", "b", "between", "c"]
        assert_sound(await picture(caller, first.session.id))

    async def test_what_is_known_of_a_turn_counts_only_at_its_version(
        self, caller: StoreClient
    ) -> None:
        first = await _add(caller, "A", 0, "a")
        assert (await caller.session(first.session)).version == first.session.version
        known = {"known": first}
        new = await caller.reset(first.session)
        done = await _add(caller, "A", 1, "b", spare_turn_id=TurnId("turn_S"), **known)
        assert done.session.id == new.id
        assert await caller.texts(first.session) == ["a"]
        tail = await _add(caller, "A", 1, "tail", **known)
        assert tail.session.id == first.session.id
        assert await caller.texts(first.session) == ["a", "tail"]

    async def test_a_turn_that_is_known_from_a_repeat_is_moved_behind_others_whole(
        self, caller: StoreClient
    ) -> None:
        await _add(caller, "A", 0, "a")
        await _add(caller, "B", 0, "b")
        known = await _add(caller, "A", 0, "a", again=True)
        done = await _add(caller, "A", 1, "c", known=known)
        assert await caller.texts(done.session) == ["b", "a", "c"]
        assert_sound(await picture(caller, done.session.id))

    async def test_batches_that_know_the_same_are_both_kept_and_each_once(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        known = await _add(caller, "A", 0, "a")
        apart = [await _add(caller, name, 0, name, key=f"k{name}") for name in "CD"]
        given = [
            (one, caller.part("A", 1, text, known=known, spare_turn_id=TurnId(f"turn_{text}")))
            for one, text in ((caller, "b1"), (caller, "b2"), (other, "b3"))
        ]
        near = [
            (caller, caller.part(name, 1, f"{name}1", key=f"k{name}", known=seen))
            for name, seen in zip("CD", apart, strict=True)
        ]
        await asyncio.gather(*(one.submit(command) for one, command in [*given, *near]))
        await asyncio.gather(*(one.submit(replace(cmd, again=True)) for one, cmd in given[1:]))
        texts = await caller.texts(known.session)
        assert texts[0] == "a"
        assert sorted(texts[1:]) == ["b1", "b2", "b3"]
        assert [await caller.texts(one.session) for one in apart] == [["C", "C1"], ["D", "D1"]]
        for session in (known.session, apart[0].session):
            assert_sound(await picture(caller, session.id))

    async def test_a_batch_that_was_added_before_knows_nothing_of_who_waits_now(
        self, caller: StoreClient
    ) -> None:
        await _add(caller, "A", 0, "a")
        run = await caller.start(key="k")
        known = await _add(caller, "A", 0, "a", again=True)
        assert known.is_repeat
        with pytest.raises(SessionBusy):
            await _add(caller, "A", 1, "b", known=known)
        await caller.finish(run, "answer")
        assert await caller.texts(run.session) == ["a", "answer"]

    async def test_a_batch_does_not_push_in_where_a_run_has_the_lane(
        self, caller: StoreClient
    ) -> None:
        await _add(caller, "A", 0, "question A")
        run = await caller.start("question B", key="k")
        before = await picture(caller, run.session.id)
        with pytest.raises(SessionBusy):
            await _add(caller, "A", 1, "answer A")
        assert await picture(caller, run.session.id) == before
        await caller.finish(run, "answer B")
        await _add(caller, "A", 1, "answer A")
        assert await caller.texts(run.session) == [
            "question B", "answer B", "question A", "answer A",
        ]  # fmt: skip
        assert_sound(await picture(caller, run.session.id))

    async def test_nobody_elses_session_is_continued(self, caller: StoreClient) -> None:
        session = (await _add(caller, "A", 0, "a")).session
        stranger = StoreClient(caller.store, "s", tenant="stranger")
        with pytest.raises(SessionNotFound):
            await _add(stranger, "B", 0, "b", session_id=session.id)
        assert await caller.texts(session) == ["a"]

    async def test_nobody_elses_turn_is_continued(self, caller: StoreClient) -> None:
        await _add(caller, "A", 0, "a")
        session = (await _add(caller, "A", 1, "b")).session
        stranger = StoreClient(caller.store, "s", tenant="stranger")
        for ordinal in (0, 1, 2):
            with pytest.raises(TurnNotFound):
                await _add(stranger, "A", ordinal, "c", again=True)
        with pytest.raises(TurnNotFound):
            await _add(stranger, "A", 1, "c")
        assert await caller.texts(session) == ["a", "b"]

    async def test_a_repeated_batch_of_an_erased_session_is_refused(
        self, caller: StoreClient
    ) -> None:
        session = (await _add(caller, "A", 0, "a")).session
        await caller.submit(Delete(tenant=caller.tenant, session_id=session.id))
        with pytest.raises(SessionNotFound):
            await _add(caller, "A", 0, "a", again=True)
        with pytest.raises(SessionNotFound):
            await _add(caller, "A", 1, "b")

    async def test_items_that_take_the_place_of_others_hide_them(self, caller: StoreClient) -> None:
        session = (await _add(caller, "A", 0, *"abcd")).session
        done = await _add(caller, "B", 0, "summary", replaces_upto=4)
        await _add(caller, "C", 0, "e")
        assert await caller.texts(session) == ["summary", "e"]
        assert await caller.texts(session, view="log") == [*"abcd", "summary", "e"]
        with pytest.raises(SessionMoved):
            await _add(caller, "D", 0, "late", replaces_upto=done.session.head_seq)
        assert_sound(await picture(caller, session.id))

    async def test_a_pop_takes_the_last_item_out_of_the_view_by_a_record(
        self, caller: StoreClient
    ) -> None:
        session = (await _add(caller, "A", 0, *"abc")).session
        assert await _pop(caller, session) == "c"
        assert await _pop(caller, session) == "b"
        assert await caller.texts(session) == ["a"]
        assert await caller.texts(session, view="log") == list("abc")
        await _add(caller, "A", 1, "d")
        assert await caller.texts(session) == ["a", "d"]
        assert [await _pop(caller, session) for _ in range(3)] == ["d", "a", None]
        assert_sound(await picture(caller, session.id))

    async def test_a_pop_that_is_sent_again_takes_one_item(self, caller: StoreClient) -> None:
        session = (await _add(caller, "A", 0, *"abc")).session
        command = Pop(tenant=caller.tenant, session_id=session.id, pop_id="p")
        taken = [
            await caller.submit(command),
            await caller.submit(replace(command, again=True)),
        ]
        assert [_text(popped) for popped in taken] == ["c", "c"]
        assert await caller.texts(session) == ["a", "b"]

    async def test_pops_at_once_take_different_items(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        session = (await _add(caller, "A", 0, *"abcdef")).session
        taken = await asyncio.gather(
            *(_pop(one, session) for one in (caller, other) for _ in range(3))
        )
        assert sorted(str(text) for text in taken) == list("abcdef")
        assert await caller.texts(session) == []

    async def test_a_transcript_is_read_from_its_end(self, caller: StoreClient) -> None:
        assert await caller.read.transcript(caller.tenant, key=Key("k")) is None
        session = (await _add(caller, "A", 0, *"abcdefgh")).session
        await _pop(caller, session)
        await _add(caller, "B", 0, "i")
        assert await _transcript(caller, None) == list("abcdefgi")
        assert await _transcript(caller, 3) == list("fgi")
        assert await _transcript(caller, 1) == ["i"]
        assert await _transcript(caller, 0) == []
        assert await _transcript(caller, 99) == list("abcdefgi")
        stranger = Tenant("stranger")
        assert await caller.read.transcript(stranger, session_id=session.id) is None

    async def test_a_transcript_that_is_read_again_has_what_others_did_meanwhile(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        session = (await _add(caller, "A", 0, *"abc")).session
        assert await _transcript(caller, None) == list("abc")
        await _add(other, "B", 0, "d")
        assert await _transcript(caller, None) == list("abcd")
        assert await _transcript(caller, None) == list("abcd")
        await _pop(other, session)
        await _add(other, "C", 0, "e")
        assert await _transcript(caller, None) == list("abce")
        gone = Hide(
            tenant=caller.tenant, session_id=session.id, from_seq=1, to_seq=1, erase=True
        )  # fmt: skip
        await other.submit(gone)
        assert await _transcript(caller, None) == list("bce")
        await _add(caller, "A", 1, "f")
        assert await _transcript(caller, None) == list("ebcf")
        reset = Reset(tenant=caller.tenant, session_id=session.id, new_id=SessionId("ses_next"))
        await other.submit(reset)
        assert await _transcript(caller, None) == []

    @pytest.mark.parametrize("seq", [1, 5])
    async def test_an_item_that_was_moved_is_erased_wherever_it_was_written(
        self, caller: StoreClient, seq: int
    ) -> None:
        session = (await _add(caller, "A", 0, "secret", "yes")).session
        fork = await caller.submit(
            Fork(tenant=caller.tenant, session_id=session.id, new_id=SessionId("ses_fork"))
        )
        await _add(caller, "B", 0, "b", "secret")
        await _add(caller, "A", 1, "yes")
        assert await caller.texts(session) == ["b", "secret", "secret", "yes", "yes"]
        erase = Hide(
            tenant=caller.tenant, session_id=session.id, from_seq=seq, to_seq=seq, erase=True
        )  # fmt: skip
        await caller.submit(erase)
        assert await caller.texts(session) == ["b", "secret", "yes", "yes"]
        log = await caller.read.items(await caller.session(session), _LOG)
        assert [item.seq for item in log if item.body == ERASED_ITEM] == [1, 5]
        assert await caller.texts(fork) == ["yes"]
        for one in (session, fork):
            assert_sound(await picture(caller, one.id))
        await caller.submit(replace(erase, again=True))
        assert await caller.texts(session) == ["b", "secret", "yes", "yes"]

    async def test_a_text_that_a_moved_turn_has_twice_is_erased_wherever_it_was_written(
        self, caller: StoreClient
    ) -> None:
        session = (await _add(caller, "A", 0, "secret", "secret")).session
        await _add(caller, "B", 0, "b")
        await _add(caller, "A", 1, "yes")
        assert await caller.texts(session) == ["b", "secret", "secret", "yes"]
        await caller.submit(
            Hide(tenant=caller.tenant, session_id=session.id, from_seq=1, to_seq=1, erase=True)
        )
        log = await caller.read.items(await caller.session(session), _LOG)
        assert [item.seq for item in log if item.body == ERASED_ITEM] == [1, 4, 5]

    async def test_a_forks_transcript_has_its_parents_part(self, caller: StoreClient) -> None:
        parent = (await _add(caller, "A", 0, *"abc")).session
        child = await caller.start("d", session_id=parent.id, is_internal=True)
        found = await caller.read.transcript(caller.tenant, session_id=child.session.id)
        assert found is not None
        assert len(_split(found.listed)) == 4


async def _add(caller: StoreClient, name: str, ordinal: int, *texts: str, **more: Any) -> Appended:
    return await caller.submit(caller.part(name, ordinal, *texts, **more))


async def _pop(caller: StoreClient, session: Session) -> str | None:
    pop_id = caller.ids.new("pop")
    return _text(
        await caller.submit(Pop(tenant=caller.tenant, session_id=session.id, pop_id=pop_id))
    )


def _text(popped: Popped) -> str | None:
    return text_of(popped.item) if popped.item is not None else None


async def _transcript(caller: StoreClient, last: int | None) -> list[str]:
    found = await caller.read.transcript(caller.tenant, key=Key("k"), last=last)
    assert found is not None
    log = await caller.read.items(found.session, _LOG)
    said = {item.body: text_of(item) for item in log if item.body != ERASED_ITEM}
    return [said[body] for body in _split(found.listed)]


def _split(listed: bytes) -> list[bytes]:
    return [bytes(one) for one in msgspec.json.decode(listed, type=list[msgspec.Raw])]
