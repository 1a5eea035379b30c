"""What is deleted or erased while a model works: no summary, no item and no provider keeps it."""

import asyncio
import base64
import json
import re
from typing import Any

import pytest

from holdfast.engine.settings import ContextSettings, HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.upstream_house import UpstreamHouse, open_upstream_house, upstream

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


async def filled(house: UpstreamHouse) -> tuple[str, list[str]]:
    """Return a session in which a secret was told, and the items that hold it."""
    for text in ("first", f"my password is {SECRET}", "third"):
        await house.respond(text + " word" * 200)
    session_id = (await house.client.get("/v1/sessions")).json()["data"][0]["id"]
    listed = (await house.client.get(f"/v1/sessions/{session_id}/items?limit=100")).json()["data"]
    return session_id, [item["id"] for item in listed if SECRET in json.dumps(item)]


async def forget(house: UpstreamHouse, session_id: str, names: list[str], erase: bool) -> None:
    path = f"/v1/conversations/{session_id.replace('ses_', 'conv_')}/items"
    for name in names:
        gone = await house.client.delete(f"{path}/{name}", params={"erase": str(erase).lower()})
        assert gone.status_code == 200, gone.text


async def compact(house: UpstreamHouse, session_id: str, how: str) -> Json:
    if how == "asked":
        made = await house.client.post(f"/v1/sessions/{session_id}/compact", json={})
        assert made.status_code == 200, made.text
        value: Json = made.json()
        return value
    if how == "trigger":
        return await house.respond([{"type": "compaction_trigger"}])
    wish = [{"type": "compaction", "compact_threshold": 500}]
    return await house.respond("more", context_management=wish)


async def everything_told(
    house: UpstreamHouse, simulator: ProviderSimulator, session_id: str, *, log: bool
) -> str:
    """Return all that is still told of a session, to its client and to a model."""
    after = len(simulator.requests())
    await house.respond("after")
    paths = ["items?limit=100", *(["items?limit=100&view=log", "compactions"] if log else [])]
    told = [(await house.client.get(f"/v1/sessions/{session_id}/{path}")).json() for path in paths]
    return opened([*(one.body for one in simulator.requests()[after:]), *told])


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("how", ["asked", "trigger", "threshold"])
async def test_what_is_deleted_while_it_is_summed_up_is_in_no_summary(
    how: str, erase: bool
) -> None:
    with ProviderSimulator({}) as simulator:
        async with open_upstream_house(upstream(simulator), heals=QUICK, context=BY_MODEL) as house:
            session_id, names = await filled(house)
            with simulator.hold(when={"model": "sum"}, at="running") as barrier:
                work = asyncio.create_task(compact(house, session_id, how))
                await barrier.wait_held_async()
                await forget(house, session_id, names, erase)
                barrier.remove()
                answer = await work
            assert SECRET not in opened(answer)
            listed = (await house.client.get(f"/v1/sessions/{session_id}/compactions")).json()
            assert [one["status"] for one in listed["data"]] == ["in_force"]
            assert SECRET not in await everything_told(house, simulator, session_id, log=erase)


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("how", ["trigger", "threshold"])
async def test_an_item_that_carries_a_summary_goes_with_what_is_deleted(
    how: str, erase: bool
) -> None:
    with ProviderSimulator({"answer": [TELLTALE]}) as simulator:
        async with open_upstream_house(upstream(simulator), heals=QUICK, context=BY_MODEL) as house:
            session_id, names = await filled(house)
            answer = await compact(house, session_id, how)
            assert SECRET in opened(answer)
            await forget(house, session_id, names, erase)
            assert SECRET not in await everything_told(house, simulator, session_id, log=erase)
            if erase:
                stored = await house.client.get(f"/v1/responses/{answer['id']}")
                assert SECRET not in opened(stored.json())
