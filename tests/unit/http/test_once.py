"""One request, one turn: idempotency keys and SDK retries over HTTP."""

import asyncio
from typing import Any

import pytest

from holdfast.core.errors import HoldfastError, ProviderFailure, UnsupportedByUpstream
from holdfast.engine.settings import LaneSettings
from tests.in_process import RunningGateway, ScriptedModel, open_gateway, said


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def _flush(gateway: RunningGateway) -> None:
    await gateway.engine._flush_delivered()


async def test_the_same_idempotency_key_gives_the_one_recorded_answer() -> None:
    async with open_gateway() as gateway:
        headers = {"Idempotency-Key": "once"}
        first = await gateway.chat([_user("hi")], headers=headers)
        second = await gateway.chat([_user("hi")], headers=headers)
        assert first.json() == second.json()
        assert first.headers["x-turn-id"] == second.headers["x-turn-id"]
        assert await gateway.log() == ["hi", "re:hi"]
        assert len(gateway.model.calls) == 1


async def test_another_body_with_the_same_key_is_rejected_and_recorded_nowhere() -> None:
    async with open_gateway() as gateway:
        headers = {"Idempotency-Key": "once"}
        await gateway.chat([_user("hi")], headers=headers)
        other = await gateway.chat([_user("ho")], headers=headers)
        assert other.status_code == 422
        assert other.json()["error"]["code"] == "idempotency_key_reused"
        assert await gateway.log() == ["hi", "re:hi"]


async def test_the_same_body_for_another_session_is_another_request() -> None:
    async with open_gateway() as gateway:
        headers = {"Idempotency-Key": "once"}
        await gateway.chat([_user("hi")], "a", headers=headers)
        assert (await gateway.chat([_user("hi")], "b", headers=headers)).status_code == 422


async def test_a_repeat_of_a_running_request_waits_for_its_answer() -> None:
    async with open_gateway() as gateway:
        gateway.model.gate.clear()
        headers = {"Idempotency-Key": "once"}
        first = asyncio.create_task(gateway.chat([_user("hi")], headers=headers))
        await gateway.model.entered.acquire()
        second = asyncio.create_task(gateway.chat([_user("hi")], headers=headers))
        gateway.model.gate.set()
        assert (await first).json() == (await second).json()
        assert len(gateway.model.calls) == 1


async def test_a_rejected_request_is_not_recorded_under_its_key() -> None:
    async with open_gateway() as gateway:
        gateway.model.gate.clear()
        running = asyncio.create_task(gateway.chat([_user("one")]))
        await gateway.model.entered.acquire()
        headers = {"Idempotency-Key": "once", "X-On-Busy": "reject"}
        busy = await gateway.chat([_user("two")], headers=headers)
        assert busy.status_code == 409
        assert busy.json()["error"]["code"] == "session_busy"
        assert int(busy.headers["retry-after"]) >= 1
        gateway.model.gate.set()
        await running
        assert (await gateway.chat([_user("two")], headers=headers)).status_code == 200


async def test_an_sdk_retry_attaches_to_the_turn_it_repeats() -> None:
    async with open_gateway() as gateway:
        first = await gateway.chat([_user("yes")])
        retry = await gateway.chat([_user("yes")], headers={"x-stainless-retry-count": "1"})
        assert retry.headers["x-turn-id"] == first.headers["x-turn-id"]
        assert await gateway.log() == ["yes", "re:yes"]


async def test_a_retry_count_claims_its_turn_only_once() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("yes")])
        for _ in range(2):
            await gateway.chat([_user("yes")], headers={"x-stainless-retry-count": "1"})
        assert await gateway.log() == ["yes", "re:yes", "yes", "re:yes"]


async def test_a_delivered_answer_is_noted_and_still_repeated_for_a_short_while() -> None:
    async with open_gateway() as gateway:
        first = await gateway.chat([_user("yes")])
        await _flush(gateway)
        retry = await gateway.chat([_user("yes")], headers={"x-stainless-retry-count": "1"})
        assert retry.headers["x-turn-id"] == first.headers["x-turn-id"]


async def test_a_retry_of_another_body_is_a_request_of_its_own() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("yes")])
        await gateway.chat([_user("no")], headers={"x-stainless-retry-count": "1"})
        assert await gateway.log() == ["yes", "re:yes", "no", "re:no"]


async def test_a_cancelled_turn_stops_the_retries_of_the_sdk() -> None:
    async with open_gateway() as gateway:
        gateway.model.gate.clear()
        running = asyncio.create_task(gateway.chat([_user("one")]))
        await gateway.model.entered.acquire()
        gateway.model.script = lambda _: [said("instead")]
        cutting = asyncio.create_task(
            gateway.chat([_user("two")], headers={"X-On-Busy": "interrupt"})
        )
        gone = await running
        assert gone.status_code == 409
        assert gone.json()["error"]["code"] == "turn_cancelled"
        assert gone.headers["x-should-retry"] == "false"
        gateway.model.gate.set()
        assert (await cutting).status_code == 200
        assert await gateway.log() == ["one", "two", "instead"]


async def test_rollback_hides_the_cancelled_turn_from_the_model() -> None:
    async with open_gateway() as gateway:
        gateway.model.gate.clear()
        running = asyncio.create_task(gateway.chat([_user("one")]))
        await gateway.model.entered.acquire()
        cutting = asyncio.create_task(
            gateway.chat([_user("two")], headers={"X-On-Busy": "rollback"})
        )
        assert (await running).status_code == 409
        gateway.model.gate.set()
        await cutting
        assert await gateway.log() == ["two", "re:two"]
        assert gateway.model.shown[-1] == ["two"]


async def test_a_full_lane_is_429_with_its_own_code() -> None:
    lanes = LaneSettings(max_waiting=1)
    async with open_gateway(ScriptedModel(), lanes=lanes) as gateway:
        gateway.model.gate.clear()
        running = asyncio.create_task(gateway.chat([_user("one")]))
        await gateway.model.entered.acquire()
        waiting = asyncio.create_task(gateway.chat([_user("two")]))
        await gateway.until_queued(1)
        full = await gateway.chat([_user("three")])
        assert full.status_code == 429
        assert full.json()["error"]["code"] == "lane_full"
        assert "retry-after" in full.headers
        gateway.model.gate.set()
        await asyncio.gather(running, waiting)


_FAILURES = [
    ProviderFailure("too long", failure_class="overflow", status=400,
                    provider_code="context_length_exceeded", provider_type="invalid_request_error",
                    param="input"),
    ProviderFailure("no money", failure_class="terminal", status=429,
                    provider_code="insufficient_quota", provider_type="insufficient_quota"),
    ProviderFailure("no such model", failure_class="terminal", status=404,
                    provider_code="model_not_found", provider_type="invalid_request_error"),
    UnsupportedByUpstream("an item of type 'x'", "a Chat server"),
]  # fmt: skip


@pytest.mark.parametrize("failure", _FAILURES, ids=["overflow", "quota", "model", "ours"])
async def test_a_repeat_of_a_failed_request_gets_the_same_error(
    failure: HoldfastError,
) -> None:
    def fail(_: list[dict[str, Any]]) -> list[dict[str, Any]]:
        raise failure

    async with open_gateway(ScriptedModel(fail)) as gateway:
        headers = {"Idempotency-Key": "once"}
        gateway.model.gate.clear()
        asked = [asyncio.create_task(gateway.respond("hi", headers=headers)) for _ in range(3)]
        await gateway.model.entered.acquire()
        gateway.model.gate.set()
        first, *others = await asyncio.gather(*asked)
        others.append(await gateway.respond("hi", headers=headers))
        assert len(gateway.model.calls) == 1
        assert first.status_code >= 400
        for other in others:
            assert (other.status_code, other.json()) == (first.status_code, first.json())
            assert other.headers["x-turn-id"] == first.headers["x-turn-id"]


async def test_error_replies_name_their_session_and_turn() -> None:
    async with open_gateway() as gateway:
        told = ("x-session-id", "x-session-key", "x-session-generation")
        first = await gateway.chat([_user("hi")])
        await gateway.model.entered.acquire()
        gateway.model.gate.clear()
        running = asyncio.create_task(gateway.respond("one"))
        await gateway.model.entered.acquire()
        busy = await gateway.chat([_user("two")], headers={"X-On-Busy": "reject"})
        cutting = asyncio.create_task(gateway.respond("two", headers={"X-On-Busy": "interrupt"}))
        cancelled = await running
        gateway.model.gate.set()
        await cutting

        def fail(_: list[dict[str, Any]]) -> list[dict[str, Any]]:
            raise ProviderFailure("no", failure_class="terminal", status=400)

        gateway.model.script = fail
        failed = [await gateway.respond("three"), await gateway.chat([_user("four")])]
        assert [busy.status_code, cancelled.status_code] == [409, 409]
        for error in (busy, cancelled, *failed):
            assert {name: error.headers[name] for name in told} == {
                name: first.headers[name] for name in told
            }
        turns = [error.headers["x-turn-id"] for error in (cancelled, *failed)]
        for turn_id, outcome in zip(turns, ("cancelled", "failed", "failed"), strict=True):
            assert (await gateway.client.get(f"/v1/turns/{turn_id}")).json()["status"] == outcome


async def test_waiting_clients_of_a_deleted_session_get_the_same_error() -> None:
    async with open_gateway() as gateway:
        first = await gateway.chat([_user("hi")])
        await gateway.model.entered.acquire()
        gateway.model.gate.clear()
        headers = {"Idempotency-Key": "once"}
        waiting = [asyncio.create_task(gateway.respond("one", headers=headers))]
        await gateway.model.entered.acquire()
        waiting.append(asyncio.create_task(gateway.respond("two")))
        waiting.append(asyncio.create_task(gateway.respond("one", headers=headers)))
        await gateway.until_queued(1)
        await gateway.client.delete(f"/v1/sessions/{first.headers['x-session-id']}")
        for reply in await asyncio.gather(*waiting):
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "session_deleted")
