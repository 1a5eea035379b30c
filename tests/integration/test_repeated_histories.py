"""Histories that clients repeat without naming a session are stored once and shared."""

import asyncio
from typing import Any

from holdfast.core.errors import ProviderFailure
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.ports.store import SessionQuery
from tests.in_process import RunningGateway, called, said

Item = dict[str, Any]


def _user(text: str) -> Item:
    return {"type": "message", "role": "user", "content": text}


def _assistant(text: str) -> Item:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


async def _stored(gateway: RunningGateway) -> int:
    """Return how many items are kept, each counted where it is."""
    views = await gateway.engine.read.sessions(DEFAULT_TENANT, SessionQuery(limit=100))
    return sum(view.session.head_seq - view.session.parent_seq for view in views)


async def _ask(gateway: RunningGateway, items: list[Item], **more: Any) -> dict[str, Any]:
    reply = await gateway.respond(items, None, **more)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


async def test_sending_everything_each_time_stores_each_item_once(gateway: RunningGateway) -> None:
    history: list[Item] = []
    names = []
    for number in range(12):
        history.append(_user(f"q{number}"))
        answer = await _ask(gateway, history)
        names.append(answer["id"])
        assert answer["previous_response_id"] is None
        history += answer["output"]
        assert len(gateway.model.shown[-1]) == 2 * number + 1
    assert await _stored(gateway) == 24
    # Each of them is a response of its own, with all of its input.
    assert len(set(names)) == 12
    listed = await gateway.client.get(f"/v1/responses/{names[4]}/input_items?limit=100&order=asc")
    assert [one["content"][0]["text"] for one in listed.json()["data"][::2]] == [
        f"q{n}" for n in range(5)
    ]


async def test_chats_that_are_stored_share_their_history_too(gateway: RunningGateway) -> None:
    messages: list[Item] = [{"role": "system", "content": "be brief"}]
    for number in range(5):
        messages.append({"role": "user", "content": f"q{number}"})
        reply = await gateway.chat(messages, None, store=True)
        messages.append(reply.json()["choices"][0]["message"])
    assert await _stored(gateway) == 10
    assert gateway.model.shown[-1] == ["q0", "re:q0", "q1", "re:q1", "q2", "re:q2", "q3", "re:q3",
                                     "q4"]  # fmt: skip


async def test_two_that_go_on_from_one_history_do_not_see_each_other(
    gateway: RunningGateway,
) -> None:
    history = [_user("one"), *(await _ask(gateway, [_user("one")]))["output"]]
    left, right = await asyncio.gather(
        _ask(gateway, [*history, _user("left")]), _ask(gateway, [*history, _user("right")])
    )
    await _ask(gateway, [*history, _user("left"), *left["output"], _user("more")])
    assert gateway.model.shown[-1] == ["one", "re:one", "left", "re:left", "more"]
    await _ask(gateway, [*history, _user("right"), *right["output"], _user("more")])
    assert gateway.model.shown[-1] == ["one", "re:one", "right", "re:right", "more"]
    assert await _stored(gateway) == 2 + 4 + 4


async def test_an_edit_far_back_shares_what_comes_before_it(gateway: RunningGateway) -> None:
    history: list[Item] = []
    for number in range(4):
        history.append(_user(f"q{number}"))
        history += (await _ask(gateway, history))["output"]
    await _ask(gateway, [*history[:4], _user("another q2")])
    assert gateway.model.shown[-1] == ["q0", "re:q0", "q1", "re:q1", "another q2"]
    assert await _stored(gateway) == 8 + 2


async def test_a_long_history_that_many_bring_is_stored_by_the_first(
    gateway: RunningGateway,
) -> None:
    shots = [one for n in range(20) for one in (_user(f"in {n}"), _assistant(f"out {n}"))]
    for number in range(5):
        await _ask(gateway, [*shots, _user(f"q{number}")])
        assert len(gateway.model.shown[-1]) == 41
    assert await _stored(gateway) == 40 + 5 * 2


async def test_tool_calls_go_on_in_the_turn_that_made_them(gateway: RunningGateway) -> None:
    def script(items: list[Item]) -> list[Item]:
        is_asked = items[-1].get("type") == "message"
        return [called("look", "call_1")] if is_asked else [said("found")]

    gateway.model.script = script
    history = [_user("find it")]
    history += (await _ask(gateway, history))["output"]
    history.append({"type": "function_call_output", "call_id": "call_1", "output": "here"})
    history += (await _ask(gateway, history))["output"]
    assert gateway.model.shown[-1] == ["find it", "look()", "=here"]
    assert await _stored(gateway) == 4
    # A call of the same name under another id is another call: its output must find it.
    renamed = {**called("look", "call_2"), "id": "fc_2"}
    output = {"type": "function_call_output", "call_id": "call_2", "output": "there"}
    await _ask(gateway, [_user("find it"), renamed, output])
    assert gateway.model.shown[-1] == ["find it", "look()", "=there"]


async def test_what_was_erased_is_sent_as_the_client_has_it(gateway: RunningGateway) -> None:
    first = await gateway.respond([_user("secret")], None)
    session = first.headers["x-session-id"]
    items = (await gateway.client.get(f"/v1/sessions/{session}/items")).json()["data"]
    name = next(one["id"] for one in items if one["role"] == "user")
    talk = session.replace("ses_", "conv_")
    path = f"/v1/conversations/{talk}/items/{name}?erase=true"
    assert (await gateway.client.delete(path)).status_code == 200
    await _ask(gateway, [_user("secret"), *first.json()["output"], _user("go on")])
    assert gateway.model.shown[-1] == ["secret", "re:secret", "go on"]


async def test_what_was_erased_in_a_session_is_not_continued_in_its_forks(
    gateway: RunningGateway,
) -> None:
    first = await gateway.respond([_user("secret")], None)
    begin = [_user("secret"), *first.json()["output"]]
    await _ask(gateway, [*begin, _user("one")])
    forked = await gateway.respond([*begin, _user("two")], None)
    session = first.headers["x-session-id"]
    assert forked.headers["x-session-id"] != session
    items = (await gateway.client.get(f"/v1/sessions/{session}/items")).json()["data"]
    name = next(one["id"] for one in items if one["role"] == "user")
    path = f"/v1/conversations/{session.replace('ses_', 'conv_')}/items/{name}?erase=true"
    assert (await gateway.client.delete(path)).status_code == 200
    history = [*begin, _user("two"), *forked.json()["output"]]
    await _ask(gateway, [*history, _user("go on")])
    assert gateway.model.shown[-1] == ["secret", "re:secret", "two", "re:two", "go on"]


async def test_a_history_with_words_of_another_turn_in_it_is_not_continued(
    gateway: RunningGateway,
) -> None:
    def fail(_: list[Item]) -> list[Item]:
        raise ProviderFailure("overloaded", failure_class="transient", status=503)

    answer, once = gateway.model.script, {"Idempotency-Key": "once"}
    gateway.model.script = fail
    failed = await gateway.respond([_user("one")], None, headers=once)
    session = failed.headers["x-session-id"]
    gateway.model.script = answer
    await gateway.respond([_user("aside")], None, headers={"X-Session-Id": session})
    # The turn moves behind the other one: the log up to its answer is not what its client sent.
    retried = await gateway.respond([_user("one")], None, headers=once)
    assert retried.headers["x-session-id"] == session
    await _ask(gateway, [_user("one"), *retried.json()["output"], _user("two")])
    assert gateway.model.shown[-1] == ["one", "re:one", "two"]


async def test_a_session_that_was_deleted_is_no_longer_pointed_at(gateway: RunningGateway) -> None:
    first = await gateway.respond([_user("one")], None)
    history = [_user("one"), *first.json()["output"]]
    session = first.headers["x-session-id"]
    assert (await gateway.client.delete(f"/v1/sessions/{session}")).status_code == 200
    again = await gateway.respond([*history, _user("two")], None)
    assert again.status_code == 200
    assert again.headers["x-session-id"] != session
    assert gateway.model.shown[-1] == ["one", "re:one", "two"]


async def test_named_sessions_are_never_shared_by_what_they_say(gateway: RunningGateway) -> None:
    keyed = await gateway.respond([_user("one")], "mine")
    history = [_user("one"), *keyed.json()["output"]]
    made = await gateway.client.post("/v1/conversations", json={"items": history})
    plain = await gateway.respond([*history, _user("two")], None)
    talk = made.json()["id"].replace("conv_", "ses_")
    assert plain.headers["x-session-id"] not in (keyed.headers["x-session-id"], talk)


async def test_two_first_contacts_with_one_long_history_store_it_once(
    gateway: RunningGateway,
) -> None:
    history = [one for n in range(10) for one in (_user(f"in {n}"), _assistant(f"out {n}"))]
    gateway.model.gate.clear()
    left = asyncio.create_task(gateway.respond([*history, _user("left")], "k"))
    right = asyncio.create_task(gateway.respond([*history, _user("right")], "k"))
    await gateway.until_queued(1)
    gateway.model.gate.set()
    replies = [await left, await right]
    assert {reply.status_code for reply in replies} == {200}
    log = await gateway.log("k", view="log")
    assert len(log) == 20 + 4
    assert log[:20] == [text for n in range(10) for text in (f"in {n}", f"out {n}")]
    assert sorted(log[20:]) == ["left", "re:left", "re:right", "right"]
    assert len(gateway.model.shown[-1]) == 23
    # Somebody who comes later with what the first had sees nothing stored again either.
    await gateway.respond([*history, _user(log[20]), _assistant(log[21]), _user("later")], "k")
    assert (await gateway.log("k", view="log"))[24:] == ["later", "re:later"]
