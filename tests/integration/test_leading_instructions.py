"""System and developer items at the beginning of a Responses input are compared apart."""

import asyncio
from typing import Any

import pytest

from holdfast.core.ids import SessionId
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.in_process import Item, RunningGateway, text_of
from tests.integration.upstream_gateway import open_upstream_gateway, upstream


def _said(role: str, text: str) -> Item:
    return {"role": role, "content": text}


def _system(text: str) -> Item:
    return _said("system", text)


def _turns(*texts: str) -> list[Item]:
    """Return a history of questions with their answers; the last one is not answered yet."""
    history = []
    for text in texts:
        history += [_said("user", text), _said("assistant", f"re:{text}")]
    return history[:-1]


async def test_a_constant_system_item_is_stored_once(gateway: RunningGateway) -> None:
    for count in range(1, 5):
        texts = [f"q{number}" for number in range(count)]
        await gateway.respond([_system("be brief"), *_turns(*texts)])
    assert await gateway.log(view="log") == [
        "be brief", "q0", "re:q0", "q1", "re:q1", "q2", "re:q2", "q3", "re:q3",
    ]  # fmt: skip


async def test_of_a_changing_system_item_only_the_latest_counts(gateway: RunningGateway) -> None:
    for count in range(1, 21):
        texts = [f"q{number}" for number in range(count)]
        await gateway.respond([_system(f"minute {count}"), *_turns(*texts)])
        assert gateway.model.shown[-1][0] == f"minute {count}"
        assert len(gateway.model.shown[-1]) == 2 * count
    # Each message and each version of the instructions was stored once.
    assert len(await gateway.log(view="log")) == 60
    assert len(await gateway.log()) == 41


async def _listed(
    gateway: RunningGateway, order: str, limit: int, surface: str = "sessions"
) -> list[str]:
    """Return what the lists show, read in pages of this size."""
    [session] = (await gateway.client.get("/v1/sessions?key=k")).json()["data"]
    name = session["id"] if surface == "sessions" else session["id"].replace("ses_", "conv_")
    texts: list[str] = []
    after = ""
    while True:
        path = f"/v1/{surface}/{name}/items?order={order}&limit={limit}{after}"
        page = (await gateway.client.get(path)).json()
        texts += [text_of(item) for item in page["data"]]
        if not page["has_more"]:
            assert len(texts) == session["item_count"]
            return texts
        after = f"&after={page['last_id']}"


@pytest.mark.parametrize("surface", ["sessions", "conversations"])
async def test_items_lists_changed_instructions_where_the_model_sees_them(
    gateway: RunningGateway, surface: str
) -> None:
    await gateway.respond([_system("be brief"), *_turns("one")])
    await gateway.respond(
        [_system("be long"), _said("developer", "in French"), *_turns("one", "two")]
    )
    await gateway.respond(_turns("one", "two", "three"))
    shown = [*gateway.model.shown[-1], "re:three"]
    assert shown[:3] == ["be long", "in French", "one"]
    for limit in (1, 2, 3, 100):
        assert await _listed(gateway, "asc", limit, surface) == shown
        assert await _listed(gateway, "desc", limit, surface) == shown[::-1]


async def test_instructions_hold_for_turns_that_send_none(gateway: RunningGateway) -> None:
    await gateway.respond([_system("be brief"), _said("user", "one")])
    await gateway.respond([_said("user", "two")])
    await gateway.respond(_turns("one", "two", "three"))
    assert gateway.model.shown[1:] == [
        ["be brief", "one", "re:one", "two"],
        ["be brief", "one", "re:one", "two", "re:two", "three"],
    ]
    assert len(await gateway.log(view="log")) == 7


async def test_a_client_that_sends_only_new_items_may_repeat_its_instructions(
    gateway: RunningGateway,
) -> None:
    lead = [_system("be brief"), _said("developer", "in French")]
    await gateway.respond([*lead, _said("user", "one")])
    await gateway.respond([*lead, _said("user", "two")])
    await gateway.respond([lead[0], _said("user", "three")])
    assert gateway.model.shown == [
        ["be brief", "in French", "one"],
        ["be brief", "in French", "one", "re:one", "two"],
        ["be brief", "one", "re:one", "two", "re:two", "three"],
    ]


async def test_an_edit_of_the_first_message_keeps_the_instructions(
    gateway: RunningGateway,
) -> None:
    whole = {"X-Session-History": "whole"}
    await gateway.respond([_system("be brief"), _said("user", "one")])
    await gateway.respond([_system("be brief"), _said("user", "uno")], headers=whole)
    await gateway.respond([_said("user", "eins")], headers=whole)
    assert gateway.model.shown[1:] == [["be brief", "uno"], ["be brief", "eins"]]


async def test_a_developer_message_in_the_middle_is_history(gateway: RunningGateway) -> None:
    await gateway.respond([_system("be brief"), _said("user", "one")])
    later = [*_turns("one"), _said("assistant", "re:one"), _said("developer", "now"),
             _said("user", "two")]  # fmt: skip
    await gateway.respond([_system("be brief"), *later])
    await gateway.respond([_system("be long"), *later, _said("assistant", "re:two"),
                           _said("user", "three")])  # fmt: skip
    assert gateway.model.shown[-1] == [
        "be long", "one", "re:one", "now", "two", "re:two", "three",
    ]  # fmt: skip
    assert len(await gateway.log(view="log")) == 9


@pytest.mark.parametrize("is_fork", [False, True])
async def test_instructions_that_waited_in_the_queue_take_effect(
    gateway: RunningGateway, is_fork: bool
) -> None:
    first = await gateway.respond([_system("first"), _said("user", "one")])
    session = SessionId(first.headers["x-session-id"])
    if is_fork:
        fork = await gateway.client.post(f"/v1/sessions/{session}/fork", json={})
        session = fork.json()["id"]
    here: dict[str, Any] = {"key": None, "headers": {"X-Session-Id": session}}
    gateway.model.gate.clear()
    running = asyncio.create_task(gateway.respond([_said("user", "two")], **here))
    await gateway.model.entered.acquire()
    await gateway.model.entered.acquire()
    lead = [_system("second"), _said("user", "three")]
    queued = asyncio.create_task(gateway.respond(lead, **here))
    await gateway.until_queued(1, session_id=session)
    gateway.model.gate.set()
    await asyncio.gather(running, queued)
    assert gateway.model.shown[-1][0] == "second"
    assert "first" not in gateway.model.shown[-1]


async def test_a_first_request_with_a_history_has_its_instructions_recognised(
    gateway: RunningGateway,
) -> None:
    await gateway.respond([_system("be brief"), *_turns("one", "two")])
    await gateway.respond([_system("be long"), *_turns("one", "two", "three")])
    assert gateway.model.shown[-1][0] == "be long"
    assert "be brief" not in gateway.model.shown[-1]


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_changed_instructions_are_sent_first_and_drop_provider_state(api: str) -> None:
    with ProviderSimulator() as simulator:
        state: dict[str, Any] = {"state": "chain"} if api == "responses" else {}
        async with open_upstream_gateway(upstream(simulator, api=api, **state)) as gateway:
            await gateway.respond([_system("be brief"), _said("user", "one")])
            await gateway.respond([_system("be long"), _said("user", "two")])
            body = simulator.requests(operation="create")[-1].body
    sent = body["input"] if api == "responses" else body["messages"]
    assert sent[0]["role"] == "system"
    assert "be long" in str(sent[0])
    assert "be brief" not in str(sent)
    assert "previous_response_id" not in body


async def test_instructions_of_a_turn_that_is_rolled_back_are_sent_again(
    gateway: RunningGateway,
) -> None:
    gateway.model.gate.clear()
    running = asyncio.create_task(gateway.respond([_system("be brief"), _said("user", "story")]))
    await gateway.model.entered.acquire()
    rollback = {"X-On-Busy": "rollback"}
    quick = [_system("be brief"), _said("user", "quick")]
    second = asyncio.create_task(gateway.respond(quick, headers=rollback))
    await gateway.model.entered.acquire()
    gateway.model.gate.set()
    assert (await second).status_code == 200
    await running
    assert gateway.model.shown[-1] == ["be brief", "quick"]
