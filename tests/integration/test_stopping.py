"""A server that stops: everybody whose turn was accepted gets an answer."""

import asyncio
import re
from typing import Any

import pytest

from holdfast.core.transaction.commands import Accept, Command
from holdfast.engine.settings import LaneSettings, StreamSettings
from holdfast.ports.store import Store
from tests.in_process import ScriptedModel, open_gateway

STEPS = 60
"""More rounds of the loop than the end of a turn takes."""
IN_TIME = 60.0


class _HeldStore:
    """A store that tells of what it accepted when it is allowed to, some rounds later."""

    def __init__(self, store: Store, steps: int) -> None:
        self._store = store
        self._steps = steps
        self.is_accepted = asyncio.Event()
        self.may_tell = asyncio.Event()
        self.may_tell.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Command[Any]) -> Any:
        """Carry a command out; hold the answer back if it is a turn's acceptance."""
        outcome = await self._store.submit(command)
        if isinstance(command, Accept) and not self.may_tell.is_set():
            self.is_accepted.set()
            await self.may_tell.wait()
            for _ in range(self._steps):
                await asyncio.sleep(0)
        return outcome


OWN_TASK, OF_REQUEST = StreamSettings(on_disconnect="cancel"), StreamSettings()
"""Whole answers: their turns have a task of their own, or run in the task of their request."""


async def _stop_while_one_is_accepted(
    steps: int,
    *,
    is_stream: bool,
    streams: StreamSettings = OF_REQUEST,
    grace_seconds: float = IN_TIME,
) -> tuple[int, str]:
    """Stop while a turn ends and the next one is accepted; return how that one is answered."""
    stores: list[_HeldStore] = []

    def wrap(store: Store) -> Any:
        stores.append(_HeldStore(store, steps))
        return stores[0]

    model = ScriptedModel()
    async with open_gateway(model, wrap=wrap, streams=streams) as gateway:
        model.gate.clear()
        running = asyncio.create_task(gateway.respond("one", "a"))
        await model.entered.acquire()
        stores[0].may_tell.clear()
        late = asyncio.create_task(gateway.respond("two", "b", stream=is_stream))
        await stores[0].is_accepted.wait()
        stopping = asyncio.create_task(gateway.turn_service.stop(grace_seconds))
        await asyncio.sleep(0)
        stores[0].may_tell.set()
        model.gate.set()
        async with asyncio.timeout(IN_TIME):
            await stopping
            assert (await running).status_code == (200 if grace_seconds else 503)
            reply = await late
            # What was accepted after the last turn is stopped as the server does it.
            await gateway.turn_service.stop(0.0)
    return reply.status_code, reply.text


@pytest.mark.parametrize("streams", [OWN_TASK, OF_REQUEST])
async def test_a_turn_that_is_accepted_at_any_step_of_a_stop_is_answered(
    streams: StreamSettings,
) -> None:
    answers = [
        await _stop_while_one_is_accepted(steps, is_stream=False, streams=streams)
        for steps in range(STEPS)
    ]
    # There is time left, so that no turn is interrupted.
    assert {status for status, _ in answers} == {200}
    assert all('"re:two"' in text for _, text in answers)


async def test_a_stream_that_is_accepted_at_any_step_of_a_stop_comes_to_an_end() -> None:
    answers = [await _stop_while_one_is_accepted(steps, is_stream=True) for steps in range(STEPS)]
    assert {status for status, _ in answers} == {200}
    ends = [re.findall(r"event: response\.(\w+)\n", text)[-1] for _, text in answers]
    assert set(ends) == {"completed"}
    assert all(text.endswith("data: [DONE]\n\n") for _, text in answers)


@pytest.mark.parametrize("streams", [OWN_TASK, OF_REQUEST])
async def test_a_client_whose_turn_a_stop_interrupts_may_retry(
    streams: StreamSettings,
) -> None:
    model = ScriptedModel()
    async with open_gateway(model, streams=streams) as gateway, asyncio.timeout(IN_TIME):
        model.gate.clear()
        asking = [asyncio.create_task(gateway.respond("one", key)) for key in ("a", "b")]
        for _ in asking:
            await model.entered.acquire()
        await gateway.turn_service.stop(0.0)
        for reply in await asyncio.gather(*asking):
            assert reply.status_code == 503
            assert "send the request again" in reply.text


async def test_a_turn_that_a_stop_cuts_off_has_lost_no_attempt(store_url: str) -> None:
    lanes = LaneSettings(max_attempts=1)
    model = ScriptedModel()
    async with (
        asyncio.timeout(IN_TIME),
        open_gateway(model, store_url=store_url, lanes=lanes) as gateway,
    ):
        model.gate.clear()
        asked = await gateway.respond("one", "a", background=True)
        await model.entered.acquire()
        await gateway.turn_service.stop(0.0)
        # Its clients may be slow to leave; meanwhile the worker looks for what has no task.
        for _ in range(3):
            await gateway.engine.worker.sweep()
    async with (
        asyncio.timeout(IN_TIME),
        open_gateway(store_url=store_url, lanes=lanes) as gateway,
    ):
        path = f"/v1/responses/{asked.json()['id']}"
        while (found := (await gateway.client.get(path)).json())["status"] != "completed":
            assert found["status"] in ("queued", "in_progress"), found["error"]
        assert (await gateway.respond("two", "a")).status_code == 200


@pytest.mark.parametrize("streams", [OWN_TASK, OF_REQUEST])
async def test_a_turn_that_is_accepted_at_any_step_of_a_stop_without_time_is_answered(
    streams: StreamSettings,
) -> None:
    answers = [
        await _stop_while_one_is_accepted(
            steps, is_stream=False, streams=streams, grace_seconds=0.0
        )
        for steps in range(STEPS)
    ]
    assert {status for status, _ in answers} <= {200, 503}


async def test_a_stream_that_is_accepted_at_any_step_of_a_stop_without_time_comes_to_an_end() -> (
    None
):
    answers = [
        await _stop_while_one_is_accepted(steps, is_stream=True, grace_seconds=0.0)
        for steps in range(STEPS)
    ]
    assert {status for status, _ in answers} == {200}
    assert all(text.endswith("data: [DONE]\n\n") for _, text in answers)
