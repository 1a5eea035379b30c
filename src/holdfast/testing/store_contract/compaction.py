"""Compaction: records that replace items in the projection; the log stays complete."""

from typing import Any

import msgspec
import pytest

from holdfast.core.compaction.records import SUMMARY_OPENING, CompactionRecord, Elision
from holdfast.core.errors import CompactionNotFound, ItemNotFound, RunFenced, SessionNotFound
from holdfast.core.ids import SessionId
from holdfast.core.model.items import write_item
from holdfast.core.model.session import ProviderState, Session, Usage
from holdfast.core.transaction.commands import Compact, Fork, Hide, Parent, Started, UndoCompaction
from holdfast.testing.store_client import StoreClient, answered, text_of
from holdfast.testing.store_contract.transcript import assert_sound, picture


def compaction(run: Started, to_seq: int, text: str = "sum", **more: Any) -> Compact:
    """Return the command that replaces a log up to an item by a summary."""
    more.setdefault("id", f"cmp_{text}")
    made = CompactionRecord(
        mode="given", reason="asked", text=text, tokens_before=10, tokens_after=1, **more
    )
    return Compact(fence=run.fence, to_seq=to_seq, compaction=made)


async def shown(caller: StoreClient, session: Session | str) -> list[str]:
    """Return what a model would see of a session."""
    items = await caller.read.context(await caller.session(session))
    return [text_of(item).removeprefix(SUMMARY_OPENING) for item in items]


async def compact_up_to(
    caller: StoreClient, key: str, to_seq: int, text: str, **more: Any
) -> Session:
    """Compact a key's session in a turn without input."""
    run = await caller.start(key=key, source="system")
    await caller.submit(compaction(run, to_seq, text, **more))
    return (await caller.finish(run, items=())).session


LONG_OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "beginning" * 40}


async def shorten_an_output(caller: StoreClient) -> Started:
    """Start a turn with a long tool output, and shorten that output."""
    call = write_item({"type": "function_call", "call_id": "c", "name": "f", "arguments": ""})
    run = await caller.start("a", key="k")
    await caller.extend(run, items=(call, write_item(LONG_OUTPUT)))
    cut = Elision(id="cmp_e", reason="budget", cuts=((3, 9),))
    await caller.submit(Compact(fence=run.fence, elision=cut))
    return run


class CompactionContract:
    """Promises 8 and 12: the log only grows, while its visible part shrinks."""

    async def test_a_summary_stands_for_its_range_and_the_log_stays_whole(
        self, caller: StoreClient
    ) -> None:
        await caller.converse("a", "b", key="k")
        await caller.converse("c", "d", key="k")
        session = await compact_up_to(caller, "k", 3, "abc", keeps=(1,), left_out=2)
        assert await shown(caller, session) == ["a", "abc", "d"]
        assert await caller.texts(session) == list("abcd")
        assert (await caller.session(session)).item_count == 4
        [record] = await caller.read.records(await caller.session(session))
        assert (record.kind, record.from_seq, record.to_seq) == ("compaction", 1, 3)
        assert_sound(await picture(caller, session.id))

    async def test_what_arrives_while_a_summary_is_made_is_shown_as_it_is(
        self, caller: StoreClient
    ) -> None:
        await caller.converse("a", "b", key="k")
        run = await caller.start("c", key="k")
        waiting = await caller.wait("e", key="k")
        await caller.submit(compaction(run, 2, "ab"))
        await caller.finish(run, "d")
        started = await caller.claim(waiting.turn)
        assert await shown(caller, started.session) == ["ab", "c", "d", "e"]

    async def test_the_newest_summary_counts_and_goes_on_from_the_one_before(
        self, caller: StoreClient
    ) -> None:
        await caller.append(*"abcdef", key="k")
        await compact_up_to(caller, "k", 2, "1")
        session = await compact_up_to(caller, "k", 4, "2")
        assert await shown(caller, session) == ["2", "e", "f"]
        run = await caller.start(key="k", source="system")
        with pytest.raises(ItemNotFound):
            await caller.submit(compaction(run, 3, "back"))
        with pytest.raises(ItemNotFound):
            await caller.submit(compaction(run, 7, "beyond"))
        assert await shown(caller, session) == ["2", "e", "f"]

    async def test_what_does_not_shrink_is_refused(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        made = CompactionRecord(
            id="x", mode="model", reason="budget", text="longer", tokens_before=5, tokens_after=5
        )
        with pytest.raises(ItemNotFound):
            await caller.submit(Compact(fence=run.fence, to_seq=1, compaction=made))
        with pytest.raises(ItemNotFound):
            await caller.submit(Compact(fence=run.fence))
        assert await shown(caller, run.session) == ["a"]

    async def test_an_elision_shows_an_output_short_and_keeps_its_bytes(
        self, caller: StoreClient
    ) -> None:
        run = await shorten_an_output(caller)
        session = await caller.session(run.session)
        seen = msgspec.json.decode((await caller.read.context(session))[2].body)
        assert seen["output"].startswith("beginning\n[351 bytes")
        assert (seen["type"], seen["call_id"]) == ("function_call_output", "c")
        await caller.submit(_undo(caller, session, "cmp_e"))
        [_, _, whole] = await caller.read.context(await caller.session(session))
        assert msgspec.json.decode(whole.body) == LONG_OUTPUT

    async def test_a_compaction_is_undone_and_the_one_before_counts_again(
        self, caller: StoreClient
    ) -> None:
        await caller.append(*"abcd", key="k")
        await compact_up_to(caller, "k", 2, "1")
        session = await compact_up_to(caller, "k", 3, "2")
        await caller.submit(_undo(caller, session, "cmp_2"))
        assert await shown(caller, session) == ["1", "c", "d"]
        before = await picture(caller, session.id)
        await caller.submit(_undo(caller, session, "cmp_2"))
        assert await picture(caller, session.id) == before
        await caller.submit(_undo(caller, session, "cmp_1"))
        assert await shown(caller, session) == list("abcd")

    async def test_an_unknown_or_foreign_compaction_cannot_be_undone(
        self, caller: StoreClient
    ) -> None:
        await caller.append(*"ab", key="k")
        session = await compact_up_to(caller, "k", 1, "1")
        with pytest.raises(CompactionNotFound):
            await caller.submit(_undo(caller, session, "cmp_9"))
        stranger = StoreClient(caller.store, "x", tenant="other")
        with pytest.raises(SessionNotFound):
            await stranger.submit(_undo(stranger, session, "cmp_1"))
        assert await shown(caller, session) == ["1", "b"]

    async def test_a_summary_of_what_was_hidden_since_is_void(self, caller: StoreClient) -> None:
        await caller.append(*"abcd", key="k")
        await compact_up_to(caller, "k", 1, "1")
        session = await compact_up_to(caller, "k", 3, "123")
        hide = Hide(tenant=caller.tenant, session_id=session.id, from_seq=3, to_seq=3)
        await caller.submit(hide)
        assert await shown(caller, session) == ["1", "b", "d"]
        rewinding = await caller.start("e", key="k", rewind=(0, 4))
        assert await shown(caller, rewinding.session) == ["e"]

    async def test_an_interrupted_turn_without_output_hides_nothing_when_it_is_resumed(
        self, caller: StoreClient
    ) -> None:
        await caller.append(*"ab", key="k")
        once: dict[str, Any] = {"key": "k", "idempotency_key": "i", "source": "system"}
        torn = await caller.start(**once)
        await caller.finish(torn, outcome="interrupted", items=(), is_retryable=True)
        await caller.append(*"cd", key="k")
        session = await compact_up_to(caller, "k", 3, "abc")
        resumed = await caller.start(**once)
        assert resumed.turn.id == torn.turn.id
        assert await shown(caller, resumed.session) == ["abc", "d"]
        [record] = await caller.read.records(await caller.session(session))
        assert record.kind == "compaction"
        await caller.finish(resumed, "e")
        assert await shown(caller, session) == ["abc", "d", "e"]
        assert_sound(await picture(caller, session.id))

    async def test_an_edit_that_hides_nothing_voids_no_summary(self, caller: StoreClient) -> None:
        await caller.append(*"abcd", key="k")
        await compact_up_to(caller, "k", 3, "abc")
        edit = await caller.start("e", key="k", rewind=(2, 2))
        assert await shown(caller, edit.session) == ["abc", "d", "e"]

    async def test_a_summary_of_what_was_erased_is_erased_too(self, caller: StoreClient) -> None:
        await caller.append("a", "secret", "c", key="k")
        session = await compact_up_to(caller, "k", 2, "secret summary")
        fork = await caller.start("d", session_id=session.id, is_internal=True)
        await caller.submit(
            Hide(tenant=caller.tenant, session_id=session.id, from_seq=2, to_seq=2, erase=True)
        )
        [record, _] = await caller.read.records(await caller.session(session))
        assert record.body is None
        assert await shown(caller, session) == ["a", "c"]
        assert await shown(caller, fork.session) == ["a", "c", "d"]

    async def test_a_fork_shows_what_was_compacted_before_it_and_its_own(
        self, caller: StoreClient
    ) -> None:
        ended = await caller.converse("a", "b", key="k")
        await caller.converse("c", "d", key="k")
        session = await compact_up_to(caller, "k", 2, "ab")
        run = await caller.start("e", session_id=session.id, is_internal=True)
        assert await shown(caller, run.session) == ["ab", "c", "d", "e"]
        await caller.submit(compaction(run, 4, "abcd"))
        assert await shown(caller, run.session) == ["abcd", "e"]
        assert await shown(caller, session) == ["ab", "c", "d"]
        assert ended.session.id == session.id

    async def test_a_fork_from_before_a_shortened_output_says_all_of_its_own(
        self, caller: StoreClient
    ) -> None:
        run = await shorten_an_output(caller)
        parent = (await caller.finish(run, "b")).session
        fork = Fork(
            tenant=caller.tenant, session_id=parent.id, new_id=SessionId("ses_f"), after_seq=1
        )
        child = await caller.submit(fork)
        spoken = await caller.start("x", "y", session_id=child.id)
        assert await shown(caller, spoken.session) == ["a", "x", "y"]

    async def test_only_the_run_that_owns_the_lane_compacts(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        await caller.append(*"ab", key="k")
        run = await caller.start("c", key="k")
        await other.reset(run.session)
        before = await picture(caller, run.session.id)
        with pytest.raises(RunFenced):
            await caller.submit(compaction(run, 2))
        assert await shown(caller, run.session) == list("abc")
        after = await picture(caller, run.session.id)
        assert after["records"] == before["records"]

    async def test_a_compaction_sent_again_is_one_compaction(self, caller: StoreClient) -> None:
        await caller.append(*"ab", key="k")
        run = await caller.start("c", key="k")
        command = compaction(run, 2, usage=Usage(input_tokens=5, output_tokens=2))
        await caller.submit(command)
        before = await picture(caller, run.session.id)
        await caller.submit(msgspec.structs.replace(command, again=True))
        assert await picture(caller, run.session.id) == before
        now = await caller.session(run.session)
        assert (now.input_tokens, now.output_tokens) == (5, 2)

    async def test_what_a_provider_remembers_of_the_log_as_it_was_goes(
        self, caller: StoreClient
    ) -> None:
        state = ProviderState("p", "a", "m", b"resp_1")
        run = await caller.start("a", key="k")
        ended = await caller.finish(run, "b", provider_state=state)
        await compact_up_to(caller, "k", 1, "1")
        assert await caller.read.provider_state(ended.session.id) == []
        run = await caller.start("c", key="k")
        await caller.finish(run, provider_state=state, items=answered("d"))
        await caller.submit(_undo(caller, run.session, "cmp_1"))
        assert await caller.read.provider_state(ended.session.id) == []

    async def test_going_on_behind_the_last_answer_is_no_fork_after_a_compaction(
        self, caller: StoreClient
    ) -> None:
        ended = await caller.converse("a", "b", key="k")
        run = ended.run
        session = await compact_up_to(caller, "k", 1, "1")
        parent = Parent(run.last_seq or 0, run.record_no or 0)
        started = await caller.start("c", session_id=session.id, parent=parent)
        assert started.session.id == session.id
        assert await shown(caller, started.session) == ["1", "b", "c"]


def _undo(caller: StoreClient, session: Session, name: str) -> UndoCompaction:
    return UndoCompaction(tenant=caller.tenant, session_id=session.id, compaction_id=name)
