"""Stored hashes of histories: found only if the log still has what they stand for."""

from holdfast.core.history.history_hash import EMPTY_HISTORY, extend_hash
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.model.items import message
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient

QUESTION, ANSWER = message("user", "q"), message("assistant", "a")
SAID = extend_hash(EMPTY_HISTORY, [(QUESTION.fingerprint, None), (ANSWER.fingerprint, None)])


async def _is_found(store: SqlStore) -> list[bool]:
    """Return whether the history is found with its context cached, and without it."""
    cached = await store.read.find_history(DEFAULT_TENANT, [SAID])
    store._transcripts.clear()
    return [cached is not None, await store.read.find_history(DEFAULT_TENANT, [SAID]) is not None]


async def test_a_history_is_found_by_its_hash(store: SqlStore, caller: StoreClient) -> None:
    run = await caller.start(items=[QUESTION])
    await caller.finish(run, items=(ANSWER,), history_hash=SAID)
    await caller.converse("more", "words", session_id=run.session.id)
    assert await _is_found(store) == [True, True]


async def test_a_history_that_others_wrote_into_is_not_found_by_its_hash(
    store: SqlStore, caller: StoreClient
) -> None:
    run = await caller.start(items=[QUESTION])
    await caller.extend(run, "words of another client")
    await caller.finish(run, items=(ANSWER,), history_hash=SAID)
    assert await _is_found(store) == [False, False]
