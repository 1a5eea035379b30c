"""What the clean-up after agents is told of a session."""

import asyncio

from holdfast.ports.session_runtimes import RuntimeSession
from tests.in_process import ScriptedModel, open_gateway


async def test_a_session_is_left_alone_until_the_state_of_its_turn_is_stored() -> None:
    model = ScriptedModel()
    async with asyncio.timeout(60), open_gateway(model) as gateway:
        model.gate.clear()
        running = asyncio.create_task(gateway.respond("hi"))
        await model.entered.acquire()
        (session,) = (await gateway.client.get("/v1/sessions")).json()["data"]
        assert await gateway.engine.find_runtime_session(session["id"]) is None
        model.gate.set()
        await running
        states = await gateway.engine.read.provider_state(session["id"])
        found = await gateway.engine.find_runtime_session(session["id"])
        assert found == RuntimeSession(states=states)
