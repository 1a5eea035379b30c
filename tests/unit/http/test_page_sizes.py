"""Pages of every list are bounded in bytes, and lead to every entry in both directions."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.http.request import pagination
from holdfast.http.server import memory_budget
from holdfast.http.server.memory_budget import MemoryBudget
from tests.in_process import RunningGateway, open_gateway

BYTES = 3000
TURNS = 12
TEXT = "x" * 500


async def _fill(gateway: RunningGateway) -> dict[str, str]:
    """Have a conversation with a large middle, and return the path of each list."""
    instructions = {"role": "system", "content": "be brief"}
    for number in range(TURNS):
        text = f"{number} {TEXT * (20 if number == 5 else 1)}"
        answered = await gateway.client.post(
            "/v1/responses", json={"model": "scripted", "input": text}, headers=_KEY
        )
        completed = await gateway.client.post(
            "/v1/chat/completions",
            json={
                "model": "scripted",
                "store": True,
                "messages": [instructions, *({"role": "user", "content": text} for _ in range(9))],
            },
        )
        assert (answered.status_code, completed.status_code) == (200, 200)
    session = answered.headers["x-session-id"]
    return {
        "items": f"/v1/sessions/{session}/items",
        "log": f"/v1/sessions/{session}/items?view=log",
        "conversation": f"/v1/conversations/{session.replace('ses_', 'conv_')}/items",
        "turns": f"/v1/sessions/{session}/turns",
        "sessions": "/v1/sessions",
        "input": f"/v1/responses/{answered.json()['id']}/input_items",
        "completions": "/v1/chat/completions",
        "messages": f"/v1/chat/completions/{completed.json()['id']}/messages",
    }


_KEY = {"X-Session-Key": "k"}
LISTS = ["items", "log", "conversation", "turns", "sessions", "input", "completions", "messages"]


async def _walk(gateway: RunningGateway, path: str, order: str) -> list[list[dict[str, Any]]]:
    """Return the entries of all pages."""
    pages: list[list[dict[str, Any]]] = []
    query = {"limit": "100", "order": order, **dict(httpx.URL(path).params)}
    while True:
        reply = await gateway.client.get(httpx.URL(path).path, params=query)
        assert reply.status_code == 200
        page = reply.json()
        ids = [entry["id"] for entry in page["data"]]
        assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
        pages.append(page["data"])
        if not page["has_more"]:
            return pages
        query["after"] = page["last_id"]


async def test_pages_lead_to_every_entry_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_gateway() as gateway:
        paths = await _fill(gateway)
        for name in LISTS:
            for order in ("asc", "desc"):
                ((*whole,),) = await _walk(gateway, paths[name], order)
                with monkeypatch.context() as patch:
                    patch.setattr(pagination, "MAX_PAGE_BYTES", BYTES)
                    pages = await _walk(gateway, paths[name], order)
                assert [entry for page in pages for entry in page] == whole, (name, order)
                assert len(pages) > 1, name
                for page in pages:
                    size = sum(len(msgspec.json.encode(entry)) for entry in page)
                    assert size <= BYTES or len(page) == 1, (name, order)


async def test_a_list_without_a_next_page_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagination, "MAX_PAGE_BYTES", 10)
    async with open_gateway() as gateway:
        session = (await gateway.respond("hi")).headers["x-session-id"]
        for _ in range(3):
            await gateway.client.post(f"/v1/sessions/{session}/fork")
        forks = (await gateway.client.get(f"/v1/sessions/{session}/forks")).json()
        assert (len(forks["data"]), forks["has_more"]) == (3, False)


@pytest.mark.parametrize(("size", "expected"), [(1, [5, 20, 75]), (10_000_000, [5])])
async def test_large_entries_are_not_read_only_to_be_left_out(
    size: int, expected: list[int]
) -> None:
    counts: list[int] = []

    async def read(count: int, last: int | None) -> list[int]:
        counts.append(count)
        first = 0 if last is None else last + 1
        return list(range(first, first + count))

    found = await pagination.read_entries(100, read, lambda _: size)
    assert counts == expected
    assert found == list(range(100 if size == 1 else 2))


# ── what replies take together ──────────────────────────────────────────────────────────────


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - the budget tells nobody
            await asyncio.sleep(0)


async def test_a_reply_without_room_is_read_again_once_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_gateway() as gateway:
        assert (await gateway.respond("x" * 100_000)).status_code == 200
        gateway.application.reply_budget = budget = MemoryBudget(400_000)
        others = budget.open("others")
        assert others.try_grow(300_000)
        asking = asyncio.create_task(gateway.client.get("/v1/transcript", headers=_KEY))
        await _until(lambda: budget.waits)
        assert not asking.done()
        assert budget.held_bytes == 300_000
        others.close()
        reply = await asking
        assert (reply.status_code, len(reply.json()["data"])) == (200, 2)
        await _until(lambda: not budget.held_bytes)

        assert budget.open("others").try_grow(300_000)
        monkeypatch.setattr(memory_budget, "WAIT_SECONDS", 0.01)
        refused = await gateway.client.get("/v1/transcript", headers=_KEY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_busy")
        assert refused.headers["retry-after"]
        # The answer of a turn is never refused.
        assert (await gateway.respond("y" * 400_000)).status_code == 200


async def test_a_client_that_left_while_it_waited_is_not_served() -> None:
    async with open_gateway() as gateway:
        assert (await gateway.respond("x" * 100_000)).status_code == 200
        gateway.application.reply_budget = budget = MemoryBudget(400_000)
        assert budget.open("others").try_grow(300_000)
        _, writer = await asyncio.open_connection(*gateway.server.address)
        writer.write(b"GET /v1/transcript HTTP/1.1\r\nhost: localhost\r\nx-session-key: k\r\n\r\n")
        await _until(lambda: budget.waits)
        writer.close()
        await _until(lambda: not budget.waits)
        assert budget.held_bytes == 300_000
