"""The commit that ends a turn hands the lane to the next one."""

import asyncio
from typing import Any

import pytest

from holdfast.core.errors import LaneTimeout, RunFenced
from holdfast.core.ids import RunId
from holdfast.core.model.turn import Source
from holdfast.core.transaction.commands import Cancel, Command, Finish, LaneLimits, Recover
from holdfast.engine.sessions import submission
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.settings import LaneSettings
from tests.unit.engine.harness import EngineHarness, let_others_run, open_engine


def _commands(engine: EngineHarness) -> list[str]:
    found: list[str] = []

    def note(command: Command[Any]) -> bool:
        found.append(type(command).__name__)
        return False

    engine.store.is_silent = note
    return found


async def _soon(entering: "asyncio.Task[ActiveRun]") -> ActiveRun:
    async with asyncio.timeout(30):
        return await entering


async def test_a_turn_that_waits_takes_two_commits_as_one_that_does_not() -> None:
    # A turn that has waited for half a lease asks for its lane.
    async with open_engine(settings=LaneSettings(lease_seconds=600)) as engine:
        # The first look at a store finds news, which would wake the waiting turns.
        await engine.store.has_news()
        commands = _commands(engine)
        run = await engine.enter("first")
        waiting = [asyncio.create_task(engine.enter(f"t{n}")) for n in range(5)]
        await engine.until_waiting(5)
        for task in waiting:
            await engine.finish(run)
            run = await _soon(task)
            assert run.session.active_run_id == run.fence.run_id
            assert [item.turn_number for item in await run.items()][-1] == run.turn.number
        await engine.finish(run)
        assert sorted(commands) == ["Accept"] * 6 + ["Finish"] * 6


async def test_a_lane_handed_over_in_a_commit_with_a_lost_answer_is_found_by_its_new_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submission, "FIRST_PAUSE_SECONDS", 0.001)
    async with open_engine() as engine:
        first = await engine.enter("first")
        entering = asyncio.create_task(engine.enter("second"))
        await engine.until_waiting()
        engine.store.is_silent = lambda command: isinstance(command, Finish) and not command.again
        await engine.finish(first)
        second = await _soon(entering)
        runs = await engine.gateway.read.runs(second.turn.id)
        assert [run.id for run in runs] == [second.fence.run_id]
        assert second.turn.attempts == 1
        await engine.finish(second)
        assert (await engine.turn(second.turn)).outcome == "completed"


async def test_a_turn_that_lost_a_lane_it_never_knew_of_does_not_run_under_the_same_run_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submission, "FIRST_PAUSE_SECONDS", 0.001)
    async with open_engine() as engine:
        first = await engine.enter("first")
        entering = asyncio.create_task(engine.enter("second", source="background"))
        await engine.until_waiting()

        recovered = asyncio.Event()
        submit = engine.store.submit

        async def ask_again_after_recovery(command: Command[Any]) -> Any:
            if isinstance(command, Finish) and command.again:
                await recovered.wait()
            return await submit(command)

        engine.store.submit = ask_again_after_recovery  # type: ignore[method-assign]
        engine.store.is_silent = lambda command: isinstance(command, Finish) and not command.again
        finishing = asyncio.create_task(engine.finish(first))
        handed: RunId | None = first.fence.run_id
        async with asyncio.timeout(30):
            while handed == first.fence.run_id:
                view = await engine.gateway.read.session(
                    engine.caller.tenant, session_id=first.session.id
                )
                assert view is not None
                handed = view.session.active_run_id
        assert view is not None
        assert handed is not None
        recover = Recover(
            session_id=view.session.id,
            worker=engine.gateway.worker.id,
            forsaken=(handed,),
            limits=LaneLimits(can_run_again=True),
        )
        await engine.gateway.submit(recover)
        recovered.set()
        await finishing
        second = await _soon(entering)
        assert second.fence.run_id != handed
        await engine.finish(second)


async def test_a_turn_that_is_handed_its_lane_as_its_patience_ends_has_it() -> None:
    async with open_engine(settings=LaneSettings(max_wait_seconds=0.01)) as engine:
        first = await engine.enter("first")
        submit = engine.store.submit

        async def finish_first(command: Command[Any]) -> Any:
            if isinstance(command, Cancel):
                await engine.finish(first)
            return await submit(command)

        engine.store.submit = finish_first  # type: ignore[method-assign]
        admission = await engine.accept("second")
        entering = asyncio.create_task(engine.gateway.enter(admission))  # type: ignore[arg-type]
        await let_others_run()
        engine.clock.advance(1.0)
        second = await _soon(entering)
        assert not second.is_lost
        await engine.finish(second)


@pytest.mark.parametrize("source", ["channel", "cron"])
async def test_turns_that_nobody_would_send_again_wait_without_a_limit(source: Source) -> None:
    async with open_engine(settings=LaneSettings(max_wait_seconds=0.01)) as engine:
        first = await engine.enter("first")
        waiting = await engine.accept("second", source=source)
        entering = asyncio.create_task(engine.gateway.enter(waiting))  # type: ignore[arg-type]
        bounded = await engine.accept("third")
        with pytest.raises(LaneTimeout):
            await engine.gateway.enter(bounded)  # type: ignore[arg-type]
        assert not entering.done()
        await engine.finish(first)
        await engine.finish(await _soon(entering))


async def test_a_lane_is_not_handed_to_a_run_of_a_worker_that_was_fenced() -> None:
    async with open_engine() as engine:
        first = await engine.enter("first")
        entering = asyncio.create_task(engine.enter("second"))
        await engine.until_waiting()
        await engine.gateway.submit(Cancel(tenant=engine.caller.tenant, turn_id=first.turn.id))
        second = await _soon(entering)
        third = asyncio.create_task(engine.enter("third"))
        await engine.until_waiting()
        with pytest.raises(RunFenced):
            await first.finish(Finish(fence=first.fence, outcome="completed"))
        await let_others_run()
        assert not third.done()
        await engine.finish(second)
        await engine.finish(await _soon(third))
