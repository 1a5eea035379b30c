"""Histories that clients send again and again without naming a session: stored once, shared."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.decisions.api_keys import hash_key
from holdfast.core.ids import DEFAULT_TENANT, Tenant
from holdfast.core.transaction.commands import AddApiKey
from holdfast.ports.store import SessionQuery
from tests.in_process import House, called, open_house, said, text_of

Item = dict[str, Any]


@pytest.fixture(name="store_url", params=["sqlite", "postgres"])
def _store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'h.db'}"


@pytest.fixture(name="house")
async def _house(store_url: str) -> AsyncIterator[House]:
    async with open_house(store_url=store_url) as house:
        yield house


def _user(text: str) -> Item:
    return {"type": "message", "role": "user", "content": text}


def _assistant(text: str) -> Item:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


async def _stored(house: House) -> int:
    """Return how many items are kept, each counted where it is."""
    views = await house.gateway.read.sessions(DEFAULT_TENANT, SessionQuery(limit=100))
    return sum(view.session.head_seq - view.session.parent_seq for view in views)


async def _ask(house: House, items: list[Item], **more: Any) -> dict[str, Any]:
    reply = await house.respond(items, None, **more)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


async def test_sending_everything_each_time_stores_each_item_once(house: House) -> None:
    history: list[Item] = []
    names = []
    for number in range(12):
        history.append(_user(f"q{number}"))
        answer = await _ask(house, history)
        names.append(answer["id"])
        assert answer["previous_response_id"] is None
        history += answer["output"]
        assert len(house.model.shown[-1]) == 2 * number + 1
    assert await _stored(house) == 24
    # Each of them is a response of its own, with all of its input.
    assert len(set(names)) == 12
    listed = await house.client.get(f"/v1/responses/{names[4]}/input_items?limit=100&order=asc")
    assert [one["content"][0]["text"] for one in listed.json()["data"][::2]] == [
        f"q{n}" for n in range(5)
    ]


async def test_chats_that_are_stored_share_their_history_too(house: House) -> None:
    messages: list[Item] = [{"role": "system", "content": "be brief"}]
    for number in range(5):
        messages.append({"role": "user", "content": f"q{number}"})
        reply = await house.chat(messages, None, store=True)
        messages.append(reply.json()["choices"][0]["message"])
    assert await _stored(house) == 10
    assert house.model.shown[-1] == ["q0", "re:q0", "q1", "re:q1", "q2", "re:q2", "q3", "re:q3",
                                     "q4"]  # fmt: skip


async def test_two_that_go_on_from_one_history_do_not_see_each_other(house: House) -> None:
    history = [_user("one"), *(await _ask(house, [_user("one")]))["output"]]
    left, right = await asyncio.gather(
        _ask(house, [*history, _user("left")]), _ask(house, [*history, _user("right")])
    )
    await _ask(house, [*history, _user("left"), *left["output"], _user("more")])
    assert house.model.shown[-1] == ["one", "re:one", "left", "re:left", "more"]
    await _ask(house, [*history, _user("right"), *right["output"], _user("more")])
    assert house.model.shown[-1] == ["one", "re:one", "right", "re:right", "more"]
    assert await _stored(house) == 2 + 4 + 4


async def test_an_edit_far_back_shares_what_comes_before_it(house: House) -> None:
    history: list[Item] = []
    for number in range(4):
        history.append(_user(f"q{number}"))
        history += (await _ask(house, history))["output"]
    await _ask(house, [*history[:4], _user("another q2")])
    assert house.model.shown[-1] == ["q0", "re:q0", "q1", "re:q1", "another q2"]
    assert await _stored(house) == 8 + 2


async def test_a_long_history_that_many_bring_is_stored_by_the_first(house: House) -> None:
    shots = [one for n in range(20) for one in (_user(f"in {n}"), _assistant(f"out {n}"))]
    for number in range(5):
        await _ask(house, [*shots, _user(f"q{number}")])
        assert len(house.model.shown[-1]) == 41
    assert await _stored(house) == 40 + 5 * 2


async def test_tool_calls_go_on_in_the_turn_that_made_them(house: House) -> None:
    def script(items: list[Item]) -> list[Item]:
        is_asked = items[-1].get("type") == "message"
        return [called("look", "call_1")] if is_asked else [said("found")]

    house.model.script = script
    history = [_user("find it")]
    history += (await _ask(house, history))["output"]
    history.append({"type": "function_call_output", "call_id": "call_1", "output": "here"})
    history += (await _ask(house, history))["output"]
    assert house.model.shown[-1] == ["find it", "look()", "=here"]
    assert await _stored(house) == 4
    # A call of the same name under another id is another call: its output must find it.
    renamed = {**called("look", "call_2"), "id": "fc_2"}
    output = {"type": "function_call_output", "call_id": "call_2", "output": "there"}
    await _ask(house, [_user("find it"), renamed, output])
    assert house.model.shown[-1] == ["find it", "look()", "=there"]


async def test_what_was_erased_is_sent_as_the_client_has_it(house: House) -> None:
    first = await house.respond([_user("secret")], None)
    session = first.headers["x-session-id"]
    items = (await house.client.get(f"/v1/sessions/{session}/items")).json()["data"]
    name = next(one["id"] for one in items if one["role"] == "user")
    talk = session.replace("ses_", "conv_")
    path = f"/v1/conversations/{talk}/items/{name}?erase=true"
    assert (await house.client.delete(path)).status_code == 200
    await _ask(house, [_user("secret"), *first.json()["output"], _user("go on")])
    assert house.model.shown[-1] == ["secret", "re:secret", "go on"]


async def test_a_session_that_was_deleted_is_no_longer_pointed_at(house: House) -> None:
    first = await house.respond([_user("one")], None)
    history = [_user("one"), *first.json()["output"]]
    session = first.headers["x-session-id"]
    assert (await house.client.delete(f"/v1/sessions/{session}")).status_code == 200
    again = await house.respond([*history, _user("two")], None)
    assert again.status_code == 200
    assert again.headers["x-session-id"] != session
    assert house.model.shown[-1] == ["one", "re:one", "two"]


async def test_named_sessions_are_never_shared_by_what_they_say(house: House) -> None:
    keyed = await house.respond([_user("one")], "mine")
    history = [_user("one"), *keyed.json()["output"]]
    made = await house.client.post("/v1/conversations", json={"items": history})
    plain = await house.respond([*history, _user("two")], None)
    talk = made.json()["id"].replace("conv_", "ses_")
    assert plain.headers["x-session-id"] not in (keyed.headers["x-session-id"], talk)


async def test_two_first_contacts_with_one_long_history_store_it_once(house: House) -> None:
    history = [one for n in range(10) for one in (_user(f"in {n}"), _assistant(f"out {n}"))]
    house.model.door.clear()
    left = asyncio.create_task(house.respond([*history, _user("left")], "k"))
    right = asyncio.create_task(house.respond([*history, _user("right")], "k"))
    await house.until_queued(1)
    house.model.door.set()
    replies = [await left, await right]
    assert {reply.status_code for reply in replies} == {200}
    log = await house.log("k", view="log")
    assert len(log) == 20 + 4
    assert log[:20] == [text for n in range(10) for text in (f"in {n}", f"out {n}")]
    assert sorted(log[20:]) == ["left", "re:left", "re:right", "right"]
    assert len(house.model.shown[-1]) == 23
    # Somebody who comes later with what the first had sees nothing stored again either.
    await house.respond([*history, _user(log[20]), _assistant(log[21]), _user("later")], "k")
    assert (await house.log("k", view="log"))[24:] == ["later", "re:later"]


async def _enter(house: House, tenant: str) -> dict[str, str]:
    """Return the headers with which somebody of a tenant asks."""
    key = f"hf_{tenant}"
    await house.gateway.submit(
        AddApiKey(id=f"key_{tenant}", tenant=Tenant(tenant), hash=hash_key(key))
    )
    house.application.look_again()
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_two_tenants_that_send_the_same_history_share_nothing(house: House, api: str) -> None:
    owner, stranger = await _enter(house, "owner"), await _enter(house, "stranger")
    history = [_user("one"), said("re:one"), _user("two")]
    sessions = []
    for headers in (owner, stranger):
        if api == "chat":
            messages = [{**item, "content": text_of(item)} for item in history]
            reply = await house.chat(messages, None, store=True, headers=headers)
        else:
            reply = await house.respond(history, None, headers=headers)
        assert reply.status_code == 200, reply.text
        sessions.append(reply.headers["x-session-id"])
    for headers, session_id, other in zip((owner, stranger), sessions, sessions[::-1], strict=True):
        path = f"/v1/sessions/{session_id}"
        found = (await house.client.get(path, headers=headers)).json()
        assert found["id"] == session_id
        listed = (await house.client.get(f"{path}/items", headers=headers)).json()["data"]
        assert [text_of(item) for item in listed] == ["one", "re:one", "two", "re:two"]
        everything = (await house.client.get("/v1/sessions", headers=headers)).text
        assert other not in everything
        for page in (found, listed):
            assert other not in json.dumps(page)
    # What the owner deletes is the owner's alone, and nothing of the stranger's is in its way.
    gone = await house.client.delete(f"/v1/sessions/{sessions[0]}", headers=owner)
    assert gone.status_code == 200, gone.text
    path = f"/v1/sessions/{sessions[1]}/items"
    left = (await house.client.get(path, headers=stranger)).json()["data"]
    assert [text_of(item) for item in left] == ["one", "re:one", "two", "re:two"]
