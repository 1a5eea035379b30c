"""Tenant isolation: every id of another tenant is answered like one that does not exist."""

from typing import Any

import httpx
import msgspec
import pytest

from holdfast.core.decisions.api_keys import hash_key
from holdfast.core.ids import Tenant
from holdfast.core.transaction.commands import AddApiKey
from tests.in_process import Item, RunningGateway, open_gateway

ITEMS = {"items": [{"role": "user", "content": "mine"}]}
RETRIED = {"x-stainless-retry-count": "1"}


async def _enter(gateway: RunningGateway, tenant: str) -> dict[str, str]:
    key = f"hf_{tenant}"
    await gateway.engine.submit(
        AddApiKey(id=f"key_{tenant}", tenant=Tenant(tenant), hash=hash_key(key))
    )
    gateway.application.reload_keys()
    return {"Authorization": f"Bearer {key}"}


class Owner:
    """Somebody who has one of everything."""

    def __init__(self, gateway: RunningGateway, headers: dict[str, str]) -> None:
        self._gateway = gateway
        self.headers = headers
        self.ids: dict[str, str] = {}

    async def settle(self) -> None:
        """Make one of everything."""
        answer = await self._gateway.respond("one " * 400, headers=self.headers)
        session = answer.headers["x-session-id"]
        await self._gateway.client.post(f"/v1/sessions/{session}/compact", headers=self.headers)
        [compaction] = (await self.get(f"/v1/sessions/{session}/compactions"))["data"]
        items = (await self.get(f"/v1/sessions/{session}/items"))["data"]
        made = await self._gateway.client.post(
            "/v1/conversations", json=ITEMS, headers=self.headers
        )
        name = made.json()["id"]
        await self._gateway.client.post(
            f"/v1/conversations/{name}/items",
            json=ITEMS,
            headers={**self.headers, "Idempotency-Key": "once"},
        )
        listed = (await self.get(f"/v1/conversations/{name}/items"))["data"]
        self.ids = {
            "session": session,
            "turn": answer.headers["x-turn-id"],
            "response": answer.json()["id"],
            "item": items[0]["id"],
            "conversation": name,
            "said": listed[0]["id"],
            "compaction": compaction["id"],
        }

    async def get(self, path: str) -> Item:
        answer = await self._gateway.client.get(path, headers=self.headers)
        assert answer.status_code == 200, answer.text
        value: Item = answer.json()
        return value

    async def everything(self) -> list[Item]:
        """Return all that others must not change."""
        ids = self.ids
        paths = [
            "/v1/sessions?generations=true", f"/v1/sessions/{ids['session']}/items?view=log",
            f"/v1/sessions/{ids['session']}/turns", f"/v1/sessions/{ids['session']}/compactions",
            f"/v1/conversations/{ids['conversation']}",
            f"/v1/conversations/{ids['conversation']}/items", f"/v1/turns/{ids['turn']}",
        ]  # fmt: skip
        return [await self.get(path) for path in paths]


PROBES: list[tuple[str, str, Any, dict[str, str]]] = [
    ("GET", "/v1/conversations/{conversation}", None, {}),
    ("POST", "/v1/conversations/{conversation}", {"metadata": {"a": "b"}}, {}),
    ("DELETE", "/v1/conversations/{conversation}?cascade=true", None, {}),
    ("GET", "/v1/conversations/{conversation}/items", None, {}),
    ("GET", "/v1/conversations/{conversation}/items?after={said}", None, {}),
    ("POST", "/v1/conversations/{conversation}/items", ITEMS, {}),
    ("POST", "/v1/conversations/{conversation}/items", ITEMS, RETRIED),
    ("GET", "/v1/conversations/{conversation}/items/{said}", None, {}),
    ("DELETE", "/v1/conversations/{conversation}/items/{said}?erase=true", None, {}),
    ("GET", "/v1/sessions?after={session}", None, {}),
    ("GET", "/v1/sessions/{session}", None, {}),
    ("POST", "/v1/sessions/{session}", {"metadata": {}}, {}),
    ("DELETE", "/v1/sessions/{session}?cascade=true", None, {}),
    ("GET", "/v1/sessions/{session}/items", None, {}),
    ("GET", "/v1/sessions/{session}/items?view=log&after={item}", None, {}),
    ("POST", "/v1/sessions/{session}/items", ITEMS, {}),
    ("POST", "/v1/sessions/{session}/items", ITEMS, RETRIED),
    ("GET", "/v1/sessions/{session}/turns", None, {}),
    ("GET", "/v1/sessions/{session}/turns?after={turn}", None, {}),
    ("GET", "/v1/sessions/{session}/events", None, {}),
    ("POST", "/v1/sessions/{session}/reset", None, {}),
    ("POST", "/v1/sessions/{session}/reset", {"expected_session_id": "{session}"}, {}),
    ("POST", "/v1/sessions/{session}/restore", None, {}),
    ("POST", "/v1/sessions/{session}/fork", None, {}),
    ("POST", "/v1/sessions/{session}/fork", {"after_item": "{item}"}, {}),
    ("POST", "/v1/sessions/{session}/compact", None, {}),
    ("GET", "/v1/sessions/{session}/compactions", None, {}),
    ("GET", "/v1/sessions/{session}/compactions/{compaction}", None, {}),
    ("POST", "/v1/sessions/{session}/compactions/{compaction}/undo", None, {}),
    ("POST", "/v1/responses/compact", {"model": "m", "previous_response_id": "{response}"}, {}),
    ("GET", "/v1/turns/{turn}", None, {}),
    ("POST", "/v1/turns/{turn}/cancel", None, {}),
    ("POST", "/v1/responses", {"model": "m", "input": "x", "conversation": "{conversation}"}, {}),
    ("POST", "/v1/responses", {"model": "m", "input": "x", "conversation": {"id": "{session}"}},
     {}),
    ("POST", "/v1/responses", {"model": "scripted", "input": "one"},
     {"X-Session-Id": "{session}", **RETRIED}),
    ("POST", "/v1/responses", {"model": "m", "input": "x", "previous_response_id": "{response}"},
     {}),
]  # fmt: skip
OWN: list[tuple[str, str, Any]] = [
    # The stranger's own place, with somebody else's id in it.
    ("GET", "/v1/conversations/{own}/items?after={said}", None),
    ("GET", "/v1/conversations/{own}/items/{said}", None),
    ("DELETE", "/v1/conversations/{own}/items/{said}", None),
    ("GET", "/v1/sessions/{own_session}/items?after={item}", None),
    ("GET", "/v1/sessions/{own_session}/turns?after={turn}", None),
    ("POST", "/v1/sessions/{own_session}/fork", {"after_item": "{item}"}),
    ("GET", "/v1/sessions/{own_session}/compactions/{compaction}", None),
    ("GET", "/v1/sessions/{own_session}/compactions?after={compaction}", None),
    ("POST", "/v1/sessions/{own_session}/compactions/{compaction}/undo", None),
]


def _filled(value: Any, ids: dict[str, str]) -> Any:
    text = msgspec.json.encode(value).decode()
    for name, one in ids.items():
        text = text.replace("{" + name + "}", one)
    return msgspec.json.decode(text)


def _seen(answer: httpx.Response, ids: dict[str, str]) -> tuple[int, dict[str, str], str]:
    """Return an answer with what was asked for taken out of it."""
    text = answer.text
    headers = {k: v for k, v in answer.headers.items() if k != "x-request-id"}
    for name, one in ids.items():
        text = text.replace(one, "{" + name + "}")
    return answer.status_code, headers, text


async def _ask(
    gateway: RunningGateway,
    probe: tuple[str, str, Any, dict[str, str]],
    ids: dict[str, str],
    who: Any,
) -> tuple[int, dict[str, str], str]:
    method, path, body, more = _filled(probe, ids)
    headers = {**who, **more}
    if body is None:
        answer = await gateway.client.request(method, path, headers=headers)
    else:
        answer = await gateway.client.request(method, path, json=body, headers=headers)
    return _seen(answer, ids)


@pytest.fixture(params=["memory", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory:"
    return str(request.getfixturevalue("postgres_url"))


async def test_a_foreign_id_is_an_unknown_id_on_every_endpoint(url: str) -> None:
    async with open_gateway(store_url=url) as gateway:
        owner = Owner(gateway, await _enter(gateway, "owner"))
        stranger = await _enter(gateway, "stranger")
        await owner.settle()
        made = await gateway.client.post("/v1/conversations", json=ITEMS, headers=stranger)
        own = made.json()["id"]
        mine = {"own": own, "own_session": f"ses_{own.removeprefix('conv_')}"}
        foreign = {**owner.ids, **mine}
        # Same length and alphabet, so that nothing but existence could tell them apart.
        unknown = {**{name: one[:-8] + "0" * 8 for name, one in owner.ids.items()}, **mine}
        before = await owner.everything()
        for probe in (*PROBES, *((*one, {}) for one in OWN)):
            told = await _ask(gateway, probe, foreign, stranger)
            assert told == await _ask(gateway, probe, unknown, stranger), probe
            assert told[0] in (400, 404), probe
        assert await owner.everything() == before


async def test_an_idempotency_key_is_its_tenants_own() -> None:
    async with open_gateway() as gateway:
        owner = Owner(gateway, await _enter(gateway, "owner"))
        stranger = await _enter(gateway, "stranger")
        await owner.settle()
        body: Item = {"items": [{"role": "user", "content": "another"}]}
        answer = await gateway.client.post(
            "/v1/conversations", json=body, headers={**stranger, "Idempotency-Key": "once"}
        )
        assert answer.status_code == 200
        assert answer.json()["id"] != owner.ids["conversation"]


async def test_lists_and_feeds_show_only_the_callers_own_sessions() -> None:
    async with open_gateway() as gateway:
        owner = Owner(gateway, await _enter(gateway, "owner"))
        stranger = await _enter(gateway, "stranger")
        await owner.settle()
        listed = await gateway.client.get("/v1/sessions?generations=true", headers=stranger)
        assert listed.json()["data"] == []
        named = await gateway.client.get("/v1/sessions?key=k", headers=stranger)
        assert named.json()["data"] == []
