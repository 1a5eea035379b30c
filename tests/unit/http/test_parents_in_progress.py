"""Requests that continue a response before it has ended."""

import asyncio
from typing import Any

from tests.in_process import RunningGateway, ScriptedModel, open_gateway


async def _background(
    gateway: RunningGateway, text: str, parent: str | None = None
) -> dict[str, Any]:
    more = {"previous_response_id": parent} if parent is not None else {}
    reply = await gateway.respond(text, None, background=True, **more)
    assert reply.status_code == 200, reply.text
    value: dict[str, Any] = reply.json()
    return value


async def _ended(gateway: RunningGateway, name: str) -> dict[str, Any]:
    """Return a response once its stream is over."""
    await gateway.client.get(f"/v1/responses/{name}?stream=true")
    value: dict[str, Any] = (await gateway.client.get(f"/v1/responses/{name}")).json()
    return value


def _held() -> ScriptedModel:
    model = ScriptedModel()
    model.gate.clear()
    return model


async def test_background_requests_wait_for_their_parents_in_the_lane() -> None:
    async with open_gateway(_held()) as gateway:
        first = await _background(gateway, "one")
        second = await _background(gateway, "two", first["id"])
        third = await _background(gateway, "three", second["id"])
        assert [one["status"] for one in (first, second, third)] == [
            "in_progress", "queued", "queued",
        ]  # fmt: skip
        gateway.model.gate.set()
        assert (await _ended(gateway, third["id"]))["status"] == "completed"
        assert gateway.model.shown[-1] == ["one", "re:one", "two", "re:two", "three"]
        sessions = (await gateway.client.get("/v1/sessions")).json()["data"]
        assert [one["item_count"] for one in sessions] == [6]


async def test_a_second_child_of_a_parent_in_progress_runs_in_a_fork() -> None:
    async with open_gateway(_held()) as gateway:
        parent = await _background(gateway, "one")
        left = await _background(gateway, "left", parent["id"])
        right = asyncio.create_task(_background(gateway, "right", parent["id"]))
        gateway.model.gate.set()
        for child in (left, await right):
            assert (await _ended(gateway, child["id"]))["status"] == "completed"
        shown = sorted(gateway.model.shown[-2:])
        assert shown == [["one", "re:one", "left"], ["one", "re:one", "right"]]


async def test_a_child_whose_parent_is_cancelled_fails_with_previous_response_not_found() -> None:
    async with open_gateway(_held()) as gateway:
        parent = await _background(gateway, "one")
        child = await _background(gateway, "two", parent["id"])
        await gateway.client.post(f"/v1/responses/{parent['id']}/cancel")
        ended = await _ended(gateway, child["id"])
        assert ended["status"] == "failed"
        assert parent["id"] in ended["error"]["message"]
        stream = await gateway.client.get(f"/v1/responses/{child['id']}?stream=true")
        assert stream.text.count("event: response.failed") == 1
        assert len(gateway.model.calls) == 1


async def test_a_child_in_the_lane_can_be_cancelled_and_leaves_nothing() -> None:
    async with open_gateway(_held()) as gateway:
        parent = await _background(gateway, "one")
        child = await _background(gateway, "two", parent["id"])
        cancelled = await gateway.client.post(f"/v1/responses/{child['id']}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        gateway.model.gate.set()
        assert (await _ended(gateway, parent["id"]))["status"] == "completed"
        assert (await gateway.client.get("/v1/sessions")).json()["data"][0]["item_count"] == 2


async def test_a_foreground_request_waits_for_its_parent() -> None:
    async with open_gateway(_held()) as gateway:
        parent = await _background(gateway, "one")
        child = asyncio.create_task(gateway.respond("two", None, previous_response_id=parent["id"]))
        await gateway.model.entered.acquire()
        gateway.model.gate.set()
        assert (await child).json()["status"] == "completed"
        assert gateway.model.shown[-1] == ["one", "re:one", "two"]


async def test_a_parent_that_is_erased_during_the_wait_is_not_found() -> None:
    async with open_gateway(_held()) as gateway:
        parent = await gateway.respond("one", None, background=True)
        name, session = parent.json()["id"], parent.headers["x-session-id"]
        child = asyncio.create_task(gateway.respond("two", None, previous_response_id=name))
        await gateway.model.entered.acquire()
        await gateway.client.delete(f"/v1/sessions/{session}")
        refused = await child
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "previous_response_not_found"
