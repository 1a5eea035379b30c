"""A process that stops at any write of a turn that compacts: another takes the turn up whole."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import RunFenced
from holdfast.core.transaction.commands import (
    Accept,
    Command,
    Compact,
    ExpireWorker,
    Extend,
    Finish,
    RecordHeal,
)
from holdfast.engine.settings import ContextSettings
from holdfast.ports.store import Store
from tests.in_process import Item, RunningGateway, open_gateway

LONG = "word " * 450
ONCE: dict[str, Any] = {"headers": {"Idempotency-Key": "once"}}
ELIDE = ContextSettings(mode="elide", reserve_tokens=100)
BY_MODEL = ContextSettings(mode="model", reserve_tokens=100)
WINDOW = 1000
WRITES = (Accept, Compact, Extend, Finish, RecordHeal)


class Freezing:
    """A store that stops answering at one write of its turns, before or after it is done."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.stops_at: int | None = None
        self.is_done_first = False
        self.count = 0
        self.stopped = asyncio.Event()
        self.gone = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Command[Any]) -> Any:
        """Carry a command out; from the chosen one on, answer nothing any more."""
        if not isinstance(command, WRITES) or self.stops_at is None:
            return await self._store.submit(command)
        self.count += 1
        if self.count < self.stops_at:
            return await self._store.submit(command)
        if self.count == self.stops_at and self.is_done_first:
            await self._store.submit(command)
        self.stopped.set()
        await self.gone.wait()
        raise RunFenced("this process was taken for dead")


async def fill(gateway: RunningGateway) -> None:
    for number in range(2):
        answer = await gateway.respond(f"turn {number} " + "word " * 50)
        assert answer.status_code == 200, answer.text


async def listed(gateway: RunningGateway) -> tuple[Item, list[Item]]:
    [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
    found = await gateway.client.get(f"/v1/sessions/{session['id']}/compactions")
    return session, found.json()["data"]


async def writes_of_a_turn(folder: Path, context: ContextSettings) -> int:
    """Return how many writes the compacting turn makes."""
    stores: list[Freezing] = []

    def wrap(store: Store) -> Any:
        stores.append(Freezing(store))
        return stores[0]

    url = f"sqlite:///{folder / 'counted.db'}"
    async with open_gateway(context=context, window=WINDOW, store_url=url, wrap=wrap) as gateway:
        await fill(gateway)
        stores[0].stops_at = 1_000
        assert (await gateway.respond(f"now {LONG}", **ONCE)).status_code == 200
        assert len((await listed(gateway))[1]) >= 1
    return stores[0].count


@pytest.mark.parametrize("context", [ELIDE, BY_MODEL], ids=["elide", "model"])
@pytest.mark.parametrize("is_done_first", [False, True])
async def test_a_turn_that_compacts_is_taken_up_wherever_its_process_stopped(
    tmp_path: Path, context: ContextSettings, is_done_first: bool
) -> None:
    total = await writes_of_a_turn(tmp_path, context)
    assert total >= 3
    for place in range(1, total + 1):
        url = f"sqlite:///{tmp_path / f'{place}.db'}"
        await _stop_at(url, place, context, is_done_first=is_done_first)


async def _stop_at(url: str, place: int, context: ContextSettings, *, is_done_first: bool) -> None:
    stores: list[Freezing] = []

    def wrap(store: Store) -> Any:
        stores.append(Freezing(store))
        return stores[0]

    async with (
        open_gateway(context=context, window=WINDOW, store_url=url, wrap=wrap) as first,
        open_gateway(context=context, window=WINDOW, store_url=url) as second,
    ):
        await fill(first)
        store = stores[0]
        store.stops_at, store.is_done_first = place, is_done_first
        lost = asyncio.create_task(first.respond(f"now {LONG}", **ONCE))
        await store.stopped.wait()
        await second.engine.submit(ExpireWorker(worker=first.engine.worker.id))
        answer = await second.respond(f"now {LONG}", **ONCE)
        assert answer.status_code == 200, (place, answer.text)
        session, made = await listed(second)
        assert (session["turn_count"], session["status"]) == (3, "idle")
        seen = [text.split()[0] for text in await second.log()]
        assert seen == ["turn", "re:turn", "turn", "re:turn", "now", "re:now"], place
        assert [one["status"] for one in made].count("in_force") >= 1
        assert all(one["tokens_after"] < one["tokens_before"] for one in made)
        assert (await second.respond("and on")).status_code == 200
        store.gone.set()
        await asyncio.gather(lost, return_exceptions=True)
