"""Requests that continue a response before it has ended."""

import asyncio
from typing import Any

from tests.in_process import House, ScriptedModel, open_house


async def _background(house: House, text: str, parent: str | None = None) -> dict[str, Any]:
    more = {"previous_response_id": parent} if parent is not None else {}
    reply = await house.respond(text, None, background=True, **more)
    assert reply.status_code == 200, reply.text
    value: dict[str, Any] = reply.json()
    return value


async def _ended(house: House, name: str) -> dict[str, Any]:
    """Return a response once its stream is over."""
    await house.client.get(f"/v1/responses/{name}?stream=true")
    value: dict[str, Any] = (await house.client.get(f"/v1/responses/{name}")).json()
    return value


def _held() -> ScriptedModel:
    model = ScriptedModel()
    model.door.clear()
    return model


async def test_background_requests_wait_for_their_parents_in_the_lane() -> None:
    async with open_house(_held()) as house:
        first = await _background(house, "one")
        second = await _background(house, "two", first["id"])
        third = await _background(house, "three", second["id"])
        assert [one["status"] for one in (first, second, third)] == [
            "in_progress", "queued", "queued",
        ]  # fmt: skip
        house.model.door.set()
        assert (await _ended(house, third["id"]))["status"] == "completed"
        assert house.model.shown[-1] == ["one", "re:one", "two", "re:two", "three"]
        sessions = (await house.client.get("/v1/sessions")).json()["data"]
        assert [one["item_count"] for one in sessions] == [6]


async def test_a_second_child_of_a_parent_in_progress_goes_on_in_a_fork() -> None:
    async with open_house(_held()) as house:
        parent = await _background(house, "one")
        left = await _background(house, "left", parent["id"])
        right = asyncio.create_task(_background(house, "right", parent["id"]))
        house.model.door.set()
        for child in (left, await right):
            assert (await _ended(house, child["id"]))["status"] == "completed"
        shown = sorted(house.model.shown[-2:])
        assert shown == [["one", "re:one", "left"], ["one", "re:one", "right"]]


async def test_a_child_whose_parent_is_cancelled_fails_as_one_without_a_parent() -> None:
    async with open_house(_held()) as house:
        parent = await _background(house, "one")
        child = await _background(house, "two", parent["id"])
        await house.client.post(f"/v1/responses/{parent['id']}/cancel")
        ended = await _ended(house, child["id"])
        assert ended["status"] == "failed"
        assert parent["id"] in ended["error"]["message"]
        stream = await house.client.get(f"/v1/responses/{child['id']}?stream=true")
        assert stream.text.count("event: response.failed") == 1
        assert len(house.model.calls) == 1


async def test_a_child_in_the_lane_can_be_cancelled_and_leaves_nothing() -> None:
    async with open_house(_held()) as house:
        parent = await _background(house, "one")
        child = await _background(house, "two", parent["id"])
        cancelled = await house.client.post(f"/v1/responses/{child['id']}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        house.model.door.set()
        assert (await _ended(house, parent["id"]))["status"] == "completed"
        assert (await house.client.get("/v1/sessions")).json()["data"][0]["item_count"] == 2


async def test_a_foreground_request_waits_on_its_line_for_its_parent() -> None:
    async with open_house(_held()) as house:
        parent = await _background(house, "one")
        child = asyncio.create_task(house.respond("two", None, previous_response_id=parent["id"]))
        await house.model.entered.acquire()
        house.model.door.set()
        assert (await child).json()["status"] == "completed"
        assert house.model.shown[-1] == ["one", "re:one", "two"]


async def test_a_parent_that_is_erased_while_it_is_waited_for_was_never_there() -> None:
    async with open_house(_held()) as house:
        parent = await house.respond("one", None, background=True)
        name, session = parent.json()["id"], parent.headers["x-session-id"]
        child = asyncio.create_task(house.respond("two", None, previous_response_id=name))
        await house.model.entered.acquire()
        await house.client.delete(f"/v1/sessions/{session}")
        refused = await child
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "previous_response_not_found"
