"""Keys, tenants and the rules of a house without keys."""

import httpx

from holdfast.core.decisions.api_keys import hash_key
from holdfast.core.ids import Tenant
from holdfast.core.transaction.commands import AddApiKey, RevokeApiKey
from tests.in_process import House, open_house

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


async def _key(house: House, tenant: str, *, admin: bool = False) -> dict[str, str]:
    key = f"hf_{tenant}_{admin}"
    await house.gateway.submit(
        AddApiKey(id=f"key_{tenant}_{admin}", tenant=Tenant(tenant), hash=hash_key(key),
                  is_admin=admin)
    )  # fmt: skip
    house.application.look_again()
    return {"Authorization": f"Bearer {key}"}


async def _post(house: House, headers: dict[str, str], key: str = "k") -> httpx.Response:
    return await house.client.post(
        "/v1/chat/completions", json=ASK, headers={**headers, "X-Session-Key": key}
    )


async def test_the_first_key_closes_the_door_for_everybody_else() -> None:
    async with open_house() as house:
        assert (await _post(house, {})).status_code == 200
        mine = await _key(house, "acme")
        refused = await _post(house, {})
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert (await _post(house, {"Authorization": "Bearer nonsense"})).status_code == 401
        assert (await _post(house, mine)).status_code == 200


async def test_health_stays_open() -> None:
    async with open_house() as house:
        await _key(house, "acme")
        for path in ("/healthz", "/readyz"):
            assert (await house.client.get(path)).status_code == 200


async def test_the_door_stays_closed_when_the_last_key_is_revoked() -> None:
    async with open_house() as house:
        mine = await _key(house, "acme")
        await house.gateway.submit(RevokeApiKey(id="key_acme_False"))
        house.application.look_again()
        assert (await _post(house, mine)).status_code == 401
        assert (await _post(house, {})).status_code == 401


async def test_one_key_name_in_two_tenants_is_two_conversations() -> None:
    async with open_house() as house:
        one, other = await _key(house, "one"), await _key(house, "other")
        first, second = await _post(house, one), await _post(house, other)
        assert first.headers["x-session-id"] != second.headers["x-session-id"]
        assert house.model.shown == [["hi"], ["hi"]]


async def test_foreign_ids_answer_exactly_as_ids_that_do_not_exist() -> None:
    async with open_house() as house:
        one, other = await _key(house, "one"), await _key(house, "other")
        mine = await _post(house, one)
        session, turn = mine.headers["x-session-id"], mine.headers["x-turn-id"]
        response = turn.replace("turn_", "resp_")
        for name in (f"/v1/sessions/{session}", f"/v1/responses/{response}"):
            foreign = await house.client.get(name, headers=other)
            unknown = await house.client.get(
                name.replace(session, "ses_x").replace(response, "resp_x"), headers=other
            )
            assert foreign.status_code == unknown.status_code == 404
            assert foreign.json()["error"]["code"] == unknown.json()["error"]["code"]
        joined = await house.client.post(
            "/v1/chat/completions", json=ASK, headers={**other, "X-Session-Id": session}
        )
        assert joined.status_code == 404
        listed = await house.client.get("/v1/sessions", headers=other)
        assert listed.json()["data"] == []


async def test_metrics_need_an_admin_once_there_are_keys() -> None:
    async with open_house() as house:
        mine, admin = await _key(house, "acme"), await _key(house, "acme", admin=True)
        assert (await house.client.get("/metrics", headers=mine)).status_code == 403
        assert (await house.client.get("/metrics", headers=admin)).status_code != 403


async def test_without_keys_only_loopback_names_are_answered() -> None:
    async with open_house() as house:
        for host, status in (
            ("localhost:8377", 200), ("127.0.0.1", 200), ("[::1]:8377", 200),
            ("evil.example", 403), ("127.0.0.1.evil.example:8377", 403),
        ):  # fmt: skip
            reply = await house.client.get("/v1/sessions", headers={"Host": host})
            assert reply.status_code == status, host


async def test_a_form_post_from_a_web_page_is_refused() -> None:
    async with open_house() as house:
        reply = await house.client.post(
            "/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"}
        )
        assert reply.status_code == 415
        assert "access-control-allow-origin" not in reply.headers


async def test_every_answer_carries_a_request_id() -> None:
    async with open_house() as house:
        for path in ("/v1/sessions", "/nowhere"):
            assert (await house.client.get(path)).headers["x-request-id"].startswith("req_")
