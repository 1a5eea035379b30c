"""The outbox, bursts, pairings and receivers: what channels need from every store."""

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.core.errors import IdempotencyMismatch, RunFenced
from holdfast.core.ids import DEFAULT_TENANT, Key, Tenant, TurnId
from holdfast.core.model.delivery import APPROVAL_ENDED, Delivery, Fact, OutboxFile, OutboxRow
from holdfast.core.model.items import write_item
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.commands import Queued, Started
from holdfast.core.transaction.outgoing import WITHDRAWN
from holdfast.ports.outbox import OutboxQuery
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import LEASE_SECONDS, StoreClient, answered
from holdfast.testing.store_contract.channels.commands import (
    CHANNEL,
    chat_request,
    claim,
    edit,
    facts,
    queue,
    settle,
    start_from_chat,
    to_chat,
)
from holdfast.testing.store_contract.lanes import call, output

_STOP = cmd.StopTurns(
    tenant=DEFAULT_TENANT, key=Key("k"), record_id=TurnId("rec_1"), idempotency_key="s"
)


async def _states(caller: StoreClient) -> list[str]:
    rows = await caller.store.channels.messages(None, OutboxQuery(limit=100))
    return [f"{row.text}:{row.state}" for row in reversed(rows)]


async def _placeholder(caller: StoreClient, run: Started) -> OutboxRow:
    delivery = Delivery(channel=CHANNEL, chat="7")
    return await caller.submit(
        cmd.OpenPlaceholder(
            fence=run.fence, worker=caller.worker, delivery=delivery, step=run.turn.step
        )
    )


class OutboxContract:
    """A message is sent at least once, in order, and never silently dropped."""

    async def test_an_answer_and_its_messages_are_one_commit(self, caller: StoreClient) -> None:
        run = await start_from_chat(caller, "a")
        assert await claim(caller) == ()
        await caller.finish(run, "b", outbox=to_chat("b1", "b2"))
        (row,) = await claim(caller)
        assert (row.text, row.source, row.part, row.state) == ("b1", run.turn.id, 0, "sending")

    async def test_an_erased_answer_is_sent_no_more(self, caller: StoreClient) -> None:
        first = await start_from_chat(caller, "a")
        file = OutboxFile(name="x.png", media_type="image/png", content=b"secret")
        parts = (*to_chat("secret", "secret"), replace(to_chat("")[0], file=file))
        await caller.finish(first, "secret", outbox=parts)
        (sending,) = await claim(caller)
        second = await start_from_chat(caller, "b")
        session = (await caller.finish(second, "kept", outbox=to_chat("kept"))).session
        of_hook = [
            Fact(
                source=f"evt_{number}",
                message=replace(to_chat("")[0], chat="hook", text=f'{{"turn_id":"{turn.id}"}}'),
                session_id=session.id,
            )
            for number, turn in enumerate((first.turn, second.turn))
        ]
        await caller.submit(replace(facts(caller, None), facts=tuple(of_hook)))
        for seq in (1, 2):  # the question, and its answer
            erase = cmd.Hide(
                tenant=caller.tenant, session_id=session.id, from_seq=seq, to_seq=seq, erase=True
            )
            await caller.submit(erase)
            if seq == 1:
                assert (await _states(caller))[:2] == ["secret:sending", "secret:pending"]
        found = await _states(caller)
        hooks = [":dropped", f'{{"turn_id":"{second.turn.id}"}}:pending']
        assert found == [":dropped", ":dropped", ":dropped", "kept:pending", *hooks]
        rows = await caller.store.channels.messages(None, OutboxQuery(limit=100))
        assert [await caller.store.channels.file(row.id) for row in rows] == [None] * 6
        await settle(caller, sending, "delayed")
        assert {row.text for row in await claim(caller)} >= {"kept"}
        assert (await _states(caller))[0] == ":dropped"

    async def test_an_approval_request_is_erased_with_its_copies_to_other_approvers(
        self, caller: StoreClient
    ) -> None:
        run, asked = await start_from_chat(caller, "a"), "mcpr_1q"
        item = write_item({"type": "mcp_approval_request", "id": asked, "arguments": "secret"})
        request = replace(to_chat("secret")[0], approval=asked)
        copies = tuple(
            replace(request, chat=str(number), source=f"{asked}_{number}") for number in (8, 9)
        )
        kept = replace(request, text="kept", approval="mcpr_1qq", source="mcpr_1qq_0")
        outbox = (request, *copies, kept)
        ended = await caller.finish(run, items=(item,), pending_calls=(asked,), outbox=outbox)
        erase = cmd.Hide(
            tenant=caller.tenant, session_id=ended.session.id, from_seq=2, to_seq=2, erase=True
        )
        await caller.submit(erase)
        assert await _states(caller) == [":dropped"] * 3 + ["kept:pending"]

    async def test_an_erased_item_with_an_id_of_the_client_takes_no_other_message_with_it(
        self, caller: StoreClient
    ) -> None:
        # A client may give its items any id, also the beginning of ours.
        ids = ("turn", "evt", "mcpr")
        said = [{"type": "message", "role": "user", "id": one, "content": "hi"} for one in ids]
        first = await start_from_chat(caller, "a")
        session = (await caller.finish(first, items=[write_item(one) for one in said])).session
        second = await start_from_chat(caller, "b")
        copy = replace(to_chat("copy")[0], chat="8", approval="mcpr_1", source="mcpr_1_0")
        await caller.finish(second, "kept", outbox=(*to_chat("kept"), copy))
        fact = Fact(
            source="evt_1",
            message=replace(to_chat("fact")[0], chat="hook"),
            session_id=session.id,
        )
        await caller.submit(replace(facts(caller, None), facts=(fact,)))
        for seq in (2, 3, 4):
            erase = cmd.Hide(
                tenant=caller.tenant, session_id=session.id, from_seq=seq, to_seq=seq, erase=True
            )
            await caller.submit(erase)
        assert await _states(caller) == ["kept:pending", "copy:pending", "fact:pending"]

    async def test_a_run_that_lost_its_lane_sends_nothing(self, caller: StoreClient) -> None:
        run = await start_from_chat(caller, "a")
        await caller.reset(run.session)
        with pytest.raises(RunFenced):
            await caller.finish(run, "b", outbox=to_chat("b"))
        assert await claim(caller) == ()

    async def test_the_parts_of_a_conversation_are_sent_one_after_the_other(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        await caller.submit(queue(caller, "a", "b"))
        await caller.submit(queue(caller, "c", chat="8"))
        first, beside = await claim(caller)
        assert [first.text, beside.text] == ["a", "c"]
        assert await claim(other) == (), "the second part waits for the first"
        await settle(caller, first, "sent", external_id="1")
        (second,) = await claim(other)
        assert second.text == "b"

    async def test_one_of_two_workers_gets_a_message(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        for number in range(8):
            await caller.submit(queue(caller, "a", chat=str(number)))
        found = await asyncio.gather(claim(caller), claim(other))
        taken = [row.chat for rows in found for row in rows]
        assert sorted(taken) == [str(number) for number in range(8)]

    async def test_a_placeholder_of_a_dead_worker_may_be_a_duplicate(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock
    ) -> None:
        run = await start_from_chat(caller, "a")
        assert not (await _placeholder(caller, run)).is_maybe_duplicate
        await caller.finish(run, "b", outbox=to_chat("b"))
        clock.advance(LEASE_SECONDS * 2)
        await other.submit(cmd.ExpireWorker(worker=caller.worker))
        (row,) = await claim(other)
        assert (row.external_id, row.is_maybe_duplicate) == (None, True)

    async def test_of_two_followers_one_writes_a_fact(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        await caller.submit(facts(caller, None))
        both = facts(caller, (0, 1), "a"), facts(other, (0, 1), "a")
        written = await asyncio.gather(caller.submit(both[0]), other.submit(both[1]))
        assert sorted(written) == [False, True]
        assert await _states(caller) == ["a:pending"]
        assert await caller.store.channels.cursor("webhooks:t") == (0, 2)

    async def test_nothing_is_said_about_a_session_that_was_erased(
        self, caller: StoreClient
    ) -> None:
        kept, gone = await caller.reserve("kept"), await caller.reserve("gone")
        await caller.submit(facts(caller, None))
        command = facts(caller, (0, 1), "a", "b")
        named = [
            replace(fact, session_id=session.id)
            for fact, session in zip(command.facts, (kept, gone), strict=True)
        ]
        await caller.submit(cmd.Delete(tenant=caller.tenant, session_id=gone.id))
        assert await caller.submit(replace(command, facts=tuple(named)))
        assert await _states(caller) == ["a:pending"]

    async def test_a_text_that_may_be_erased_since_it_was_read_is_not_written(
        self, caller: StoreClient
    ) -> None:
        session = (await caller.converse("question", "answer", key="k")).session
        await caller.submit(facts(caller, None))
        command = facts(caller, (0, 1), "a")
        read = replace(command.facts[0], session_id=session.id, read_at_record=session.record_no)
        erase = cmd.Hide(
            tenant=caller.tenant, session_id=session.id, from_seq=1, to_seq=1, erase=True
        )
        hidden = await caller.submit(erase)
        assert not await caller.submit(replace(command, facts=(read,)))
        read = replace(read, read_at_record=hidden.record_no)
        assert await caller.submit(replace(command, facts=(read,)))
        assert await _states(caller) == ["a:pending"]

    async def test_a_message_of_a_dead_worker_is_sent_again_and_says_so(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock
    ) -> None:
        await caller.submit(queue(caller, "a"))
        await claim(caller)
        assert await claim(other) == (), "its sender lives"
        clock.advance(LEASE_SECONDS + 1)
        assert await claim(other) == (), "its sender may live: the clock may have stepped"
        await other.submit(cmd.ExpireWorker(worker=caller.worker))
        (row,) = await claim(other)
        assert row.is_maybe_duplicate
        assert await settle(caller, row, "sent", external_id="9") is None, "no longer its own"
        done = await settle(other, row, "sent", external_id="9")
        assert done is not None
        assert (done.state, done.is_maybe_duplicate, done.text) == ("sent", True, "")

    async def test_refusals_count_and_outages_do_not(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        await caller.submit(queue(caller, "a", "b"))
        for _ in range(20):
            (row,) = await claim(caller)
            await settle(caller, row, "delayed", delay_seconds=5.0)
            assert await claim(caller) == (), "it is not due yet"
            clock.advance(5.0)
            await caller.submit(cmd.Renew(worker=caller.worker, lease_seconds=LEASE_SECONDS))
        for count in range(1, 4):
            (row,) = await claim(caller)
            saved = await settle(caller, row, "refused", max_refusals=3, delay_seconds=0.0)
            assert saved is not None
            assert saved.refusals == count
        assert await _states(caller) == ["a:dead", "b:dead"], "a dead part ends its answer"

    async def test_what_was_tried_before_goes_behind_what_was_not(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        await caller.submit(queue(caller, "tried", chat="1"))
        (row,) = await claim(caller)
        await settle(caller, row, "delayed", delay_seconds=10.0)
        clock.advance(5.0)
        await caller.submit(queue(caller, "fresh", chat="2"))
        clock.advance(10.0)
        assert [row.text for row in await claim(caller, limit=1)] == ["fresh"]

    async def test_an_old_message_dies_and_can_be_retried_by_hand(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        await caller.submit(queue(caller, "a"))
        await caller.submit(queue(caller, "next"))
        (row,) = await claim(caller)
        clock.advance(7.0)
        await settle(caller, row, "delayed", expire_seconds=5.0)
        assert await _states(caller) == ["a:dead", "next:pending"]
        await caller.submit(cmd.ReviseDelivery(id=row.id, action="retry"))
        (again,) = await claim(caller)
        assert again.id == row.id

    async def test_an_answer_takes_the_place_of_its_placeholder(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await start_from_chat(caller, "a")
        row = await _placeholder(caller, run)
        assert await claim(caller) == (), "nobody sends a placeholder"
        keep = cmd.KeepPlaceholder(id=row.id, worker=caller.worker, external_id="55")
        assert await caller.submit(keep)
        await caller.finish(run, "b", outbox=to_chat("b1", "b2"))
        assert await claim(other) == (), "for a moment it is left to who streamed to it"
        (sent,) = await claim(caller)
        assert (sent.text, sent.external_id, sent.part) == ("b1", "55", 0)
        assert not sent.is_maybe_duplicate

    async def test_a_placeholder_that_may_have_arrived_makes_its_answer_a_doubtful_one(
        self, caller: StoreClient
    ) -> None:
        run = await start_from_chat(caller, "a")
        row = await _placeholder(caller, run)
        keep = cmd.KeepPlaceholder(id=row.id, worker=caller.worker, external_id=None)
        assert await caller.submit(keep)
        await caller.finish(run, "b", outbox=to_chat("b"))
        (sent,) = await claim(caller)
        assert (sent.text, sent.external_id, sent.is_maybe_duplicate) == ("b", None, True)

    async def test_each_step_of_a_turn_sends_messages_of_its_own(self, caller: StoreClient) -> None:
        run = await start_from_chat(caller, "a")
        row = await _placeholder(caller, run)
        keep = cmd.KeepPlaceholder(id=row.id, worker=caller.worker, external_id="55")
        assert await caller.submit(keep)
        text, request = to_chat("so far", "may I?")
        asked = (text, replace(request, approval="call_1"))
        await caller.finish(run, items=(call("call_1"),), pending_calls=("call_1",), outbox=asked)
        joined = await caller.start(key="k", items=[output("call_1", "x")])
        later = await _placeholder(caller, joined)
        assert (later.state, later.external_id) == ("open", None)
        await caller.finish(joined, "b", outbox=to_chat("b"))
        sent: list[tuple[str, str, str | None]] = []
        for _ in range(3):
            (row,) = await claim(caller)
            sent.append((row.text, row.approval, row.external_id))
            await settle(caller, row, "sent", external_id=row.external_id or "56")
        assert sent == [("so far", "", "55"), ("may I?", "call_1", None), ("b", "", None)]

    async def test_a_request_that_ended_is_edited_also_if_it_was_being_sent(
        self, caller: StoreClient
    ) -> None:
        run, asked = await start_from_chat(caller, "a"), "mcpr_1"
        sent, sending = to_chat("may I?")[0], to_chat("may I?", chat="8")[0]
        outbox = tuple(
            replace(message, approval=asked, source=f"mcpr_1_{number}")
            for number, message in enumerate((sent, sending, replace(sent, chat="9")))
        )
        await caller.finish(run, pending_calls=(asked,), outbox=outbox)
        first, second, third = await claim(caller)
        assert first.approval == asked
        kept = await settle(caller, first, "sent", external_id="1")
        assert kept is not None
        assert (kept.state, kept.text) == ("sent", "may I?"), "it will be edited"
        await settle(caller, third, "delayed", delay_seconds=0.0)
        await caller.submit(cmd.Cancel(tenant=caller.tenant, turn_id=run.turn.id, reason="stop"))
        late = await settle(caller, second, "sent", external_id="2")
        assert late is not None
        assert (late.state, late.external_id) == ("pending", "2")
        edited = sorted(await claim(caller), key=lambda row: row.chat)
        assert [(row.external_id, row.approval) for row in edited] == [
            ("1", APPROVAL_ENDED), ("2", APPROVAL_ENDED), (None, APPROVAL_ENDED),
        ]  # fmt: skip
        assert {row.text for row in edited} == {f"may I?\n\n{WITHDRAWN}"}
        for row in edited:
            done = await settle(caller, row, "sent", external_id=row.external_id or "3")
            assert done is not None
            assert (done.state, done.text) == ("sent", "")

    async def test_a_request_that_is_left_is_sent_again_to_every_chat(
        self, caller: StoreClient
    ) -> None:
        run, calls = await start_from_chat(caller, "a"), ("mcpr_1", "mcpr_2")
        request = replace(to_chat("may I?")[0], approval="mcpr_2")
        outbox = (request, replace(request, chat="8", source="mcpr_2_0"))
        await caller.finish(run, items=tuple(map(call, calls)), pending_calls=calls, outbox=outbox)
        for row in await claim(caller):
            await settle(caller, row, "sent", external_id="1")
        joined = await caller.start(key="k", items=[output("mcpr_1", "x")])
        await caller.finish(joined, pending_calls=calls[1:], outbox=outbox)
        again = [(row.chat, row.external_id) for row in await claim(caller)]
        assert sorted(again) == [("7", None), ("8", None)]

    async def test_a_message_with_a_source_of_its_own_ends_nothing_else(
        self, caller: StoreClient
    ) -> None:
        run = await start_from_chat(caller, "a")
        copy = replace(to_chat("copy", chat="8")[0], source="mcpr_1_0")
        await caller.finish(run, "b", outbox=(copy, *to_chat("b1", "b2")))
        rows = {row.text: row for row in await claim(caller)}
        assert (rows["b1"].source, rows["b1"].part) == (run.turn.id, 0)
        await settle(caller, rows["copy"], "impossible")
        await settle(caller, rows["b1"], "sent", external_id="1")
        assert [row.text for row in await claim(caller)] == ["b2"]

    async def test_a_file_is_kept_with_its_message_until_it_was_sent(
        self, caller: StoreClient
    ) -> None:
        run = await start_from_chat(caller, "a")
        content = bytes(range(256)) * 300
        text, message = to_chat("b", "")
        file = OutboxFile(name="a.bin", media_type="application/x-a", content=content)
        await caller.finish(run, "b", outbox=(text, replace(message, file=file)))
        (first,) = await claim(caller)
        assert (first.text, first.file_name) == ("b", "")
        await settle(caller, first, "sent", external_id="1")
        (row,) = await claim(caller)
        assert (row.file_name, row.file_type, row.part) == ("a.bin", "application/x-a", 1)
        assert await caller.store.channels.file(row.id) == content
        await settle(caller, row, "delayed", delay_seconds=0.0)
        (again,) = await claim(caller)
        assert await caller.store.channels.file(again.id) == content
        await settle(caller, again, "sent", external_id="2")
        assert await caller.store.channels.file(row.id) is None

    async def test_a_file_goes_with_its_message(self, caller: StoreClient) -> None:
        run = await start_from_chat(caller, "a")
        file = OutboxFile(name="a", media_type="b/c", content=b"d")
        files = tuple(replace(one, file=file) for one in to_chat("", "", ""))
        await caller.finish(run, "b", outbox=files)
        rows = await caller.store.channels.messages(None, OutboxQuery())
        assert [row.part for row in rows] == [3, 2, 1], "the first part is left to a text"
        await caller.submit(cmd.ReviseDelivery(id=rows[0].id, action="drop"))
        assert await caller.store.channels.file(rows[0].id) is None
        assert await caller.store.channels.file(rows[1].id) == b"d"
        await caller.submit(cmd.Delete(tenant=caller.tenant, session_id=run.session.id))
        assert await caller.store.channels.file(rows[1].id) is None

    async def test_an_answer_of_files_alone_ends_its_placeholder(self, caller: StoreClient) -> None:
        run = await start_from_chat(caller, "a")
        row = await _placeholder(caller, run)
        await caller.submit(cmd.KeepPlaceholder(id=row.id, worker=caller.worker, external_id="55"))
        file = OutboxFile(name="a", media_type="b/c", content=b"d")
        await caller.finish(run, "b", outbox=(replace(to_chat("")[0], file=file),))
        (first,) = await claim(caller)
        assert (first.text, first.external_id, first.file_name) == ("(see below)", "55", "")
        await settle(caller, first, "sent", external_id="55")
        (second,) = await claim(caller)
        assert (second.file_name, second.external_id) == ("a", None)

    async def test_a_text_may_hold_any_character(self, caller: StoreClient) -> None:
        await caller.submit(queue(caller, "a\0b\x01\u2028😀"))
        (row,) = await claim(caller)
        assert row.text == "a\ufffdb\x01\u2028😀"

    async def test_a_key_with_another_body_is_refused(self, caller: StoreClient) -> None:
        first = queue(caller, "a", idempotency_key="k", body_hash=b"1")
        assert await caller.submit(first)
        assert not await caller.submit(replace(first, record_id="rec_other"))
        with pytest.raises(IdempotencyMismatch):
            await caller.submit(replace(first, body_hash=b"2"))

    @pytest.mark.parametrize("how", ["stop", "reset"])
    async def test_a_stopped_turn_leaves_its_partial_text(
        self, caller: StoreClient, how: str
    ) -> None:
        run = await start_from_chat(caller, "a")
        row = await _placeholder(caller, run)
        await caller.submit(cmd.KeepPlaceholder(id=row.id, worker=caller.worker, external_id="55"))
        await caller.submit(cmd.Extend(fence=run.fence, partial=answered("half an ans")))
        if how == "stop":
            assert await caller.submit(_STOP) == 1
        else:
            await caller.reset(run.session)
        (sent,) = await claim(caller)
        assert (sent.text, sent.external_id) == ("half an ans\n\n(stopped)", "55")

    async def test_a_stop_ends_the_turns_that_wait_and_none_that_comes_later(
        self, caller: StoreClient
    ) -> None:
        run = await start_from_chat(caller, "a")
        waiting = await caller.wait("b", key="k", source="channel")
        assert await caller.submit(_STOP) == 2
        later = await start_from_chat(caller, "c")
        assert await caller.submit(_STOP) == 2, "a message that comes twice stops once"
        ends = [
            await caller.read.turn(caller.tenant, turn.id)
            for turn in (run.turn, waiting.turn, later.turn)
        ]
        assert [end and end.status for end in ends] == ["cancelled", "cancelled", "running"]

    async def test_a_reset_withholds_no_part_of_an_answer_that_was_complete(
        self, caller: StoreClient
    ) -> None:
        run = await start_from_chat(caller, "a")
        await caller.finish(run, "b", outbox=to_chat("b1", "b2"))
        await caller.reset(run.session)
        for text in ("b1", "b2"):
            (row,) = await claim(caller)
            assert row.text == text
            await settle(caller, row, "sent", external_id="1")

    async def test_a_failed_turn_is_reported_to_the_person_once(self, caller: StoreClient) -> None:
        run = await start_from_chat(caller, "a")
        await caller.finish(run, outcome="failed", error_code="boom", error_message="x")
        (row,) = await claim(caller)
        assert run.turn.id in row.text
        await settle(caller, row, "sent")
        assert await claim(caller) == ()

    async def test_erasing_a_session_erases_what_was_to_be_sent(self, caller: StoreClient) -> None:
        run = await start_from_chat(caller, "a")
        await caller.finish(run, "b", outbox=to_chat("b"))
        await caller.submit(cmd.Delete(tenant=caller.tenant, session_id=run.session.id))
        assert await _states(caller) == []


class EditContract:
    """An edit replaces a waiting message, and nothing else."""

    async def test_an_edit_replaces_the_input_of_a_waiting_turn_once(
        self, caller: StoreClient
    ) -> None:
        run = await start_from_chat(caller, "a")
        waiting = await caller.wait("b", key="k", source="channel", idempotency_key="m2")
        assert await caller.submit(edit(caller, "c", "m2"))
        assert await caller.submit(edit(caller, "an old delivery", "m2", "e1"))
        await caller.finish(run, "x")
        started = await caller.claim(waiting.turn)
        assert isinstance(started, Started)
        assert await caller.texts(run.session) == ["a", "x", "c"]

    async def test_an_edit_may_name_the_edit_before_it(self, caller: StoreClient) -> None:
        run = await start_from_chat(caller, "a")
        waiting = await caller.wait("b", key="k", source="channel", idempotency_key="m2")
        assert await caller.submit(edit(caller, "c", "m2", "e1"))
        assert await caller.submit(edit(caller, "d", "e1", "e2"))
        assert await caller.submit(edit(caller, "e", "e2", "e3"))
        await caller.finish(run, "x")
        assert isinstance(await caller.claim(waiting.turn), Started)
        assert await caller.texts(run.session) == ["a", "x", "e"]
        assert await caller.submit(edit(caller, "f", "e3", "e4")) is False

    async def test_what_has_begun_or_is_unknown_is_not_changed(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k", source="channel", idempotency_key="m1")
        assert not await caller.submit(edit(caller, "b", "m1"))
        assert not await caller.submit(edit(caller, "b", "unknown", "e2"))
        await caller.finish(run, "x")
        assert not await caller.submit(edit(caller, "b", "m1", "e3"))
        assert await caller.texts(run.session) == ["a", "x"]

    async def test_a_message_is_found_in_its_session(self, caller: StoreClient) -> None:
        run = await caller.start(
            "a", key="k", source="channel", request=chat_request(), idempotency_key="m1"
        )
        await caller.finish(run, "b", outbox=to_chat("b"))
        (row,) = await claim(caller)
        await settle(caller, row, "sent", external_id="55")
        find = caller.store.channels.session_of
        assert await find(caller.tenant, CHANNEL, "7", "55", "none") == run.session.id
        assert await find(caller.tenant, CHANNEL, "8", "55", "none") is None
        assert await find(caller.tenant, CHANNEL, "7", "4", "m1") == run.session.id

    async def test_open_approval_requests_are_found_page_by_page_until_they_are_answered(
        self, caller: StoreClient
    ) -> None:
        sessions = {}
        for number in range(3):
            run, asked = await start_from_chat(caller, "a", key=f"k{number}"), f"mcpr_{number}q"
            sessions[asked] = run.session.id
            request = replace(to_chat("may I?")[0], approval=asked)
            outbox = (*to_chat("so far"), request, replace(request, chat="8", source=asked))
            await caller.finish(run, pending_calls=(asked,), outbox=outbox)
        find = caller.store.channels.open_requests
        first = await find(caller.tenant, CHANNEL, after="", limit=2)
        assert [(one.approval_id, one.session_id) for one in first] == list(sessions.items())[:2]
        (last,) = await find(caller.tenant, CHANNEL, after=first[-1].approval_id, limit=2)
        assert last.approval_id == "mcpr_2q"
        assert await find(caller.tenant, "other", after="", limit=2) == []
        assert await find(Tenant("other"), CHANNEL, after="", limit=2) == []
        await caller.submit(cmd.Cancel(tenant=caller.tenant, turn_id=run.turn.id, reason="stop"))
        left = await find(caller.tenant, CHANNEL, after="", limit=9)
        assert [one.approval_id for one in left] == ["mcpr_0q", "mcpr_1q"]


class BurstContract:
    """Messages are committed at once, and run together."""

    async def _say(self, caller: StoreClient, text: str, sender: str = "1") -> Queued:
        request = chat_request(sender=sender, collect_seconds=1.0)
        return await caller.wait(
            text, key="k", source="channel", request=request, collect_seconds=1.0
        )

    async def test_a_clock_that_is_set_back_does_not_hold_a_burst(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        first = await self._say(caller, "a")
        clock.advance(-86400.0)
        assert isinstance(await caller.claim(first.turn), Started)

    async def test_consecutive_messages_of_one_sender_are_one_turn(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        first = await self._say(caller, "a")
        clock.advance(0.5)
        second = await self._say(caller, "b")
        third = await self._say(caller, "x", sender="2")
        clock.advance(0.7)
        waits = await caller.claim(first.turn)
        assert isinstance(waits, Queued), "the second message began a new pause"
        clock.advance(0.4)
        run = await caller.claim(first.turn)
        assert isinstance(run, Started)
        assert await caller.texts(run.session) == ["a", "b"]
        merged = await caller.read.turn(caller.tenant, second.turn.id)
        assert merged is not None
        assert (merged.status, merged.turn.merged_into) == ("completed", first.turn.id)
        await caller.finish(run, "answer")
        last = await caller.claim(third.turn)
        assert isinstance(last, Started)
        assert await caller.texts(last.session) == ["a", "b", "answer", "x"]

    async def test_somebody_who_keeps_writing_is_answered_all_the_same(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        first = await self._say(caller, "0")
        for number in range(1, 14):
            clock.advance(0.8)
            await caller.submit(cmd.Renew(worker=caller.worker, lease_seconds=LEASE_SECONDS))
            await self._say(caller, str(number))
        assert isinstance(await caller.claim(first.turn), Started)
