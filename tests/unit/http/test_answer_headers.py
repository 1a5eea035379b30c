"""Every answer about a session names it in its headers, and takes either of its two names."""

from typing import Any

import httpx
import pytest

from tests.in_process import RunningGateway, open_gateway
from tests.streaming import Stream

KEY = "a key/ü"
NAME = "a%20key/%C3%BC".replace("%20", " ")
ITEM = {"items": [{"role": "user", "content": "more"}]}
ABOUT_SESSIONS = [
    ("GET", "/v1/sessions/{ses}", None),
    ("POST", "/v1/sessions/{ses}", {"metadata": {"a": "b"}}),
    ("GET", "/v1/sessions/{ses}/items", None),
    ("GET", "/v1/sessions/{ses}/turns", None),
    ("GET", "/v1/sessions/{ses}/forks", None),
    ("GET", "/v1/sessions/{ses}/compactions", None),
    ("GET", "/v1/conversations/{ses}", None),
    ("POST", "/v1/conversations/{ses}", {"metadata": {"a": "b"}}),
    ("GET", "/v1/conversations/{ses}/items", None),
    ("GET", "/v1/conversations/{ses}/items/{item}", None),
    ("DELETE", "/v1/conversations/{ses}/items/{item}", None),
    ("GET", "/v1/transcript", None),
    ("DELETE", "/v1/transcript", None),
]
ABOUT_TURNS = [
    ("GET", "/v1/turns/{turn}", None),
    ("GET", "/v1/turns/{turn}/projection", None),
    ("POST", "/v1/turns/{turn}/cancel", None),
    ("GET", "/v1/responses/{resp}", None),
    ("GET", "/v1/responses/{resp}/input_items", None),
    ("DELETE", "/v1/responses/{resp}", None),
    ("GET", "/v1/chat/completions/{chat}", None),
    ("POST", "/v1/chat/completions/{chat}", {"metadata": {"a": "b"}}),
    ("GET", "/v1/chat/completions/{chat}/messages", None),
    ("DELETE", "/v1/chat/completions/{chat}", None),
]
NEW_TURNS = [
    ("POST", "/v1/sessions/{ses}/items", ITEM),
    ("POST", "/v1/conversations/{ses}/items", ITEM),
    ("POST", "/v1/transcript", ITEM),
]


async def _ask(
    gateway: RunningGateway, method: str, path: str, body: Any, spelling: str = "ses"
) -> tuple[dict[str, str], httpx.Response]:
    """Ask about a session with one turn; return its names and the answer."""
    key = KEY.encode()
    asked = await gateway.client.post(
        "/v1/chat/completions",
        json={"model": "scripted", "store": True, "messages": [{"role": "user", "content": "hi"}]},
        headers={b"X-Session-Key": key},
    )
    turn, session = asked.headers["x-turn-id"], asked.headers["x-session-id"]
    view = await gateway.client.get(f"/v1/sessions/{session}/items")
    names = {
        "turn": turn,
        "resp": turn.replace("turn_", "resp_"),
        "chat": asked.json()["id"],
        "session": session,
        "ses": session.replace("ses_", f"{spelling}_"),
        "item": view.json()["data"][0]["id"],
    }
    headers = {"X-Session-Id": names["ses"]} if "transcript" in path else {}
    answer = await gateway.client.request(
        method, path.format_map(names), json=body, headers=headers
    )
    assert answer.status_code == 200, answer.text
    return names, answer


def _is_named(answer: httpx.Response, session_id: str) -> bool:
    names = ("x-session-id", "x-session-key", "x-session-generation")
    found = [answer.headers.get_list(name) for name in names]
    return found == [[session_id], [NAME], ["1"]]


@pytest.mark.parametrize("spelling", ["ses", "conv"])
@pytest.mark.parametrize(("method", "path", "body"), ABOUT_SESSIONS)
async def test_an_answer_about_a_session_names_it(
    method: str, path: str, body: Any, spelling: str
) -> None:
    async with open_gateway() as gateway:
        names, answer = await _ask(gateway, method, path, body, spelling)
        assert _is_named(answer, names["session"])
        assert "x-turn-id" not in answer.headers


@pytest.mark.parametrize(("method", "path", "body"), ABOUT_TURNS)
async def test_an_answer_about_a_turn_names_it_and_its_session(
    method: str, path: str, body: Any
) -> None:
    async with open_gateway() as gateway:
        if "/responses/" in path:
            asked = await gateway.respond("hi", key=None)
            name = asked.json()["id"]
            answer = await gateway.client.request(method, path.format(resp=name))
            wanted = [asked.headers[one] for one in ("x-session-id", "x-turn-id")]
            assert [answer.headers[one] for one in ("x-session-id", "x-turn-id")] == wanted
            return
        names, answer = await _ask(gateway, method, path, body)
        assert _is_named(answer, names["session"])
        assert answer.headers.get_list("x-turn-id") == [names["turn"]]


@pytest.mark.parametrize("spelling", ["ses", "conv"])
@pytest.mark.parametrize(("method", "path", "body"), NEW_TURNS)
async def test_an_answer_to_added_items_names_their_turn(
    method: str, path: str, body: Any, spelling: str
) -> None:
    async with open_gateway() as gateway:
        names, answer = await _ask(gateway, method, path, body, spelling)
        assert _is_named(answer, names["session"])
        turns = (await gateway.client.get(f"/v1/sessions/{names['ses']}/turns")).json()["data"]
        assert answer.headers.get_list("x-turn-id") == [turns[-1]["id"]]


async def test_a_new_session_is_the_one_that_its_answer_names() -> None:
    async with open_gateway() as gateway:
        names, reset = await _ask(gateway, "POST", "/v1/sessions/{ses}/reset", {}, "conv")
        assert reset.headers["x-session-id"] == reset.json()["id"] != names["session"]
        assert reset.headers["x-session-generation"] == "2"
        path = f"/v1/sessions/{names['session']}/fork"
        forked = await gateway.client.post(path)
        assert forked.headers["x-session-id"] == forked.json()["id"]
        assert "x-session-key" not in forked.headers
        created = await gateway.client.post("/v1/conversations", json={})
        assert created.headers["x-session-id"] == created.json()["id"].replace("conv_", "ses_")


async def test_a_stream_of_events_names_its_session() -> None:
    async with open_gateway() as gateway:
        asked = await gateway.respond("hi")
        name = asked.headers["x-session-id"].replace("ses_", "conv_")
        stream = Stream(gateway.server, "GET", f"/v1/sessions/{name}/events")
        assert await stream.text() is not None
        assert stream.headers["x-session-id"] == asked.headers["x-session-id"]
        await stream.leave()


@pytest.mark.parametrize("header", ["X-Session-Id", "X-Expected-Session-Id"])
async def test_a_header_takes_either_name_of_a_session(header: str) -> None:
    async with open_gateway() as gateway:
        session = (await gateway.respond("hi")).headers["x-session-id"]
        name = session.replace("ses_", "conv_")
        key = None if header == "X-Session-Id" else "k"
        again = await gateway.respond("again", key, headers={header: name})
        assert again.status_code == 200, again.text
        assert again.headers["x-session-id"] == session


async def test_a_refused_request_names_only_the_live_session() -> None:
    async with open_gateway() as gateway:
        old = (await gateway.respond("hi")).headers["x-session-id"]
        live = (await gateway.client.post(f"/v1/sessions/{old}/reset")).json()["id"]
        refused = await gateway.client.post(f"/v1/sessions/{old}/reset")
        assert refused.status_code == 409
        assert refused.headers.get_list("x-session-id") == [live]
