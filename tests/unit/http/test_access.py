"""API keys, tenants, and the rules while no key exists."""

import asyncio

import httpx
import pytest

from holdfast.core.decisions.api_keys import hash_key
from holdfast.core.ids import Tenant
from holdfast.core.transaction.commands import AddApiKey, RevokeApiKey
from holdfast.http.api import events
from tests.in_process import RunningGateway, open_gateway
from tests.socket_client import SocketClient
from tests.streaming import Stream

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


async def _key(gateway: RunningGateway, tenant: str, *, admin: bool = False) -> dict[str, str]:
    key = f"hf_{tenant}_{admin}"
    await gateway.engine.submit(
        AddApiKey(id=f"key_{tenant}_{admin}", tenant=Tenant(tenant), hash=hash_key(key),
                  is_admin=admin)
    )  # fmt: skip
    gateway.application.reload_keys()
    return {"Authorization": f"Bearer {key}"}


async def _post(gateway: RunningGateway, headers: dict[str, str], key: str = "k") -> httpx.Response:
    return await gateway.client.post(
        "/v1/chat/completions", json=ASK, headers={**headers, "X-Session-Key": key}
    )


async def test_after_the_first_key_every_request_needs_one() -> None:
    async with open_gateway() as gateway:
        assert (await _post(gateway, {})).status_code == 200
        mine = await _key(gateway, "acme")
        refused = await _post(gateway, {})
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert (await _post(gateway, {"Authorization": "Bearer nonsense"})).status_code == 401
        assert (await _post(gateway, mine)).status_code == 200


async def test_health_checks_need_no_key() -> None:
    async with open_gateway() as gateway:
        await _key(gateway, "acme")
        for path in ("/healthz", "/readyz"):
            assert (await gateway.client.get(path)).status_code == 200


async def test_keys_stay_required_after_the_last_one_is_revoked() -> None:
    async with open_gateway() as gateway:
        mine = await _key(gateway, "acme")
        await gateway.engine.submit(RevokeApiKey(id="key_acme_False"))
        gateway.application.reload_keys()
        assert (await _post(gateway, mine)).status_code == 401
        assert (await _post(gateway, {})).status_code == 401


async def test_one_session_key_in_two_tenants_is_two_sessions() -> None:
    async with open_gateway() as gateway:
        one, other = await _key(gateway, "one"), await _key(gateway, "other")
        first, second = await _post(gateway, one), await _post(gateway, other)
        assert first.headers["x-session-id"] != second.headers["x-session-id"]
        assert gateway.model.shown == [["hi"], ["hi"]]


async def test_foreign_ids_are_answered_like_unknown_ids() -> None:
    async with open_gateway() as gateway:
        one, other = await _key(gateway, "one"), await _key(gateway, "other")
        mine = await _post(gateway, one)
        session, turn = mine.headers["x-session-id"], mine.headers["x-turn-id"]
        response = turn.replace("turn_", "resp_")
        for name in (f"/v1/sessions/{session}", f"/v1/responses/{response}"):
            foreign = await gateway.client.get(name, headers=other)
            unknown = await gateway.client.get(
                name.replace(session, "ses_x").replace(response, "resp_x"), headers=other
            )
            assert foreign.status_code == unknown.status_code == 404
            assert foreign.json()["error"]["code"] == unknown.json()["error"]["code"]
        joined = await gateway.client.post(
            "/v1/chat/completions", json=ASK, headers={**other, "X-Session-Id": session}
        )
        assert joined.status_code == 404
        listed = await gateway.client.get("/v1/sessions", headers=other)
        assert listed.json()["data"] == []


async def test_metrics_need_an_admin_key_once_keys_exist() -> None:
    async with open_gateway() as gateway:
        mine, admin = await _key(gateway, "acme"), await _key(gateway, "acme", admin=True)
        assert (await gateway.client.get("/metrics", headers=mine)).status_code == 403
        assert (await gateway.client.get("/metrics", headers=admin)).status_code != 403


async def test_without_keys_only_loopback_host_names_are_accepted() -> None:
    async with open_gateway() as gateway:
        for host, status in (
            ("localhost:8377", 200), ("127.0.0.1", 200), ("[::1]:8377", 200),
            ("evil.example", 403), ("127.0.0.1.evil.example:8377", 403), ("", 403),
            ("localhost:x@evil.example", 403), ("user@localhost", 403), ("localhost:8377x", 403),
            ("localhost/evil", 403), ("[::1", 403), ("localhost:", 403),
        ):  # fmt: skip
            reply = await gateway.client.get("/v1/sessions", headers={"Host": host})
            assert reply.status_code == status, host


async def test_a_form_post_from_a_web_page_is_rejected() -> None:
    async with open_gateway() as gateway:
        reply = await gateway.client.post(
            "/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"}
        )
        assert reply.status_code == 415
        assert "access-control-allow-origin" not in reply.headers


async def test_every_answer_carries_a_request_id() -> None:
    async with open_gateway() as gateway:
        for path in ("/v1/sessions", "/nowhere"):
            assert (await gateway.client.get(path)).headers["x-request-id"].startswith("req_")


async def test_two_api_keys_in_one_request_are_rejected() -> None:
    async with open_gateway() as gateway:
        mine, other = await _key(gateway, "acme"), await _key(gateway, "other")
        both = [("Authorization", one["Authorization"]) for one in (mine, other)]
        reply = await gateway.client.get("/v1/sessions", headers=both)
        assert reply.status_code == 400
        assert "authorization was sent more than once" in reply.json()["error"]["message"]


async def test_a_revoked_key_loses_its_event_feed() -> None:
    async with open_gateway() as gateway:
        mine, other = await _key(gateway, "acme"), await _key(gateway, "other")
        session = (await _post(gateway, mine)).headers["x-session-id"]
        feeds = [
            Stream(gateway.server, "GET", path, headers=mine)
            for path in ("/v1/events", f"/v1/sessions/{session}/events")
        ]
        foreign = Stream(gateway.server, "GET", "/v1/events", headers=other)
        for feed in (*feeds, foreign):
            assert await feed.text() == ": keep-alive"
        await gateway.engine.submit(RevokeApiKey(id="key_acme_False"))
        gateway.application.reload_keys()
        for feed in feeds:
            while await feed.text() is not None:
                pass
            assert feed.is_complete
        await _post(gateway, other)
        assert "session.created" in (await foreign.text() or "")
        await foreign.leave()


async def test_a_revoked_key_loses_its_websocket() -> None:
    async with open_gateway() as gateway:
        mine = await _key(gateway, "acme")
        client = SocketClient(gateway.server, headers=mine)
        client.create("hi")
        assert (await client.response())[-1]["type"] == "response.completed"
        await gateway.engine.submit(RevokeApiKey(id="key_acme_False"))
        gateway.application.reload_keys()
        error = await client.next()
        assert error is not None
        assert error["error"]["code"] == "invalid_api_key"
        assert await client.next() is None
        assert client.close_code == 1008


async def test_one_tenant_cannot_take_the_feeds_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_FEEDS_PER_TENANT", 2)
    async with open_gateway() as gateway:
        mine, other = await _key(gateway, "acme"), await _key(gateway, "other")
        feeds = [Stream(gateway.server, "GET", "/v1/events", headers=mine) for _ in range(2)]
        for feed in feeds:
            assert await feed.text() == ": keep-alive"
        full = await gateway.client.get("/v1/events", headers=mine)
        assert full.status_code == 429
        assert full.json()["error"]["code"] == "too_many_followers"
        foreign = Stream(gateway.server, "GET", "/v1/events", headers=other)
        assert await foreign.text() == ": keep-alive"
        await feeds[0].leave()
        again = Stream(gateway.server, "GET", "/v1/events", headers=mine)
        assert await again.text() == ": keep-alive"
        for feed in (feeds[1], foreign, again):
            await feed.leave()


async def test_dead_followers_of_a_pipelined_connection_are_released_at_once() -> None:
    async with open_gateway() as gateway:
        reader, writer = await asyncio.open_connection(*gateway.server.address)
        follow = b"GET /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        writer.write(follow * 3)
        await reader.readuntil(b": keep-alive")
        feed = gateway.application._events
        assert sum(feed._open_feeds.values()) == 1
        address = writer.get_extra_info("sockname")[:2]
        writer.close()
        await gateway.server.until_done(address)
        assert sum(feed._open_feeds.values()) == 0


async def _status_of(gateway: RunningGateway, head: bytes) -> bytes:
    """Send a raw head and return the status of the answer."""
    reader, writer = await asyncio.open_connection(*gateway.server.address)
    writer.write(head + b"connection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.split(b" ")[1]


@pytest.mark.parametrize("has_keys", [False, True])
async def test_two_host_headers_are_rejected(has_keys: bool) -> None:
    async with open_gateway() as gateway:
        if has_keys:
            await _key(gateway, "acme")
        for path in (b"GET /v1/sessions", b"GET /healthz", b"POST /v1/channels/x/webhook"):
            for second in (b"localhost", b"evil.example"):
                head = b"%b HTTP/1.1\r\nhost: localhost\r\nhost: %b\r\n" % (path, second)
                assert await _status_of(gateway, head) == b"400", path


@pytest.mark.parametrize("has_keys", [False, True])
async def test_http_1_1_without_a_host_header_is_rejected(has_keys: bool) -> None:
    async with open_gateway() as gateway:
        if has_keys:
            await _key(gateway, "acme")
        for path in (b"GET /v1/sessions", b"GET /healthz", b"POST /v1/channels/x/webhook"):
            assert await _status_of(gateway, b"%b HTTP/1.1\r\n" % path) == b"400", path
        upgrade = (
            b"GET /v1/responses HTTP/1.1\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nconnection: upgrade\r\n"
        )
        assert await _status_of(gateway, upgrade) == b"400"


async def test_http_1_0_needs_no_host_header() -> None:
    async with open_gateway() as gateway:
        assert await _status_of(gateway, b"GET /healthz HTTP/1.0\r\n") == b"200"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_without_keys_a_foreign_origin_changes_nothing(origin: str) -> None:
    async with open_gateway() as gateway:
        made = await _post(gateway, {})
        session = made.headers["x-session-id"]
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/embeddings"),
            ("POST", f"/v1/sessions/{session}/reset"),
            ("DELETE", f"/v1/sessions/{session}"),
        ):
            body = ASK if path.endswith("completions") else None
            reply = await gateway.client.request(
                method, path, json=body, headers={"Origin": origin}
            )
            assert reply.status_code == 403, path
            assert reply.json()["error"]["code"] == "origin_not_allowed"
        kept = await gateway.client.get(f"/v1/sessions/{session}", headers={"Origin": origin})
        assert (kept.status_code, kept.json()["status"]) == (200, "idle")
        assert len(gateway.model.calls) == 1


async def test_the_servers_own_origin_and_key_holders_are_accepted() -> None:
    async with open_gateway() as gateway:
        assert (await _post(gateway, {"Origin": gateway.server.url})).status_code == 200
        mine = await _key(gateway, "acme")
        foreign = {**mine, "Origin": "https://app.example"}
        assert (await _post(gateway, foreign)).status_code == 200
