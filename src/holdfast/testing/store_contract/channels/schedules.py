"""Schedules: N workers claim one due time, in the commit that accepts its turn."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.core.decisions.schedules import ScheduleChanged
from holdfast.core.ids import TurnId
from holdfast.core.model.schedule import ScheduleClaim, ScheduleRow, ScheduleSpec, write_spec
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.commands import Accept, Command, Repeated, Started
from holdfast.ports.outbox import OutboxQuery
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from holdfast.testing.store_contract.channels.commands import to_chat

Prepare = Callable[[StoreClient, ManualClock], Awaitable[Command[Any]]]
SPEC = write_spec(ScheduleSpec(name="report", prompt="go", every="10s"))


def save(client: StoreClient, name: str = "report", at: float = 10.0) -> cmd.SaveSchedule:
    """Return the command that creates a schedule."""
    return cmd.SaveSchedule(
        id=client.ids.new("sch"), tenant=client.tenant, name=name, spec=SPEC, next_run_at=at
    )


def due(client: StoreClient, row: ScheduleRow, following: float = 20.0) -> Accept:
    """Return the command that accepts the turn of a due time."""
    assert row.next_run_at is not None
    claim = ScheduleClaim(row.id, row.next_run_at, row.next_run_at, following)
    return client.arrival(
        "go", key=f"cron:report:{row.next_run_at}", source="cron", schedule=claim,
        idempotency_key=f"schedule:{row.id}:{row.next_run_at}",
    )  # fmt: skip


async def _accept_due(client: StoreClient, _: ManualClock) -> Command[Any]:
    return due(client, await client.submit(save(client)))


async def _save_schedule(client: StoreClient, _: ManualClock) -> Command[Any]:
    return save(client)


async def _pause_schedule(client: StoreClient, _: ManualClock) -> Command[Any]:
    await client.submit(save(client))
    return cmd.PauseSchedule(tenant=client.tenant, name="report", is_paused=True)


async def _delete_schedule(client: StoreClient, _: ManualClock) -> Command[Any]:
    await client.submit(save(client))
    return cmd.DeleteSchedule(tenant=client.tenant, name="report")


async def _skip_run(client: StoreClient, _: ManualClock) -> Command[Any]:
    row = await client.submit(save(client))
    return cmd.SkipRun(id=row.id, expected_at=10.0, next_run_at=20.0, reason="busy")


async def _settle_run(client: StoreClient, _: ManualClock) -> Command[Any]:
    row = await client.submit(save(client))
    run = await client.submit(due(client, row))
    return cmd.SettleRun(id=row.id, turn_id=run.turn.id, outcome="failed", reason="boom")


async def _forget_run(client: StoreClient, _: ManualClock) -> Command[Any]:
    row = await client.submit(save(client))
    await client.submit(due(client, row))
    return cmd.ForgetRun(id=row.id, scheduled_at=10.0)


SCHEDULE_PREPARATIONS: dict[str, Prepare] = {
    name.removeprefix("_"): prepare
    for name, prepare in list(globals().items())
    if name.startswith("_") and callable(prepare) and not name.startswith("__")
}


async def schedule_picture(client: StoreClient) -> list[object]:
    """Return everything that a store has about schedules."""
    rows = await client.store.schedules.schedules()
    runs = [await client.store.schedules.runs(row.id, 100) for row in rows]
    return [rows, runs]


class ScheduleContract:
    """A due time is one run, whichever worker claims it."""

    async def test_a_due_time_is_claimed_by_one_worker(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        row = await caller.submit(save(caller))
        found = await asyncio.gather(
            caller.submit(due(caller, row)), other.submit(due(other, row)), return_exceptions=True
        )
        (run,) = [one for one in found if isinstance(one, Started)]
        assert all(isinstance(one, Started | Repeated | ScheduleChanged) for one in found)
        now = await caller.store.schedules.schedule(caller.tenant, "report")
        assert now is not None
        assert (now.next_run_at, now.running_turn) == (20.0, run.turn.id)
        again = await other.submit(due(other, row))
        assert isinstance(again, Repeated), "also long after"

    async def test_schedules_are_listed_by_name_in_pages(self, caller: StoreClient) -> None:
        stranger = StoreClient(caller.store, "s", tenant="stranger")
        for name in ("b", "a", "C"):
            await caller.submit(save(caller, name))
        await stranger.submit(save(stranger, "other"))
        read, tenant = caller.store.schedules.page, caller.tenant
        first = await read(tenant, after=None, limit=2, is_descending=False)
        rest = await read(tenant, after="a", limit=2, is_descending=False)
        assert [[row.name for row in rows] for rows in (first, rest)] == [["C", "a"], ["b"]]
        last = await read(tenant, after="b", limit=5, is_descending=True)
        assert [row.name for row in last] == ["a", "C"]

    async def test_a_paused_or_changed_schedule_starts_nothing(self, caller: StoreClient) -> None:
        row = await caller.submit(save(caller))
        await caller.submit(cmd.PauseSchedule(tenant=caller.tenant, name="report", is_paused=True))
        with pytest.raises(ScheduleChanged):
            await caller.submit(due(caller, row))
        view = await caller.read.session(caller.tenant, key=due(caller, row).key)
        assert view is None, "nothing was stored"

    async def test_the_fifth_failure_in_a_row_pauses(self, caller: StoreClient) -> None:
        row = await caller.submit(save(caller))
        for number in range(1, 6):
            run = await caller.submit(due(caller, row, following=10.0 + 10 * number))
            assert isinstance(run, Started)
            await caller.finish(run, outcome="failed")
            settle = cmd.SettleRun(
                id=row.id, turn_id=TurnId(run.turn.id), outcome="failed", reason="boom",
                if_paused=to_chat("paused"),
            )  # fmt: skip
            settled = await caller.submit(settle)
            assert settled is not None
            assert settled.is_paused == (number == 5)
            row = settled
        assert "boom" in row.reason
        (said,) = await caller.store.channels.messages(None, OutboxQuery())
        assert said.text == "paused", "told once, in the commit that paused it"
