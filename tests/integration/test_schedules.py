"""Due times become turns: each one once, and none of them stops the schedule."""

from typing import Any

import pytest

from holdfast.core.decisions.schedules import ScheduleBusy
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.model.schedule import ScheduleRow
from holdfast.core.transaction.commands import SkipRun
from holdfast.schedules.service import Scheduler
from tests.in_process import RunningGateway

BODY: dict[str, Any] = {
    "name": "report", "prompt": "what is new?", "model": "scripted", "every": "1h",
}  # fmt: skip


@pytest.fixture(name="scheduler")
def _scheduler(gateway: RunningGateway) -> Scheduler:
    return Scheduler(gateway.engine, gateway.turn_service)


async def _make_due(gateway: RunningGateway, at: float) -> ScheduleRow:
    """Set the schedule's next time, as `run_now` does."""
    row = await _row(gateway)
    assert row.next_run_at is not None
    command = SkipRun(id=row.id, expected_at=row.next_run_at, next_run_at=at, reason="due")
    assert await gateway.engine.submit(command)
    return row


async def _row(gateway: RunningGateway) -> ScheduleRow:
    row = await gateway.engine.store.schedules.schedule(DEFAULT_TENANT, "report")
    assert row is not None
    return row


async def _run_to_the_end(gateway: RunningGateway, scheduler: Scheduler) -> None:
    """Claim what is due and settle its run."""
    await scheduler.run_due()
    row = await _row(gateway)
    if row.running_turn is not None:
        await gateway.engine.wait_until_ended(DEFAULT_TENANT, row.running_turn)
        await scheduler.run_due()


async def test_two_times_within_one_second_are_two_runs(
    gateway: RunningGateway, scheduler: Scheduler
) -> None:
    await scheduler.save(DEFAULT_TENANT, BODY)
    second = float(int(gateway.engine.clock.now()) - 2)
    for at in (second, second + 0.25, second + 0.75):
        row = await _make_due(gateway, at)
        await _run_to_the_end(gateway, scheduler)
    runs = await gateway.engine.store.schedules.runs(row.id, 10)
    assert [run.outcome for run in runs] == ["completed"] * 3
    assert len({run.turn_id for run in runs}) == 3
    assert len({run.session_id for run in runs}) == 3


async def test_a_time_that_ran_before_is_passed_over(
    gateway: RunningGateway, scheduler: Scheduler
) -> None:
    """A clock that is set back makes a time due again."""
    await scheduler.save(DEFAULT_TENANT, BODY)
    at = gateway.engine.clock.now() - 2
    for _ in range(2):
        row = await _make_due(gateway, at)
        await _run_to_the_end(gateway, scheduler)
    row = await _row(gateway)
    assert row.next_run_at is not None
    assert row.next_run_at > gateway.engine.clock.now()
    assert row.reason == "skipped: it ran before"
    assert len(await gateway.engine.store.schedules.runs(row.id, 10)) == 1


async def test_run_now_is_refused_where_it_would_not_run(
    gateway: RunningGateway, scheduler: Scheduler
) -> None:
    await scheduler.save(DEFAULT_TENANT, BODY)
    await scheduler.pause(DEFAULT_TENANT, "report", is_paused=True)
    with pytest.raises(ScheduleBusy, match="paused"):
        await scheduler.run_now(DEFAULT_TENANT, "report")
    await scheduler.pause(DEFAULT_TENANT, "report", is_paused=False)
    gateway.model.gate.clear()
    await scheduler.run_now(DEFAULT_TENANT, "report")
    await scheduler.run_due()
    with pytest.raises(ScheduleBusy, match="still goes on"):
        await scheduler.run_now(DEFAULT_TENANT, "report")
    gateway.model.gate.set()
    await _run_to_the_end(gateway, scheduler)


async def test_a_schedule_whose_only_time_has_passed_can_be_run_by_hand(
    gateway: RunningGateway, scheduler: Scheduler
) -> None:
    body = {**BODY, "at": "2026-01-01T09:00"}
    del body["every"]
    row = await scheduler.save(DEFAULT_TENANT, body)
    assert row.next_run_at is None
    await scheduler.run_now(DEFAULT_TENANT, "report")
    await _run_to_the_end(gateway, scheduler)
    [run] = await gateway.engine.store.schedules.runs(row.id, 10)
    assert run.outcome == "completed"
    assert (await _row(gateway)).next_run_at is None
