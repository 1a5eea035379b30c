"""Cursors of the global feed are about the caller's own sessions: they tell nothing of others."""

from typing import Any

import pytest

from holdfast.core.decisions.api_keys import hash_key
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.transaction.commands import AddApiKey, Delete
from holdfast.ports.store import FeedPlace
from tests.in_process import Item, RunningGateway, open_gateway
from tests.unit.http.test_events import TURN, follow

OWNER, OTHER = Tenant("owner"), Tenant("other")


@pytest.fixture(params=["memory", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory:"
    return str(request.getfixturevalue("postgres_url"))


async def enter(gateway: RunningGateway, tenant: Tenant) -> dict[str, str]:
    """Give a tenant an API key, and return its headers."""
    key = f"hf_{tenant}"
    await gateway.engine.submit(AddApiKey(id=f"key_{tenant}", tenant=tenant, hash=hash_key(key)))
    gateway.application.reload_keys()
    return {"Authorization": f"Bearer {key}"}


async def seen(gateway: RunningGateway, headers: dict[str, str], count: int) -> list[Item]:
    """Return the first events of the tenant's feed."""
    follower = follow(gateway, **headers)
    events = [await follower.next() for _ in range(count)]
    await follower.leave()
    return [event for event in events if event is not None]


async def kinds_after(
    gateway: RunningGateway, headers: dict[str, str], cursor: str, count: int
) -> list[str]:
    follower = follow(gateway, f"/v1/events?after={cursor}", **headers)
    kinds = await follower.kinds(count)
    await follower.leave()
    return kinds


async def refused(gateway: RunningGateway, headers: dict[str, str], cursor: str) -> tuple[int, Any]:
    answer = await gateway.client.get("/v1/events", params={"after": cursor}, headers=headers)
    error = answer.json()["error"]
    return answer.status_code, (error["code"], error["message"].replace(cursor, "?"))


async def old_cursors(gateway: RunningGateway, tenant: Tenant) -> list[str]:
    """Return the positions of a tenant's events, as cursors had them before."""
    placed = await gateway.engine.read.feed(tenant, after=FeedPlace(), limit=50)
    return [f"{one.place.txid}-{one.place.position}" for one in placed]


async def test_an_id_names_the_session_and_its_event(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner, other = await enter(gateway, OWNER), await enter(gateway, OTHER)
        for key in ("a", "b", "c"):
            await gateway.respond("busy", key=key, headers=other)
        await gateway.respond("one", headers=owner)
        for event in await seen(gateway, owner, 3):
            assert event["id"] == f"{event['session_id']}:{event['number']}"


async def test_every_event_is_a_place_to_go_on_from(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner, other = await enter(gateway, OWNER), await enter(gateway, OTHER)
        for key in ("a", "b", "a"):
            await gateway.respond("one", key=key, headers=owner)
            await gateway.respond("busy", key=key, headers=other)
        events = await seen(gateway, owner, 8)
        kinds = [event["type"] for event in events]
        assert kinds == [*(["session.created", *TURN] * 2), *TURN]
        for at, event in enumerate(events[:-1], 1):
            left = len(events) - at
            assert await kinds_after(gateway, owner, event["id"], left) == kinds[at:]


async def test_an_old_cursor_goes_on_and_the_place_of_another_tenant_is_none(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner, other = await enter(gateway, OWNER), await enter(gateway, OTHER)
        await gateway.respond("one", headers=owner)
        await gateway.respond("busy", headers=other)
        await gateway.respond("two", headers=owner)
        places = await old_cursors(gateway, OWNER)
        assert await kinds_after(gateway, owner, places[0], 4) == TURN * 2
        assert await kinds_after(gateway, owner, places[2], 2) == TURN
        nowhere = await refused(gateway, owner, "0-9999999999999")
        assert nowhere[0] == 400
        foreign = await old_cursors(gateway, OTHER)
        between = f"{places[0].partition('-')[0]}-{int(places[-1].partition('-')[2]) + 7}"
        for place in (*foreign, between):
            assert await refused(gateway, owner, place) == nowhere


async def test_the_events_of_another_tenant_are_no_places(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner, other = await enter(gateway, OWNER), await enter(gateway, OTHER)
        await gateway.respond("one", headers=owner)
        await gateway.respond("busy", headers=other)
        (theirs, *_), (mine, *_) = await seen(gateway, other, 3), await seen(gateway, owner, 3)
        unknown = await refused(gateway, owner, "ses_unknown:1")
        assert unknown[0] == 400
        assert await refused(gateway, owner, theirs["id"]) == unknown
        for number in ("0", "4", "-1", "x", str(2**64), ""):
            assert (await refused(gateway, owner, f"{mine['session_id']}:{number}"))[0] == 400


async def test_a_feed_goes_on_after_an_event_of_an_erased_session(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner = await enter(gateway, OWNER)
        await gateway.respond("one", key="a", headers=owner)
        *_, last = await seen(gateway, owner, 3)
        await gateway.engine.submit(Delete(tenant=OWNER, session_id=SessionId(last["session_id"])))
        await gateway.respond("two", key="b", headers=owner)
        expected = ["session.created", *TURN]
        assert await kinds_after(gateway, owner, last["id"], 3) == expected
