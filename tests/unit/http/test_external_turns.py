"""Turns that clients run themselves and name themselves: a name means nothing to anybody else."""

from typing import Any

import httpx
import pytest

from holdfast.core.decisions.api_keys import hash_key
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.transaction.commands import AddApiKey, AppendBatch
from tests.in_process import Item, RunningGateway, open_gateway

TURN = "turn_1"


@pytest.fixture(params=["memory", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory:"
    return str(request.getfixturevalue("postgres_url"))


class Client:
    """A tenant's client that appends batches to turns of its own."""

    def __init__(self, gateway: RunningGateway, tenant: str) -> None:
        self.gateway, self.tenant = gateway, tenant
        self.headers = {"Authorization": f"Bearer hf_{tenant}"}

    async def enter(self) -> "Client":
        await self.gateway.engine.submit(
            AddApiKey(
                id=f"key_{self.tenant}",
                tenant=Tenant(self.tenant),
                hash=hash_key(f"hf_{self.tenant}"),
            )
        )
        self.gateway.application.reload_keys()
        return self

    async def post(
        self, text: str, ordinal: int, turn_id: str = TURN, **named: str
    ) -> httpx.Response:
        """Add a batch; `named` is `key` or `id`, by default the key `k`."""
        place = {f"X-Session-{name}": value for name, value in (named or {"Key": "k"}).items()}
        body: dict[str, Any] = {
            "turn_id": turn_id,
            "ordinal": ordinal,
            "items": [{"type": "message", "role": "user", "content": text}],
        }
        path = "/v1/transcript"
        return await self.gateway.client.post(path, json=body, headers={**self.headers, **place})

    async def add(self, text: str, ordinal: int, turn_id: str = TURN, **named: str) -> Item:
        answer = await self.post(text, ordinal, turn_id, **named)
        assert answer.status_code == 200, answer.text
        added: Item = answer.json()
        return added

    async def texts(self, session_id: str) -> list[str]:
        answer = await self.gateway.client.get(
            "/v1/transcript", headers={**self.headers, "X-Session-Id": session_id}
        )
        return [item["content"] for item in answer.json()["data"]]


async def test_a_turn_id_that_another_tenant_took_first_is_free(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        squatter = await Client(gateway, "squatter").enter()
        owner = await Client(gateway, "owner").enter()
        await squatter.add("squat", 0)
        first = await owner.add("one", 0)
        second = await owner.add("two", 1)
        again = await owner.add("two", 1)
        assert second["turn_id"] == first["turn_id"] == again["turn_id"]
        assert await owner.texts(first["session_id"]) == ["one", "two"]


async def test_both_ids_are_answered_and_the_clients_is_not_stored(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner = await Client(gateway, "owner").enter()
        added = await owner.add("one", 0)
        assert added["client_turn_id"] == TURN
        assert added["turn_id"] != TURN
        shown = await gateway.client.get(f"/v1/turns/{added['turn_id']}", headers=owner.headers)
        assert shown.json()["id"] == added["turn_id"]
        unknown = await gateway.client.get(f"/v1/turns/{TURN}", headers=owner.headers)
        assert unknown.status_code == 404


async def test_a_foreign_turn_is_answered_like_an_unknown_one(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner = await Client(gateway, "owner").enter()
        stranger = await Client(gateway, "stranger").enter()
        theirs = await owner.add("mine", 0)
        for ordinal in (0, 1):
            seen = []
            for turn_id in (TURN, theirs["turn_id"], "turn_unknown"):
                answer = await stranger.post("?", ordinal, turn_id, Key=f"{turn_id}{ordinal}")
                assert answer.json()["turn_id"] != theirs["turn_id"]
                seen.append((answer.status_code, sorted(answer.json()), answer.json()["head_seq"]))
            assert seen == [seen[0]] * 3
        assert await owner.texts(theirs["session_id"]) == ["mine"]


async def test_one_id_names_a_turn_in_each_session(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner = await Client(gateway, "owner").enter()
        one = await owner.add("a", 0, Key="one")
        two = await owner.add("b", 0, Key="two")
        assert one["turn_id"] != two["turn_id"]
        await owner.add("c", 1, Key="two")
        assert await owner.texts(one["session_id"]) == ["a"]
        assert await owner.texts(two["session_id"]) == ["b", "c"]


async def test_a_turn_is_the_same_by_the_key_and_by_the_id_of_its_session(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner = await Client(gateway, "owner").enter()
        first = await owner.add("one", 0)
        second = await owner.add("two", 1, Id=first["session_id"])
        assert second["turn_id"] == first["turn_id"]
        reset = await gateway.client.post(
            f"/v1/sessions/{first['session_id']}/reset", headers=owner.headers
        )
        assert reset.status_code == 200
        # It stays in the generation in which it started, however the session is named.
        third = await owner.add("three", 2, Id=first["session_id"])
        fourth = await owner.add("four", 3)
        assert third["turn_id"] == fourth["turn_id"] == first["turn_id"]
        assert await owner.texts(first["session_id"]) == ["one", "two", "three", "four"]


async def test_the_gateways_own_id_continues_the_turn(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner = await Client(gateway, "owner").enter()
        first = await owner.add("one", 0)
        second = await owner.add("two", 1, first["turn_id"])
        assert second["turn_id"] == first["turn_id"]
        assert await owner.texts(first["session_id"]) == ["one", "two"]


@pytest.mark.parametrize("ordinal", [0, 1])
async def test_nothing_is_added_to_a_turn_that_a_model_answered(url: str, ordinal: int) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner = await Client(gateway, "owner").enter()
        answered = await gateway.respond("hi", headers=owner.headers)
        turn_id = answered.headers["x-turn-id"]
        refused = await owner.post("more", ordinal, turn_id)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "turn_id"
        shown = await gateway.client.get(f"/v1/turns/{turn_id}", headers=owner.headers)
        assert shown.json()["step"] == 0
        session_id = answered.headers["x-session-id"]
        assert len(await owner.texts(session_id)) == 2


async def test_a_turn_that_was_stored_under_the_clients_id_keeps_it(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner = await Client(gateway, "owner").enter()
        stranger = await Client(gateway, "stranger").enter()
        before = await gateway.engine.submit(
            AppendBatch(
                tenant=Tenant("owner"),
                turn_id=TurnId(TURN),
                ordinal=0,
                worker=gateway.engine.worker.id,
                candidate_id=SessionId("ses_old"),
                key=Key("k"),
            )
        )
        theirs = await stranger.add("theirs", 1)
        assert theirs["turn_id"] != TURN
        mine = await owner.add("mine", 1)
        assert (mine["turn_id"], mine["session_id"]) == (TURN, before.session.id)
        repeated = await owner.add("mine", 1)
        assert repeated["turn_id"] == TURN
        elsewhere = await owner.add("other", 1, Key="elsewhere")
        assert elsewhere["turn_id"] != TURN
        assert await owner.texts(before.session.id) == ["mine"]
