"""Search over HTTP: what was said is found, by its owner alone, also after a restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.app import open_application
from holdfast.settings import AccessKey, SearchSettings, Settings, StoreSettings
from tests.http_server import serving


@asynccontextmanager
async def running(settings: Settings, key: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    async with (
        open_application(settings) as application,
        serving(application) as server,
        httpx.AsyncClient(base_url=server.url, headers=headers, timeout=30) as client,
    ):
        yield client


async def say(client: httpx.AsyncClient, text: str, key: str = "agent:main:ada") -> None:
    body = {"model": "holdfast-demo", "input": text}
    reply = await client.post("/v1/responses", json=body, headers={"X-Session-Key": key})
    assert reply.status_code == 200


async def search(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    reply = await client.get("/v1/search", params=query)
    assert reply.status_code == 200, reply.text
    hits: list[dict[str, Any]] = reply.json()["data"]
    return hits


async def until_found(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    """Return the hits once there are some: the index follows the log."""
    async with asyncio.timeout(20):
        while not (hits := await search(client, **query)):
            pass
    return hits


def at(folder: Path, **more: Any) -> Settings:
    return Settings(store=StoreSettings(url=f"sqlite:///{folder}/search.db"), **more)


async def test_a_search_hit_has_its_place_and_a_snippet(tmp_path: Path) -> None:
    async with running(at(tmp_path)) as client:
        await say(client, "My dog Rex goes to the vet on Friday")
        (hit,) = await until_found(client, q="rex friday", role="user")
        session = (await client.get(f"/v1/sessions/{hit['session_id']}")).json()
    assert (hit["key"], hit["generation"], hit["seq"]) == ("agent:main:ada", 1, 1)
    assert session["key"] == "agent:main:ada"
    snippet = hit["snippet"]
    assert [snippet["text"][start:end] for start, end in snippet["highlights"]] == ["Rex", "Friday"]


async def test_the_index_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with running(at(tmp_path, search=SearchSettings(enabled=False))) as client:
        await say(client, "said before the index")
        off = await client.get("/v1/search", params={"q": "before"})
    assert (off.status_code, off.json()["error"]["code"]) == (404, "search_off")
    async with running(at(tmp_path)) as client:
        await until_found(client, q='"before the index"')
        await say(client, "said after it")
        await until_found(client, q='"after it"')
    async with running(at(tmp_path)) as client:
        assert len(await search(client, q="said", role="user")) == 2


async def test_a_deleted_session_is_not_found_any_more(tmp_path: Path) -> None:
    async with running(at(tmp_path)) as client:
        await say(client, "a secret plan")
        (hit,) = await until_found(client, q="secret plan", role="user")
        assert (await client.delete(f"/v1/sessions/{hit['session_id']}")).status_code == 200
        assert await search(client, q="secret") == []


async def test_another_tenant_finds_nothing(tmp_path: Path) -> None:
    keys = tuple(
        AccessKey(key_env=tenant.upper(), tenant=tenant, key=f"hf_{tenant}-key-long-enough")
        for tenant in ("ours", "theirs")
    )
    settings = at(tmp_path, keys=keys)
    async with running(settings, "hf_ours-key-long-enough") as client:
        await say(client, "our secret")
        await until_found(client, q="secret")
        other = {"Authorization": "Bearer hf_theirs-key-long-enough"}
        reply = await client.get("/v1/search", params={"q": "secret"}, headers=other)
        assert reply.json()["data"] == []


async def test_a_hit_says_nothing_about_what_others_said(tmp_path: Path) -> None:
    keys = (
        AccessKey(key_env="A", tenant="ours", key="hf_ours-key-long-enough"),
        AccessKey(key_env="B", tenant="theirs", key="hf_theirs-key-long-enough"),
    )
    settings, theirs = at(tmp_path, keys=keys), "hf_theirs-key-long-enough"
    async with running(settings, "hf_ours-key-long-enough") as client:
        for number in range(3):
            await say(client, f"needle {number}")
            busy = {"model": "m", "input": "needle of others"}
            headers = {"Authorization": f"Bearer {theirs}"}
            await client.post("/v1/responses", json=busy, headers=headers)
        await until_found(client, q='"needle 2"')
        hits = await search(client, q="needle", role="user")
        assert [hit["id"] for hit in hits] == [
            f"hit_{hit['session_id']}:{hit['seq']}" for hit in hits
        ]
        paged = await search(client, q="needle", role="user", limit=1)
        while len(paged) < 3:
            after = paged[-1]["id"]
            paged += await search(client, q="needle", role="user", limit=1, after=after)
        assert paged == hits
        found: dict[str, list[Any]] = {"200": [], "400": []}
        for place in range(40):
            # Numbers, as ids of hits were before: only those of the caller's own items are known.
            query = {"q": "needle", "role": "user", "after": f"hit_{place}"}
            reply = await client.get("/v1/search", params=query)
            error = reply.json().get("error", {})
            found[str(reply.status_code)].append(error.get("message", "").replace(str(place), ""))
        assert len(set(found["400"])) == 1
        assert len(found["200"]) == 6, "what we have said, and what we were answered"
        foreign = hits[0]["id"].replace("hit_ses_", "hit_ses_0")
        reply = await client.get("/v1/search", params={"q": "needle", "after": foreign})
        assert reply.status_code == 400


async def test_sessions_can_be_listed_by_activity(tmp_path: Path) -> None:
    async with running(at(tmp_path)) as client:
        for key in ("a", "b", "a"):
            await say(client, "hello", key)
        reply = await client.get("/v1/sessions", params={"sort": "activity"})
        assert [session["key"] for session in reply.json()["data"]] == ["a", "b"]
        reply = await client.get("/v1/sessions")
        assert [session["key"] for session in reply.json()["data"]] == ["b", "a"]


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ({}, "q is needed"),
        ({"q": "?"}, "no word"),
        ({"q": "x" * 1001}, "at most 1000"),
        ({"q": "x", "role": "king"}, "role must be one of"),
        ({"q": "x", "since": "yesterday"}, "since must be"),
        ({"q": "x", "after": "hit_x"}, "no hit"),
        ({"q": "x", "limit": "101"}, "limit must be"),
        ({"q": "x", "include_hidden": "maybe"}, "include_hidden must be"),
        ({"q": "x", "key_prefix": "p" * 600}, "key_prefix: at most"),
    ],
)
async def test_a_wrong_query_is_a_clear_400(query: dict[str, str], part: str) -> None:
    async with running(Settings(store=StoreSettings(url="memory:"))) as client:
        reply = await client.get("/v1/search", params=query)
    assert reply.status_code == 400
    assert part in reply.json()["error"]["message"]
