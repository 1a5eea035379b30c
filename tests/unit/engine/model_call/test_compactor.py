"""Compaction by the engine: what arrives meanwhile stays, unknown outcomes are one, resets win."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import holdfast
from holdfast.core.compaction.records import SUMMARY_OPENING
from holdfast.core.compaction.token_estimate import BYTES_PER_TOKEN
from holdfast.core.errors import (
    CompactionNotFound,
    HoldfastError,
    ProviderFailure,
    StoreUnavailable,
)
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.model.items import message
from holdfast.core.transaction.commands import Command, Compact
from holdfast.engine.model_call.model_limits import ModelLimits
from holdfast.engine.settings import ContextSettings
from holdfast.ports.provider import ModelCall
from holdfast.ports.store import Store
from tests.in_process import Item, RunningGateway, ScriptedModel, open_gateway, text_of

LONG = "word " * 200
ELIDE = ContextSettings(mode="elide", reserve_tokens=100)
BY_MODEL = ContextSettings(mode="model", model="sum", reserve_tokens=100)


class Faulty:
    """A store whose next compaction is answered with an unknown outcome, done or not."""

    def __init__(self, store: Store, *, is_done: bool) -> None:
        self._store = store
        self._is_done = is_done
        self.left = 1
        self.seen: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Command[Any]) -> Any:
        """Carry a command out, or say that it is not known whether it was."""
        if isinstance(command, Compact):
            self.seen.append(command.again)
            if self.left:
                self.left -= 1
                if self._is_done:
                    await self._store.submit(command)
                raise StoreUnavailable("nobody knows")
        return await self._store.submit(command)


async def talk(gateway: RunningGateway, turns: int) -> None:
    for number in range(turns):
        answer = await gateway.respond(f"turn {number} {LONG}")
        assert answer.status_code == 200, answer.text


async def compactions(gateway: RunningGateway) -> list[Item]:
    [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
    listed = await gateway.client.get(f"/v1/sessions/{session['id']}/compactions")
    found: list[Item] = listed.json()["data"]
    return found


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_compaction_whose_outcome_is_unknown_is_asked_about_and_made_once(
    is_done: bool,
) -> None:
    stores: list[Faulty] = []

    def wrap(store: Store) -> Any:
        stores.append(Faulty(store, is_done=is_done))
        return stores[0]

    async with open_gateway(context=ELIDE, window=1000, wrap=wrap) as gateway:
        await talk(gateway, 2)
        assert stores[0].seen[:2] == [False, True]
        assert len(await compactions(gateway)) == stores[0].seen.count(False)
        view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
        assert view is not None
        records = await gateway.engine.read.records(view.session)
        assert len({(record.kind, record.body) for record in records}) == len(records)


async def test_f68_what_arrives_while_a_summary_is_made_is_shown_word_for_word() -> None:
    held = asyncio.Event()
    model = ScriptedModel()
    async with open_gateway(model, context=BY_MODEL, window=1000) as gateway:
        answer, is_asked = model.answer, asyncio.Event()

        async def slow(call: ModelCall) -> Any:
            if call.model == "sum":
                is_asked.set()
                await held.wait()
            return await answer(call)

        model.answer = slow  # type: ignore[method-assign]  # a model that can be held
        await gateway.respond(f"first {LONG}")
        running = asyncio.create_task(gateway.respond(f"second {LONG}"))
        await is_asked.wait()
        waiting = asyncio.create_task(gateway.respond("third, while they sum up"))
        await gateway.until_queued(1)
        held.set()
        assert (await running).status_code == (await waiting).status_code == 200
        assert model.shown[-1][-1] == "third, while they sum up"
        assert await gateway.log() != model.shown[-1]
        assert [text for text in await gateway.log() if text.startswith("third")]


async def test_f69_a_reset_while_a_summary_is_made_wins_and_nothing_is_recorded() -> None:
    held, is_asked = asyncio.Event(), asyncio.Event()
    model = ScriptedModel()
    async with open_gateway(model, context=BY_MODEL, window=1000) as gateway:
        answer = model.answer

        async def slow(call: ModelCall) -> Any:
            if call.model == "sum":
                is_asked.set()
                await held.wait()
            return await answer(call)

        model.answer = slow  # type: ignore[method-assign]  # a model that can be held
        await gateway.respond(f"first {LONG}")
        [old] = (await gateway.client.get("/v1/sessions")).json()["data"]
        running = asyncio.create_task(gateway.respond(f"second {LONG}"))
        await is_asked.wait()
        await gateway.client.post(f"/v1/sessions/{old['id']}/reset")
        held.set()
        assert (await running).json()["error"]["code"] == "turn_cancelled"
        listed = await gateway.client.get(f"/v1/sessions/{old['id']}/compactions")
        assert listed.json()["data"] == []
        assert (await gateway.respond("fresh")).status_code == 200
        assert model.shown[-1] == ["fresh"]


async def _reset(gateway: RunningGateway, session_id: str) -> None:
    await gateway.client.post(f"/v1/sessions/{session_id}/reset")


async def _delete(gateway: RunningGateway, session_id: str) -> None:
    await gateway.client.delete(f"/v1/sessions/{session_id}")


async def _interrupt(gateway: RunningGateway, session_id: str) -> None:
    headers = {"X-On-Busy": "interrupt", "X-Session-Id": session_id}
    answer = await gateway.respond("out of the way", None, headers=headers)
    assert answer.status_code == 200, answer.text


async def _cancel(gateway: RunningGateway, session_id: str) -> None:
    shown = (await gateway.client.get(f"/v1/sessions/{session_id}")).json()
    await gateway.client.post(f"/v1/turns/{shown['active_turn_id']}/cancel")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (_reset, (409, "turn_cancelled")),
        (_interrupt, (409, "turn_cancelled")),
        (_cancel, (409, "turn_cancelled")),
        (_delete, (404, "session_deleted")),
    ],
    ids=["reset", "interrupt", "cancel", "delete"],
)
async def test_f69_a_compaction_that_is_called_off_says_so_at_once_and_leaves_its_model(
    end: Callable[[RunningGateway, str], Awaitable[None]], said: tuple[int, str]
) -> None:
    is_asked, is_left = asyncio.Event(), asyncio.Event()
    model = ScriptedModel()
    async with open_gateway(model, context=BY_MODEL, window=100_000) as gateway:
        answer = model.answer

        async def never(call: ModelCall) -> Any:
            if call.model != "sum":
                return await answer(call)
            is_asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                is_left.set()

        model.answer = never  # type: ignore[method-assign]  # a model that never answers
        await talk(gateway, 3)
        [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
        path = f"/v1/sessions/{session['id']}/compact"
        running = asyncio.create_task(gateway.client.post(path))
        await is_asked.wait()
        await end(gateway, session["id"])
        async with asyncio.timeout(20):
            told = await running
            await is_left.wait()
        assert (told.status_code, told.json()["error"]["code"]) == said
        assert told.headers.get("x-should-retry", "false") == "false"


async def test_f69_nothing_is_deleted_and_every_item_stays_listed() -> None:
    async with open_gateway(context=ELIDE, window=1000) as gateway:
        await talk(gateway, 6)
        assert len(await compactions(gateway)) >= 2
        assert [text.split()[0] for text in await gateway.log()] == ["turn", "re:turn"] * 6
        assert await gateway.log(view="log") == await gateway.log()


@asynccontextmanager
async def a_session() -> AsyncIterator[holdfast.SessionHandle]:
    async with holdfast.open("memory:") as hf:
        session = await hf.session("k")
        for number in range(4):
            async with session.turn(f"question {number} {LONG}") as turn:
                turn.add(f"answer {number} {LONG}")
        yield session


async def test_the_python_api_compacts_by_rule_lists_and_undoes() -> None:
    async with a_session() as session:
        assert await session.compact() is True
        [made] = await session.compactions()
        assert (made.status, made.to_seq) == ("in_force", 8)
        async with session.turn("next") as turn:
            shown = [text_of(item) for item in await turn.context()]
            turn.add("done")
        assert len(shown) == 3
        assert shown[0].startswith("question 0")
        assert "assistant: answer 0" in shown[1]
        assert "[…]" in shown[1]
        await session.undo_compaction(made.id)
        [made] = await session.compactions()
        assert made.status == "undone"
        async with session.turn("more") as turn:
            assert len(await turn.context()) == 11
        with pytest.raises(CompactionNotFound):
            await session.undo_compaction("cmp_unknown")


async def test_the_python_api_compacts_with_a_model_of_the_caller() -> None:
    asked: list[list[Item]] = []

    async def model(items: list[Item]) -> str:
        asked.append(items)
        return "They asked and answered."

    async with a_session() as session:
        assert await session.compact(model) is True
        [items] = asked
        assert items[0]["role"] == "developer"
        assert "assistant: answer 0" in text_of(items[1])
        async with session.turn("next") as turn:
            context = [text_of(item) for item in await turn.context()]
        assert context[1] == SUMMARY_OPENING + "They asked and answered."


async def test_a_session_too_short_to_compact_is_left_as_it_is() -> None:
    async with holdfast.open("memory:") as hf:
        session = await hf.session("k")
        async with session.turn("hi") as turn:
            turn.add("hello")
        assert await session.compact() is False
        assert await session.compactions() == []


def test_what_is_learned_is_bounded_and_each_model_has_its_own() -> None:
    model_limits = ModelLimits(max_models=3)
    for number in range(10):
        call = ModelCall(model=f"m{number}", items=[message("user", "x" * 8000).body])
        model_limits.learn("up", call, 4000)
    assert len(model_limits) == 3
    assert model_limits.of("up", "m9").scale.bytes_per_token < 2.1
    assert model_limits.of("up", "m0").scale.bytes_per_token == BYTES_PER_TOKEN
    assert model_limits.of("other", "m9").scale.bytes_per_token == BYTES_PER_TOKEN


@pytest.mark.parametrize(
    ("words", "window"),
    [
        ("This endpoint's maximum context length is 32768 tokens. However, you requested", 32768),
        ("prompt is too long: 200251 tokens > 200000 maximum", 200000),
        ("Your input exceeds the context window of this model.", 5000),
    ],
)
def test_a_refusal_teaches_where_the_window_ends(words: str, window: int) -> None:
    model_limits = ModelLimits()
    failure = ProviderFailure(words, failure_class="overflow")
    model_limits.rejected("up", "m", failure, 5000)
    assert model_limits.of("up", "m").window == window
    model_limits.rejected("up", "m", ProviderFailure("too long", failure_class="overflow"), 10**6)
    assert model_limits.of("up", "m").window == window


async def test_invalid_context_options_are_rejected_before_anything_is_stored() -> None:
    async with open_gateway() as gateway:
        wrong: list[Item] = [{"truncation": "maybe"}, {"context_management": [{"type": "x"}]}]
        for fields in wrong:
            [field] = fields
            refused = await gateway.respond("hi", **fields)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
        assert (await gateway.client.get("/v1/sessions")).json()["data"] == []


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in (
        {"mode": "sometimes"}, {"threshold": 1.5}, {"target": 0.9}, {"reserve_tokens": -1},
        {"summary_tokens": 1}, {"prompt": " "},
    ):  # fmt: skip
        with pytest.raises(HoldfastError):
            ContextSettings(**wrong)
