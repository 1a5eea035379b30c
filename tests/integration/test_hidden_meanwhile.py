"""Items deleted or erased during a model call appear in no summary, item or provider state."""

import asyncio
import base64
import json
import re
from typing import Any

import pytest

from holdfast.engine.settings import ContextSettings, HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway, upstream

Json = dict[str, Any]
QUICK = HealSettings(first_pause_seconds=0.001)
BY_MODEL = ContextSettings(mode="model", model="sum")
SECRET = "HUNTER2"
TELLTALE = {"when": {"model": "sum"}, "text": f"The password is {SECRET}."}


def opened(value: Any) -> str:
    """Return a value as text, what compaction items seal included."""
    text = json.dumps(value)
    sealed = re.findall(r"hfc1\.([A-Za-z0-9_=-]+)", text)
    return text + "".join(base64.urlsafe_b64decode(one).decode() for one in sealed)


async def filled(gateway: UpstreamGateway) -> tuple[str, list[str]]:
    """Return a session in which a secret was told, and the items that hold it."""
    for text in ("first", f"my password is {SECRET}", "third"):
        await gateway.respond(text + " word" * 200)
    session_id = (await gateway.client.get("/v1/sessions")).json()["data"][0]["id"]
    listed = (await gateway.client.get(f"/v1/sessions/{session_id}/items?limit=100")).json()["data"]
    return session_id, [item["id"] for item in listed if SECRET in json.dumps(item)]


async def forget(gateway: UpstreamGateway, session_id: str, names: list[str], erase: bool) -> None:
    path = f"/v1/conversations/{session_id.replace('ses_', 'conv_')}/items"
    for name in names:
        gone = await gateway.client.delete(f"{path}/{name}", params={"erase": str(erase).lower()})
        assert gone.status_code == 200, gone.text


async def compact(gateway: UpstreamGateway, session_id: str, how: str) -> Json:
    if how == "asked":
        made = await gateway.client.post(f"/v1/sessions/{session_id}/compact", json={})
        assert made.status_code == 200, made.text
        value: Json = made.json()
        return value
    if how == "trigger":
        return await gateway.respond([{"type": "compaction_trigger"}])
    options = [{"type": "compaction", "compact_threshold": 500}]
    return await gateway.respond("more", context_management=options)


async def everything_told(
    gateway: UpstreamGateway, simulator: ProviderSimulator, session_id: str, *, log: bool
) -> str:
    """Return all that is still told of a session, to its client and to a model."""
    after = len(simulator.requests())
    await gateway.respond("after")
    paths = ["items?limit=100", *(["items?limit=100&view=log", "compactions"] if log else [])]
    told = [
        (await gateway.client.get(f"/v1/sessions/{session_id}/{path}")).json() for path in paths
    ]
    return opened([*(one.body for one in simulator.requests()[after:]), *told])


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("how", ["asked", "trigger", "threshold"])
async def test_what_is_deleted_while_it_is_summed_up_is_in_no_summary(
    how: str, erase: bool
) -> None:
    with ProviderSimulator({}) as simulator:
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=BY_MODEL
        ) as gateway:
            session_id, names = await filled(gateway)
            with simulator.hold(when={"model": "sum"}, at="running") as barrier:
                work = asyncio.create_task(compact(gateway, session_id, how))
                await barrier.wait_held_async()
                await forget(gateway, session_id, names, erase)
                barrier.remove()
                answer = await work
            assert SECRET not in opened(answer)
            listed = (await gateway.client.get(f"/v1/sessions/{session_id}/compactions")).json()
            assert [one["status"] for one in listed["data"]] == ["in_force"]
            assert SECRET not in await everything_told(gateway, simulator, session_id, log=erase)


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("how", ["trigger", "threshold"])
async def test_an_item_that_carries_a_summary_goes_with_what_is_deleted(
    how: str, erase: bool
) -> None:
    with ProviderSimulator({"answer": [TELLTALE]}) as simulator:
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=BY_MODEL
        ) as gateway:
            session_id, names = await filled(gateway)
            answer = await compact(gateway, session_id, how)
            assert SECRET in opened(answer)
            await forget(gateway, session_id, names, erase)
            assert SECRET not in await everything_told(gateway, simulator, session_id, log=erase)
            if erase:
                stored = await gateway.client.get(f"/v1/responses/{answer['id']}")
                assert SECRET not in opened(stored.json())


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("state", ["replay", "chain"])
async def test_a_call_that_is_made_again_does_not_send_what_was_deleted_meanwhile(
    any_store_url: str, state: str, erase: bool
) -> None:
    with ProviderSimulator({}) as simulator:
        async with open_upstream_gateway(
            upstream(simulator, state=state), heals=QUICK, store_url=any_store_url
        ) as gateway:
            session_id, names = await filled(gateway)
            simulator.add_fault("error", status=500, times=2)
            with simulator.hold(at="arrival") as barrier:
                work = asyncio.create_task(gateway.respond("more"))
                await barrier.wait_held_async()
                after = len(simulator.requests())
                await forget(gateway, session_id, names, erase)
                barrier.remove()
                answer = await work
            # The second and third call; the first one was sent before.
            again = [one.body for one in simulator.requests()[after:]]
            assert len(again) == 2
            assert SECRET not in opened([*again, answer])
            assert "first word" in opened(again[-1])
