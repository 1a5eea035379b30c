"""Due times become turns: each one once, and none of them stops the schedule."""

from typing import Any

import pytest

from holdfast.core.decisions.schedules import ScheduleBusy
from holdfast.core.errors import (
    HoldfastError,
    InvalidInput,
    LaneFull,
    NotFound,
    SessionDeleted,
    StorageFull,
    TenantFull,
)
from holdfast.core.ids import DEFAULT_TENANT, Key, Tenant, TurnId, WorkerId
from holdfast.core.model.schedule import DeliverTo, ScheduleRow
from holdfast.core.transaction.commands import ExpireWorker, LaneLimits, Recover, SkipRun
from holdfast.engine.sessions.quota import StorageQuota
from holdfast.ports.store import SessionQuery
from holdfast.schedules import service
from holdfast.schedules.service import MAX_RUNNING, Scheduler
from holdfast.schedules.settings import DeliverSettings, ScheduleSettings
from holdfast.testing.clock import ManualClock
from tests.in_process import RunningGateway, ScriptedModel, open_gateway, said

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


async def _row(gateway: RunningGateway, name: str = "report") -> ScheduleRow:
    row = await gateway.engine.store.schedules.schedule(DEFAULT_TENANT, name)
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
    await _start_slow_run(gateway, scheduler)
    with pytest.raises(ScheduleBusy, match="still goes on"):
        await scheduler.run_now(DEFAULT_TENANT, "report")
    gateway.model.gate.set()
    await _run_to_the_end(gateway, scheduler)


async def test_a_schedule_whose_only_time_has_passed_can_be_run_by_hand(
    gateway: RunningGateway,
) -> None:
    past = ScheduleSettings(
        name="report", prompt="what is new?", model="scripted", at="2026-01-01T09:00"
    )
    scheduler = Scheduler(gateway.engine, gateway.turn_service, [past])
    await scheduler.start()
    await scheduler.stop()
    row = await _row(gateway)
    assert row.next_run_at is None
    await scheduler.run_now(DEFAULT_TENANT, "report")
    await _run_to_the_end(gateway, scheduler)
    [run] = await gateway.engine.store.schedules.runs(row.id, 10)
    assert run.outcome == "completed"
    assert (await _row(gateway)).next_run_at is None


async def test_a_pause_keeps_its_reason_when_the_run_ends(
    gateway: RunningGateway, scheduler: Scheduler
) -> None:
    await _start_slow_run(gateway, scheduler)
    await scheduler.pause(DEFAULT_TENANT, "report", is_paused=True)
    gateway.model.gate.set()
    await _run_to_the_end(gateway, scheduler)
    row = await _row(gateway)
    assert (row.is_paused, row.reason) == (True, "paused by an operator")


async def test_a_run_that_exceeds_its_time_limit_reports_it(
    gateway: RunningGateway, scheduler: Scheduler
) -> None:
    await _start_slow_run(gateway, scheduler, timeout_seconds=0.001)
    await _run_to_the_end(gateway, scheduler)
    row = await _row(gateway)
    assert (row.failures, row.reason) == (1, "schedule_timeout")


async def test_a_run_that_lost_its_workers_is_no_failure_of_the_schedule(
    gateway: RunningGateway, scheduler: Scheduler
) -> None:
    await _start_slow_run(gateway, scheduler)
    row = await _row(gateway)
    assert row.running_turn is not None
    engine = gateway.engine
    view = await engine.read.turn(DEFAULT_TENANT, row.running_turn)
    assert view is not None
    await engine.submit(ExpireWorker(worker=view.turn.owner))
    limits = LaneLimits(max_attempts=1, can_run_again=True)
    await engine.submit(
        Recover(session_id=view.turn.session_id, worker=WorkerId("wrk_other"), limits=limits)
    )
    view = await engine.read.turn(DEFAULT_TENANT, row.running_turn)
    assert view is not None
    assert view.turn.error_code == "turn_abandoned"
    gateway.model.gate.set()
    await _run_to_the_end(gateway, scheduler)
    row = await _row(gateway)
    assert (row.failures, row.running_turn, row.is_paused) == (0, None, False)
    assert row.reason.startswith("given up after")


async def test_deleting_a_schedule_ends_its_run(
    gateway: RunningGateway, scheduler: Scheduler
) -> None:
    turn_id = await _start_slow_run(gateway, scheduler)
    assert await scheduler.delete(DEFAULT_TENANT, "report")
    view = await gateway.engine.wait_until_ended(DEFAULT_TENANT, turn_id)
    assert view.turn.outcome == "cancelled"
    assert view.turn.error_code == "schedule_deleted"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"every": "", "at": "2026-01-01T09:00"}, "has passed"),
        ({"tenant": "other"}, "tenant"),
        ({"promt": "x"}, "promt"),
    ],
)
async def test_a_schedule_that_would_not_do_what_was_asked_is_rejected(
    gateway: RunningGateway, scheduler: Scheduler, values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        await scheduler.save(DEFAULT_TENANT, {**BODY, **values})
    assert await gateway.engine.store.schedules.schedules() == []


async def _start_slow_run(gateway: RunningGateway, scheduler: Scheduler, **values: Any) -> TurnId:
    await scheduler.save(DEFAULT_TENANT, {**BODY, **values})
    gateway.model.gate.clear()
    await scheduler.run_now(DEFAULT_TENANT, "report")
    await scheduler.run_due()
    turn_id = (await _row(gateway)).running_turn
    assert turn_id is not None
    return turn_id


@pytest.mark.parametrize(
    "failure",
    [
        NotFound("no channel gone"), LaneFull("no more may wait"), TenantFull("too many are open"),
        StorageFull("no more is stored"), SessionDeleted("it was erased"),
    ],
    ids=lambda failure: failure.code,
)  # fmt: skip
@pytest.mark.parametrize("times", [0, 1])
async def test_a_schedule_that_cannot_deliver_stops_no_other(
    gateway: RunningGateway, failure: HoldfastError, times: int
) -> None:
    """The target is missing or full when the run is claimed, or when it has ended."""
    asked: list[DeliverTo] = []

    async def find_chat(to: DeliverTo) -> tuple[Tenant, Key, DeliverTo]:
        asked.append(to)
        if len(asked) > times:
            raise failure
        return DEFAULT_TENANT, Key("chat"), to

    first = ScheduleSettings(
        name="a", prompt="a", model="scripted", every="1h",
        deliver=DeliverSettings(channel="gone", to="7"),
    )  # fmt: skip
    second = ScheduleSettings(name="report", prompt="b", model="scripted", every="1h")
    scheduler = Scheduler(
        gateway.engine, gateway.turn_service, [first, second], find_chat=find_chat
    )
    await scheduler.start()
    await scheduler.stop()
    for name in ("a", "report"):
        await scheduler.run_now(DEFAULT_TENANT, name)
    await scheduler.run_due()
    stuck = await _row(gateway, "a")
    if stuck.running_turn is not None:
        await gateway.engine.wait_until_ended(DEFAULT_TENANT, stuck.running_turn)
    await _run_to_the_end(gateway, scheduler)
    [run] = await gateway.engine.store.schedules.runs((await _row(gateway)).id, 10)
    assert run.outcome == "completed"
    assert failure.message in (await _row(gateway, "a")).reason


@pytest.mark.parametrize(("text", "log"), [("NO_REPLY", None), ("Shall I?", ["Shall I?"])])
async def test_an_answer_that_says_no_reply_delivers_nothing(
    any_store_url: str, text: str, log: list[str] | None
) -> None:
    async def find_chat(to: DeliverTo) -> tuple[Tenant, Key, DeliverTo]:
        return DEFAULT_TENANT, Key("chat"), to

    settings = ScheduleSettings(
        name="report", prompt="b", model="scripted", every="1h",
        deliver=DeliverSettings(channel="support", to="7"),
    )  # fmt: skip
    model = ScriptedModel(lambda _: [said(text)])
    async with open_gateway(model, store_url=any_store_url) as gateway:
        scheduler = Scheduler(gateway.engine, gateway.turn_service, [settings], find_chat=find_chat)
        await scheduler.start()
        await scheduler.stop()
        await scheduler.run_now(DEFAULT_TENANT, "report")
        await _run_to_the_end(gateway, scheduler)
        [run] = await gateway.engine.store.schedules.runs((await _row(gateway)).id, 10)
        chat = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("chat"))
        if log is not None:
            await gateway.until_idle("chat")
            assert await gateway.log("chat") == log
    assert run.outcome == "completed"
    assert (chat is not None) == (log is not None)


async def test_a_schedule_that_is_never_accepted_pauses(gateway: RunningGateway) -> None:
    async def find_chat(_: DeliverTo) -> tuple[Tenant, Key, DeliverTo]:
        raise NotFound("no channel gone")

    settings = ScheduleSettings(
        name="report", prompt="x", every="1h", deliver=DeliverSettings(channel="gone", to="7")
    )
    scheduler = Scheduler(gateway.engine, gateway.turn_service, [settings], find_chat=find_chat)
    await scheduler.start()
    await scheduler.stop()
    for _ in range(5):
        assert not (await _row(gateway)).is_paused
        await scheduler.run_now(DEFAULT_TENANT, "report")
        await scheduler.run_due()
    row = await _row(gateway)
    assert (row.is_paused, row.failures) == (True, 5)
    assert row.reason == "paused after 5 failures in a row: not accepted: no channel gone"


async def _next_two(
    gateway: RunningGateway, scheduler: Scheduler, clock: ManualClock
) -> list[float]:
    """Let the schedule run twice; return how long after its creation each run was due."""
    times = []
    for _ in range(2):
        row = await _row(gateway)
        assert row.next_run_at is not None
        times.append(row.next_run_at - row.created_at)
        clock.advance(row.next_run_at - clock.now())
        await _run_to_the_end(gateway, scheduler)
    return times


async def test_a_changed_period_keeps_its_distance() -> None:
    clock = ManualClock()
    async with open_gateway(clock=clock) as gateway:
        scheduler = Scheduler(gateway.engine, gateway.turn_service)
        await scheduler.save(DEFAULT_TENANT, BODY)
        clock.advance(1800.0)
        await scheduler.save(DEFAULT_TENANT, {**BODY, "every": "2h"})
        times = await _next_two(gateway, scheduler, clock)
    assert times == [7200.0, 14400.0]


@pytest.mark.parametrize(
    ("spec", "hours", "ran_at", "next_at", "reason"),
    [
        ({}, 3.5, [3.0], 4.0, ""),
        ({"missed": "skip"}, 3.5, [], 4.0, "skipped: missed while nothing ran"),
        ({"every": "30h"}, 59.0, [], 60.0, "skipped: missed for more than a day"),
    ],
    ids=["once", "skip", "too old"],
)
async def test_of_the_missed_times_only_the_latest_runs(
    spec: dict[str, str], hours: float, ran_at: list[float], next_at: float, reason: str
) -> None:
    clock = ManualClock()
    async with open_gateway(clock=clock) as gateway:
        scheduler = Scheduler(gateway.engine, gateway.turn_service)
        await scheduler.save(DEFAULT_TENANT, {**BODY, **spec})
        clock.advance(hours * 3600)
        await _run_to_the_end(gateway, scheduler)
        row = await _row(gateway)
        runs = await gateway.engine.store.schedules.runs(row.id, 10)
    assert [(run.scheduled_at - row.created_at) / 3600 for run in runs] == ran_at
    assert row.next_run_at == row.created_at + next_at * 3600
    assert row.reason == reason


async def test_a_time_that_finds_the_run_before_going_is_skipped_and_recorded(
    gateway: RunningGateway, scheduler: Scheduler
) -> None:
    await scheduler.save(DEFAULT_TENANT, BODY)
    await _start_slow_run(gateway, scheduler)
    running = (await _row(gateway)).running_turn
    await _make_due(gateway, gateway.engine.clock.now() - 1)
    await scheduler.run_due()
    row = await _row(gateway)
    assert (row.running_turn, row.reason) == (running, "skipped: the run before was still going")
    assert len(await gateway.engine.store.schedules.runs(row.id, 10)) == 1
    gateway.model.gate.set()
    await _run_to_the_end(gateway, scheduler)


async def test_only_the_last_isolated_runs_are_kept_and_nobody_spoke_in_them(
    gateway: RunningGateway, scheduler: Scheduler
) -> None:
    await scheduler.save(DEFAULT_TENANT, {**BODY, "keep_runs": 2})
    began = gateway.engine.clock.now() - 10
    for number in range(4):
        row = await _make_due(gateway, began + number)
        await _run_to_the_end(gateway, scheduler)
    runs = await gateway.engine.store.schedules.runs(row.id, 10)
    views = await gateway.engine.read.sessions(DEFAULT_TENANT, SessionQuery())
    sessions = [view.session for view in views]
    assert {run.session_id for run in runs} == {session.id for session in sessions}
    assert sorted(run.scheduled_at - began for run in runs) == [2.0, 3.0]
    for session in sessions:
        assert session.key is not None
        assert session.key.startswith("cron:report:")
        assert (session.started_by, session.last_user_activity_at) == ("cron", None)


@pytest.mark.parametrize("ahead_seconds", [3000.0, -3000.0, -0.001])
async def test_a_clock_that_differs_from_the_stores_moves_no_run(
    store_url: str, ahead_seconds: float
) -> None:
    clock = ManualClock()
    async with open_gateway(clock=clock, store_url=store_url) as gateway:
        gateway.engine.clock = ManualClock(clock.now() + ahead_seconds)
        scheduler = Scheduler(gateway.engine, gateway.turn_service)
        await scheduler.save(DEFAULT_TENANT, BODY)
        times = await _next_two(gateway, scheduler, clock)
        clock.advance(1.0)
        row = await scheduler.run_now(DEFAULT_TENANT, "report")
        await _run_to_the_end(gateway, scheduler)
        runs = await gateway.engine.store.schedules.runs(row.id, 10)
    assert times == [3600.0, 7200.0]
    assert len(runs) == 3


async def test_a_time_that_waits_for_a_free_place_was_not_missed(
    gateway: RunningGateway, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.model.gate.clear()
    names = [f"report{number}" for number in range(MAX_RUNNING)]
    for name in (*names, "last"):
        await scheduler.save(DEFAULT_TENANT, {**BODY, "name": name, "missed": "skip"})
        await scheduler.run_now(DEFAULT_TENANT, name)
        await scheduler.run_due()
    assert (await _row(gateway, "last")).running_turn is None
    monkeypatch.setattr(service, "LATE_SECONDS", -1.0)  # as if it had waited for long
    await scheduler.run_due()
    gateway.model.gate.set()
    for name in names:
        running = (await _row(gateway, name)).running_turn
        assert running is not None
        await gateway.engine.wait_until_ended(DEFAULT_TENANT, running)
    await scheduler.run_due()
    assert (await _row(gateway, "last")).running_turn is not None


async def test_runs_and_deliveries_are_refused_if_the_storage_of_the_tenant_is_full(
    any_store_url: str,
) -> None:
    async def find_chat(to: DeliverTo) -> tuple[Tenant, Key, DeliverTo]:
        return DEFAULT_TENANT, Key("chat"), to

    settings = ScheduleSettings(
        name="report", prompt="x" * 3000, model="scripted", every="1h",
        deliver=DeliverSettings(channel="support", to="7"),
    )  # fmt: skip
    async with open_gateway(store_url=any_store_url) as gateway:
        gateway.engine.storage = StorageQuota(gateway.engine.read, 2000)
        scheduler = Scheduler(gateway.engine, gateway.turn_service, [settings], find_chat=find_chat)
        await scheduler.start()
        await scheduler.stop()
        await scheduler.run_now(DEFAULT_TENANT, "report")
        await _run_to_the_end(gateway, scheduler)
        row = await _row(gateway)
        assert row.reason.startswith("waits to deliver: the tenant has reached its limit")
        assert await gateway.engine.read.session(DEFAULT_TENANT, key=Key("chat")) is None
        gateway.engine.storage = StorageQuota(gateway.engine.read, 0)
        await scheduler.run_due()
        assert await gateway.engine.read.session(DEFAULT_TENANT, key=Key("chat")) is not None
        [run] = await gateway.engine.store.schedules.runs(row.id, 10)
        assert run.outcome == "completed"

        gateway.engine.storage = StorageQuota(gateway.engine.read, 2000)
        await scheduler.run_now(DEFAULT_TENANT, "report")
        await scheduler.run_due()
        row = await _row(gateway)
        assert (row.failures, row.running_turn) == (1, None)
        assert row.reason.startswith("not accepted: the tenant has reached its limit of 2000")
        assert len(await gateway.engine.store.schedules.runs(row.id, 10)) == 1
