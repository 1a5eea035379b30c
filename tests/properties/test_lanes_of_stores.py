"""Whatever happens to sessions, here or elsewhere, upstreams are sent what the log says."""

import random
from pathlib import Path

import pytest

from holdfast.core.model.items import read_item
from holdfast.core.model.request import hash_items
from holdfast.core.model.session import Session
from holdfast.core.projection.project import project
from holdfast.engine.model_call.growing_projection import project_grown
from holdfast.providers.items.replay import Replay
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.items.serialized_input import write_input
from holdfast.providers.openai_chat.input import ChatForm, ChatInputWriter, TranslationCache
from holdfast.testing.store_client import StoreClient
from tests.unit.stores.cache import test_context_cache as contexts

callers = contexts.callers
CHATS = [ChatForm("u"), ChatForm("v", alternates=True)]
REPLAY = Replay(owner=SealOwner("p", "a", "m"))
CALL = b'{"type":"function_call","call_id":"call_%d","name":"f","arguments":"{}"}'
OUTPUT = b'{"type":"function_call_output","call_id":"call_%d","output":"1"}'


async def _use_tools(caller: StoreClient, session: Session, dice: random.Random) -> None:
    number = dice.randrange(6)
    items = [read_item(CALL % number), read_item(OUTPUT % number)]
    run = await caller.start("with tools", session_id=session.id)
    await caller.finish(run, items=items[: dice.randint(1, 2)])


async def _check(caller: StoreClient, session: Session, writer: ChatInputWriter) -> None:
    """Compare what is sent of a session with what is made of the store's rows alone."""
    aside = await caller.read.quarantined(session)
    history = await contexts.as_read(caller, session)
    expected = project(list(history), aside)
    shown, digest = project_grown(await caller.read.context(session), aside)
    assert shown == expected
    assert digest == hash_items(expected)
    assert b"".join(write_input(REPLAY, shown)) == b",".join(REPLAY.items(expected))
    for form in CHATS:
        afresh = ChatInputWriter(TranslationCache()).write(expected, form)
        assert b"".join(writer.write(shown, form).pieces) == b"".join(afresh.pieces)


@pytest.mark.parametrize("seed", range(16))
async def test_what_is_sent_is_always_what_the_store_has(
    callers: tuple[StoreClient, StoreClient], seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    writers = [ChatInputWriter(TranslationCache()) for _ in callers]
    known = [(await callers[0].reserve("k")).id]
    for _ in range(40):
        doer = dice.choice(callers)
        session = await doer.session(dice.choice(known))
        if dice.random() < 0.25:
            await _use_tools(doer, session, dice)
        else:
            made = await contexts._step(doer, session, dice)
            if made is not None:
                known.append(made)
        for caller, writer in zip(callers, writers, strict=True):
            for session_id in dice.sample(known, min(len(known), 3)):
                await _check(caller, await caller.session(session_id), writer)
