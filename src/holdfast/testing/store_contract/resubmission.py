"""Every command may be submitted twice, because the outcome of a commit can be unknown."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from holdfast.core.compaction.records import CompactionRecord, Elision
from holdfast.core.healing.policy import Heal
from holdfast.core.ids import Key, RunId, SessionId, TurnId
from holdfast.core.model.import_rows import ImportedTurn
from holdfast.core.model.session import ProviderState, Usage
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.commands import Command, JournalEntry, StoredCompletion
from holdfast.testing.clock import ManualClock
from holdfast.testing.search_contract import next_backlog, next_usage
from holdfast.testing.store_client import LEASE_SECONDS, StoreClient, answered, said
from holdfast.testing.store_contract.channels.commands import (
    CHANNEL_PREPARATIONS,
    channel_picture,
)
from holdfast.testing.store_contract.channels.schedules import (
    SCHEDULE_PREPARATIONS,
    schedule_picture,
)
from holdfast.testing.store_contract.lanes import ask_the_client, call, output
from holdfast.testing.store_contract.transcript import assert_sound, picture

Prepare = Callable[[StoreClient, ManualClock], Awaitable[Command[Any]]]


async def _accept_new(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return caller.arrival("a", key="new")


async def _accept_keyless(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return caller.arrival("a")


async def _accept_known(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.converse("a", "b", key="k")
    return caller.arrival("c", key="k")


async def _accept_queued(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.start("a", key="k")
    return caller.arrival("c", key="k")


async def _accept_cutting_in(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.start("a", key="k")
    return caller.arrival("c", key="k", on_busy="rollback")


async def _accept_with_key(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return caller.arrival("a", key="k", idempotency_key="once", body_hash=b"x")


async def _accept_joining(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await ask_the_client(caller, "call_1")
    return caller.arrival(key="k", items=[output("call_1", "x")])


async def _accept_internal(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.converse("a", "b", key="k")
    return caller.arrival("c", key="k", is_internal=True)


async def _accept_resuming(caller: StoreClient, _: ManualClock) -> Command[Any]:
    once: dict[str, Any] = {"key": "k", "idempotency_key": "once", "body_hash": b"x"}
    run = await caller.start("a", **once)
    await caller.finish(run, outcome="interrupted", is_retryable=True)
    return caller.arrival("a", **once)


async def _import(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.converse("a", "b", key="k")
    past = ImportedTurn(items=(*said("c"), *answered("d")))
    return cmd.Import(
        tenant=caller.tenant, session_id=SessionId(caller.ids.new("ses")), key=Key("k"),
        turns=(past,), hidden=((1, 1),),
    )  # fmt: skip


async def _claim(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await caller.start("a", key="k")
    waiting = await caller.wait("b", key="k")
    await caller.finish(run)
    return cmd.Claim(
        turn_id=waiting.turn.id, run_id=RunId(caller.ids.new("run")), worker=caller.worker
    )


async def _extend(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await caller.start("a", key="k")
    return cmd.Extend(
        fence=run.fence,
        after_seq=run.session.head_seq,
        items=answered("b", "c"),
        partial=answered("torn"),
        journal=JournalEntry(first=0, last=1, body=b"events"),
    )


async def _finish(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await caller.start("a", key="k")
    return cmd.Finish(
        fence=run.fence,
        outcome="completed",
        items=answered("b"),
        usage=Usage(input_tokens=3, output_tokens=4),
        provider_state=ProviderState("p", "a", "m", b"v"),
        result=b"{}",
    )


async def _finish_holding(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await caller.start("a", key="k")
    return cmd.Finish(
        fence=run.fence, outcome="completed", items=(call("call_1"),), pending_calls=("call_1",)
    )


async def _cancel(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await caller.start("a", key="k")
    return cmd.Cancel(tenant=caller.tenant, turn_id=run.turn.id)


async def _reset(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await caller.start("a", key="k")
    return cmd.Reset(
        tenant=caller.tenant, session_id=run.session.id, new_id=SessionId(caller.ids.new("ses"))
    )


async def _restore(caller: StoreClient, _: ManualClock) -> Command[Any]:
    session = await caller.reserve("k")
    await caller.reset(session)
    return cmd.Restore(tenant=caller.tenant, session_id=session.id)


async def _delete(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await caller.start("a", key="k")
    return cmd.Delete(tenant=caller.tenant, session_id=run.session.id)


async def _fork(caller: StoreClient, _: ManualClock) -> Command[Any]:
    ended = await caller.converse("a", "b", key="k")
    return cmd.Fork(
        tenant=caller.tenant,
        session_id=ended.session.id,
        new_id=SessionId(caller.ids.new("ses")),
    )


async def _append(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return cmd.Append(
        tenant=caller.tenant,
        turn_id=TurnId(caller.ids.new("turn")),
        worker=caller.worker,
        candidate_id=SessionId(caller.ids.new("ses")),
        items=said("a", "b"),
    )


async def _reserve(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return cmd.Reserve(tenant=caller.tenant, candidate_id=SessionId(caller.ids.new("ses")))


async def _continue_first(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return caller.part("A", 0, "a")


async def _continue_at_head(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(caller.part("A", 0, "a"))
    return caller.part("A", 1, "b")


async def _continue_moving(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(caller.part("A", 0, "a"))
    await caller.submit(caller.part("B", 0, "b"))
    return caller.part("A", 1, "c")


async def _continue_replacing(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(caller.part("A", 0, "a"))
    return caller.part("B", 0, "b", replaces_upto=1)


async def _continue_retired(caller: StoreClient, _: ManualClock) -> Command[Any]:
    old = (await caller.submit(caller.part("A", 0, "a"))).session
    await caller.reset(old)
    return caller.part("A", 1, "b")


async def _pop(caller: StoreClient, _: ManualClock) -> Command[Any]:
    session = (await caller.append(*"abc", key="k")).session
    return cmd.Pop(tenant=caller.tenant, session_id=session.id, pop_id="pop_1")


async def _hide(caller: StoreClient, _: ManualClock) -> Command[Any]:
    session = (await caller.append(*"abc", key="k")).session
    return cmd.Hide(tenant=caller.tenant, session_id=session.id, from_seq=2, to_seq=3, erase=True)


async def _annotate(caller: StoreClient, _: ManualClock) -> Command[Any]:
    session = await caller.reserve("k")
    return cmd.Annotate(tenant=caller.tenant, session_id=session.id, metadata=b'{"a":"b"}')


async def _forget_state(caller: StoreClient, _: ManualClock) -> Command[Any]:
    state = ProviderState("p", "a", "m", b"v")
    run = await caller.start("a", key="k")
    await caller.finish(run, "b", provider_state=state)
    return cmd.ForgetState(tenant=caller.tenant, session_id=run.session.id)


async def _record_heal(caller: StoreClient, _: ManualClock) -> Command[Any]:
    state = ProviderState("p", "a", "m", b"v")
    await caller.finish(await caller.start("a", key="k"), "b", provider_state=state)
    run = await caller.start("c", key="k")
    heal = Heal(failure_class="stale_state", action="dropped_state")
    return cmd.RecordHeal(fence=run.fence, number=0, heal=heal, drops_state=True)


async def _compact(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.append(*"abc", key="k")
    run = await caller.start("d", key="k")
    made = CompactionRecord(
        id="cmp_1", mode="model", reason="budget", text="abc", tokens_before=9, tokens_after=3,
        usage=Usage(input_tokens=9, output_tokens=3),
    )  # fmt: skip
    short = Elision(id="cmp_1", reason="budget", cuts=((4, 0),))
    return cmd.Compact(fence=run.fence, to_seq=3, compaction=made, elision=short)


async def _undo_compaction(caller: StoreClient, clock: ManualClock) -> Command[Any]:
    command = await _compact(caller, clock)
    session = await caller.submit(command)
    return cmd.UndoCompaction(tenant=caller.tenant, session_id=session.id, compaction_id="cmp_1")


async def _mark_delivered(caller: StoreClient, _: ManualClock) -> Command[Any]:
    ended = await caller.converse("a", "b", key="k")
    return cmd.MarkDelivered(steps=((ended.turn.id, 0),))


async def _request_stop(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await caller.start("a", key="k")
    return cmd.RequestStop(tenant=caller.tenant, turn_id=run.turn.id, code="turn_cancelled")


async def _settle_stop_granted(caller: StoreClient, clock: ManualClock) -> Command[Any]:
    return await _settle_stop(caller, clock, is_granted=True)


async def _settle_stop(
    caller: StoreClient, _: ManualClock, *, is_granted: bool = False
) -> Command[Any]:
    run = await caller.start("a", key="k")
    tenant, turn_id = caller.tenant, run.turn.id
    await caller.submit(cmd.RequestStop(tenant=tenant, turn_id=turn_id, code="c", caller=b"a"))
    return cmd.SettleStop(tenant=tenant, turn_id=turn_id, caller=b"a", is_granted=is_granted)


async def _drop_response(caller: StoreClient, _: ManualClock) -> Command[Any]:
    ended = await caller.converse("a", "b", key="k")
    return cmd.DropResponse(tenant=caller.tenant, turn_id=ended.turn.id, step=0)


async def _annotate_completion(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await caller.start("a", key="k")
    await caller.finish(run, "b", completion=StoredCompletion(model="m", metadata=b"{}"))
    return cmd.AnnotateCompletion(
        tenant=caller.tenant, turn_id=run.turn.id, step=0, metadata=b'{"a":"b"}'
    )


async def _add_api_key(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return cmd.AddApiKey(id="key_1", tenant=caller.tenant, hash=b"hash", name="laptop")


async def _revoke_api_key(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(cmd.AddApiKey(id="key_1", tenant=caller.tenant, hash=b"hash"))
    return cmd.RevokeApiKey(id="key_1")


async def _recover(caller: StoreClient, clock: ManualClock) -> Command[Any]:
    run = await caller.start("a", key="k")
    await caller.wait("b", key="k")
    clock.advance(LEASE_SECONDS + 1)
    return cmd.Recover(session_id=run.session.id, worker=caller.worker)


async def _prune(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.converse("a", "b", key="k")
    return cmd.Prune(worker=caller.worker, older_than_seconds=86_400.0)


async def _index_log(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.converse("a", "b", key="k")
    return await next_backlog(caller)


async def _sum_usage(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.converse("a", "b", key="k")
    return await next_usage(caller)


async def _renew(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return cmd.Renew(worker=caller.worker, lease_seconds=LEASE_SECONDS)


async def _expire_worker(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return cmd.ExpireWorker(worker=caller.worker, drop=True)


PREPARATIONS: dict[str, Prepare] = (
    {
        name.removeprefix("_"): prepare
        for name, prepare in list(globals().items())
        if name.startswith("_") and callable(prepare) and not name.startswith("__")
    }
    | CHANNEL_PREPARATIONS
    | SCHEDULE_PREPARATIONS
)


class ResubmissionContract:
    """After an unknown outcome the same command, sent `again`, returns the first one's answer."""

    @pytest.mark.parametrize("name", PREPARATIONS)
    async def test_a_command_sent_again_is_not_done_twice(
        self, caller: StoreClient, clock: ManualClock, name: str
    ) -> None:
        command = await PREPARATIONS[name](caller, clock)
        first = await caller.submit(command)
        before = await _everything(caller)
        second = await caller.submit(replace(command, again=True))
        assert await _everything(caller) == before
        assert _same(first, second), (first, second)

    @pytest.mark.parametrize("name", PREPARATIONS)
    async def test_a_command_that_was_never_done_is_done_when_sent_again(
        self, caller: StoreClient, clock: ManualClock, name: str
    ) -> None:
        command = await PREPARATIONS[name](caller, clock)
        outcome = await caller.submit(replace(command, again=True))
        before = await _everything(caller)
        assert _same(outcome, await caller.submit(replace(command, again=True)))
        assert await _everything(caller) == before

    def test_every_command_is_tried(self) -> None:
        tried = {name.split("_")[0] for name in PREPARATIONS} | set(PREPARATIONS)
        names = {"AppendBatch": "continue"}
        for command in Command.__subclasses__():
            words = re.findall("[A-Z][a-z]+", command.__name__)
            expected = names.get(command.__name__, "_".join(words).lower())
            assert expected in tried, f"{command.__name__} is not sent again by any test"


async def _everything(caller: StoreClient) -> list[object]:
    """Return the state of every session that a sequential id can name."""
    shown = [await picture(caller, f"ses_{n:06d}") for n in range(1, 8)]
    for one in shown:
        assert_sound(one)
    turns = [f"turn_{n:06d}" for n in range(1, 8)]
    journals = [await caller.read.journal(TurnId(turn), 0, after=-1, limit=100) for turn in turns]
    return [
        shown,
        journals,
        await caller.store.workers(),
        await caller.read.api_keys(),
        await channel_picture(caller),
        await schedule_picture(caller),
    ]


def _same(first: Any, second: Any) -> bool:
    """Whether two answers are equal, except for the mark of a repeat."""
    return bool(_plain(first) == _plain(second))


def _plain(value: Any) -> Any:
    plain = to_builtins(value)
    if isinstance(plain, dict):
        plain.pop("version", None)
        plain.pop("is_repeat", None)
        if isinstance(plain.get("session"), dict):
            plain["session"].pop("version", None)
    return plain
