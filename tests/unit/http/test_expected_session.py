"""X-Expected-Session-Id: a message written for one generation never lands in the next."""

import asyncio
from datetime import time
from zoneinfo import ZoneInfo

import httpx
import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.core.transaction.commands import Accept
from tests.in_process import RunningGateway, open_gateway

ALWAYS = ResetPolicy(
    mode="idle", idle_seconds=1e-9, at=time(4), zone=ZoneInfo("UTC"), rollover="hard"
)


def _changed(reply: httpx.Response, live_id: str | None) -> None:
    assert reply.status_code == 409, reply.text
    assert reply.json()["error"]["code"] == "session_changed"
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers.get("x-session-id") == live_id


async def _first(gateway: RunningGateway) -> str:
    return str((await gateway.respond("one")).headers["x-session-id"])


async def _reset(gateway: RunningGateway, session_id: str) -> str:
    return str((await gateway.client.post(f"/v1/sessions/{session_id}/reset")).json()["id"])


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_turn_goes_only_to_the_expected_generation(api: str) -> None:
    async with open_gateway() as gateway:

        async def send(expected: str) -> httpx.Response:
            headers = {"X-Expected-Session-Id": expected}
            if api == "responses":
                return await gateway.respond("two", headers=headers)
            return await gateway.chat([{"role": "user", "content": "two"}], headers=headers)

        first = await _first(gateway)
        assert (await send(first)).status_code == 200
        second = await _reset(gateway, first)
        _changed(await send(first), second)
        assert await gateway.log() == []
        assert (await send(second)).status_code == 200
        assert len(gateway.model.calls) == 3


async def test_a_new_key_has_no_expected_session() -> None:
    async with open_gateway() as gateway:
        _changed(await gateway.respond("hi", headers={"X-Expected-Session-Id": "ses_x"}), None)
        assert (await gateway.client.get("/v1/sessions")).json()["data"] == []


async def test_a_turn_that_waits_for_its_lane_does_not_follow_a_reset() -> None:
    async with open_gateway() as gateway:
        first = await _first(gateway)
        gateway.model.gate.clear()
        headers = {"X-Expected-Session-Id": first}
        waiting = [asyncio.create_task(gateway.respond(str(n), headers=headers)) for n in range(2)]
        await gateway.until_queued(1)
        await _reset(gateway, first)
        gateway.model.gate.set()
        replies = await asyncio.gather(*waiting)
        assert [reply.json()["error"]["code"] for reply in replies] == ["turn_cancelled"] * 2
        assert await gateway.log() == []


async def test_a_repeat_is_answered_although_the_session_has_changed_since() -> None:
    async with open_gateway() as gateway:
        first = await _first(gateway)
        headers = {"X-Expected-Session-Id": first, "Idempotency-Key": "once"}
        answer = await gateway.respond("two", headers=headers)
        await _reset(gateway, first)
        again = await gateway.respond("two", headers=headers)
        assert again.json() == answer.json()


async def test_a_retired_session_named_by_its_id_names_the_live_one() -> None:
    async with open_gateway() as gateway:
        first = await _first(gateway)
        second = await _reset(gateway, first)
        headers = {"X-Session-Id": first, "X-Expected-Session-Id": first}
        _changed(await gateway.respond("two", None, headers=headers), second)


async def test_a_rollover_by_policy_refuses_the_turn_and_does_nothing() -> None:
    async with open_gateway() as gateway:
        first = await _first(gateway)
        accept = Accept(
            tenant=DEFAULT_TENANT,
            turn_id=TurnId("turn_x"),
            run_id=RunId("run_x"),
            worker=gateway.engine.worker.id,
            candidate_id=SessionId("ses_next"),
            key=Key("k"),
            expected_id=SessionId(first),
            reset=ALWAYS,
        )
        with pytest.raises(Exception, match="is not live") as raised:
            await gateway.engine.submit(accept)
        assert getattr(raised.value, "code", "") == "session_changed"
        assert await gateway.log() == ["one", "re:one"]


async def test_items_and_batches_go_only_to_the_expected_session() -> None:
    item = {"type": "message", "role": "user", "content": "x"}
    async with open_gateway() as gateway:
        first = await _first(gateway)
        wrong = {"X-Expected-Session-Id": "ses_x"}
        items = {"items": [item]}
        added = await gateway.client.post(f"/v1/sessions/{first}/items", json=items, headers=wrong)
        _changed(added, first)
        keyed = {"X-Session-Key": "k", **wrong}
        batch = await gateway.client.post("/v1/transcript", json=items, headers=keyed)
        _changed(batch, first)
        assert await gateway.log() == ["one", "re:one"]
        right = {"X-Session-Key": "k", "X-Expected-Session-Id": first}
        batch = await gateway.client.post("/v1/transcript", json=items, headers=right)
        assert batch.status_code == 200


CHANGES = [
    ("POST", ""), ("POST", "/fork"), ("POST", "/compact"), ("POST", "/compactions/cmp_x/undo"),
    ("POST", "/reset"), ("DELETE", ""),
]  # fmt: skip


@pytest.mark.parametrize(("method", "action"), CHANGES)
async def test_only_the_session_that_is_expected_is_changed(method: str, action: str) -> None:
    async with open_gateway() as gateway:
        first = await _first(gateway)
        path = f"/v1/sessions/{first}{action}"
        body = {"metadata": {"a": "b"}} if (method, action) == ("POST", "") else None

        async def send(**headers: str) -> httpx.Response:
            named = {f"X-{name.replace('_', '-')}": value for name, value in headers.items()}
            return await gateway.client.request(method, path, json=body, headers=named)

        before = (await gateway.client.get("/v1/sessions")).json()
        _changed(await send(Expected_Session_Id="ses_x"), first)
        assert (await gateway.client.get("/v1/sessions")).json() == before
        # Clients may send one key with all requests; the path names the session.
        done = await send(Expected_Session_Id=first, Session_Key="another")
        assert done.status_code == (404 if "cmp_x" in action else 200), done.text


async def test_a_pop_and_a_lane_do_not_ignore_an_expected_session() -> None:
    async with open_gateway() as gateway:
        first = await _first(gateway)
        wrong = {"X-Session-Key": "k", "X-Expected-Session-Id": "ses_x"}
        _changed(await gateway.client.delete("/v1/transcript", headers=wrong), first)
        unknown = {**wrong, "X-Session-Key": "new"}
        _changed(await gateway.client.delete("/v1/transcript", headers=unknown), None)
        for path in ("/v1/transcript/lane", f"/v1/sessions/{first}/restore"):
            refused = await gateway.client.post(path, headers=wrong)
            assert refused.status_code == 400, path
        nothing = await gateway.client.post("/v1/transcript", json={"items": []}, headers=unknown)
        assert nothing.status_code == 400
        assert await gateway.log() == ["one", "re:one"]


@pytest.mark.parametrize("value", ["", "x" * 256])
async def test_an_expected_session_must_be_an_id(value: str) -> None:
    async with open_gateway() as gateway:
        reply = await gateway.respond("hi", headers={"X-Expected-Session-Id": value})
        assert reply.status_code == 400


async def test_an_expected_session_needs_a_session() -> None:
    async with open_gateway() as gateway:
        headers = {"X-Expected-Session-Id": "ses_x"}
        for reply in (
            await gateway.respond("hi", None, store=False, headers=headers),
            await gateway.chat([{"role": "user", "content": "hi"}], None, headers=headers),
        ):
            assert reply.status_code == 400
        assert gateway.model.calls == []
