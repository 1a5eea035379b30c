"""The outline of a session: the same from a cached context as from the log."""

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from holdfast.core.ids import DEFAULT_TENANT, Key, SessionId
from holdfast.core.model.items import message, write_item
from holdfast.core.transaction.commands import Fork, Hide
from holdfast.ports.store import Outline
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient

KEY = Key("k")
CALL = write_item({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})
OUTPUT = write_item({"type": "function_call_output", "call_id": "c", "output": "x"})
REASONING = write_item({"type": "reasoning", "summary": []})


async def _cache(store: SqlStore) -> None:
    """Let the store cache the context of the key."""
    session = await store.read.find_session(DEFAULT_TENANT, key=KEY)
    assert session is not None
    await store.read.context(session)


async def _outlines(store: SqlStore, last: int | None) -> tuple[Outline | None, Outline | None]:
    """Return the outline of the key with what is cached, and then without it."""
    cached = await store.read.outline(DEFAULT_TENANT, key=KEY, last=last)
    store._transcripts.clear()
    return cached, await store.read.outline(DEFAULT_TENANT, key=KEY, last=last)


async def _talk(caller: StoreClient) -> None:
    for number in range(3):
        await caller.converse(f"q{number}", f"a{number}", key="k")


async def _use_a_tool(caller: StoreClient) -> None:
    run = await caller.start("q", key="k")
    await caller.extend(run, items=(REASONING, CALL, OUTPUT, message("user", "and another thing")))
    await caller.finish(run, "done")


async def _stop_in_the_middle(caller: StoreClient) -> None:
    run = await caller.start("q", key="k")
    await caller.finish(run, items=(), partial=(message("assistant", "so f"),), outcome="cancelled")


async def _be_running(caller: StoreClient) -> None:
    await caller.start("q", key="k")


async def _hide(caller: StoreClient) -> None:
    ended = await caller.converse("q", "a", key="k")
    seq = ended.session.head_seq
    await caller.submit(
        Hide(tenant=DEFAULT_TENANT, session_id=ended.session.id, from_seq=seq, to_seq=seq)
    )


async def _erase(caller: StoreClient) -> None:
    ended = await caller.converse("q", "a", key="k")
    await caller.submit(
        Hide(
            tenant=DEFAULT_TENANT, session_id=ended.session.id, from_seq=1, to_seq=1, erase=True
        )
    )  # fmt: skip


async def _instruct(caller: StoreClient) -> None:
    instruction = replace(message("system", "be brief"), is_instruction=True)
    run = await caller.start(key="k", items=[instruction, message("user", "q")])
    await caller.finish(run, "a")


Step = Callable[[StoreClient], Awaitable[None]]
STEPS: list[Step] = [_talk, _use_a_tool, _stop_in_the_middle, _be_running, _hide, _erase, _instruct]


@pytest.mark.parametrize("last", [None, 3, 100])
@pytest.mark.parametrize("step", STEPS)
async def test_a_cached_outline_is_what_the_log_has(
    store: SqlStore, caller: StoreClient, step: Step, last: int | None
) -> None:
    await caller.converse("first", "one", key="k")
    await step(caller)
    await _cache(store)
    cached, found = await _outlines(store, last)
    assert found is not None
    assert cached == found


@pytest.mark.parametrize("step", STEPS)
async def test_an_outline_has_what_another_process_wrote(
    store: SqlStore, caller: StoreClient, other: StoreClient, step: Step
) -> None:
    await _talk(caller)
    await _cache(store)
    await step(other)
    cached, found = await _outlines(store, None)
    assert found is not None
    assert cached == found


async def test_an_outline_of_a_plain_session_reads_its_row_alone(
    store: SqlStore, caller: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _talk(caller)
    monkeypatch.setattr(
        "holdfast.stores.sql.record_queries.find_packed", lambda *_: pytest.fail("items were read")
    )
    outline = await store.read.outline(DEFAULT_TENANT, key=KEY)
    assert outline is not None
    assert [entry.seq for entry in outline.entries] == [1, 2, 3, 4, 5, 6]


async def test_a_fork_is_outlined_with_what_it_inherits(
    store: SqlStore, caller: StoreClient
) -> None:
    ended = await caller.converse("q", "a", key="k")
    fork = await caller.submit(
        Fork(
            tenant=DEFAULT_TENANT, session_id=ended.session.id, new_id=SessionId("ses_fork"),
            after_seq=1,
        )
    )  # fmt: skip
    await caller.append("b", session_id=fork.id)
    outline = await store.read.outline(DEFAULT_TENANT, session_id=fork.id)
    assert outline is not None
    assert [entry.seq for entry in outline.entries] == [1, 2]
