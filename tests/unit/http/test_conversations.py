"""Conversations over HTTP: what is added, deleted or said is what the model is shown next."""

import asyncio
from typing import Any

import pytest

from tests.in_process import House, Item, called, open_house, said, text_of


def user(text: str) -> Item:
    return {"role": "user", "content": text}


async def begin(house: House, *items: Item, **fields: Any) -> str:
    answer = await house.client.post("/v1/conversations", json={"items": [*items], **fields})
    assert answer.status_code == 200, answer.text
    name = answer.json()["id"]
    assert isinstance(name, str)
    return name


async def add(house: House, name: str, *items: Item, **headers: str) -> list[Item]:
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    answer = await house.client.post(
        f"/v1/conversations/{name}/items", json={"items": [*items]}, headers=sent
    )
    assert answer.status_code == 200, answer.text
    data: list[Item] = answer.json()["data"]
    return data


async def listed(house: House, name: str, **query: Any) -> Item:
    answer = await house.client.get(
        f"/v1/conversations/{name}/items", params={"order": "asc", **query}
    )
    assert answer.status_code == 200, answer.text
    value: Item = answer.json()
    return value


async def texts(house: House, name: str) -> list[str]:
    """Return every item's text, paged through as a client would."""
    found: list[Item] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = await listed(house, name, **query)
        found.extend(page["data"])
        if not page["has_more"]:
            return [text_of(item) for item in found]
        query["after"] = page["last_id"]


async def answer_in(house: House, name: str, text: str) -> None:
    answer = await house.respond(text, key=None, conversation=name)
    assert answer.status_code == 200, answer.text
    assert answer.json()["conversation"] == {"id": name}


async def test_a_conversation_has_its_four_fields_and_nothing_else() -> None:
    async with open_house() as house:
        name = await begin(house, metadata={"topic": "tea"})
        found = (await house.client.get(f"/v1/conversations/{name}")).json()
        assert found.keys() == {"id", "object", "created_at", "metadata"}
        assert found["object"] == "conversation"
        assert found["metadata"] == {"topic": "tea"}
        assert name.startswith("conv_")


async def test_metadata_are_replaced() -> None:
    async with open_house() as house:
        name = await begin(house, metadata={"a": "1"})
        changed = await house.client.post(f"/v1/conversations/{name}", json={"metadata": {"b": ""}})
        assert changed.json()["metadata"] == {"b": ""}
        assert (await house.client.get(f"/v1/conversations/{name}")).json() == changed.json()


@pytest.mark.parametrize(
    "metadata",
    [
        {str(n): "" for n in range(17)},
        {"k" * 65: ""},
        {"k": "v" * 513},
        {"k": 1},
        {"k": None},
        ["k"],
        "k",
    ],
)
async def test_metadata_beyond_the_bounds_are_refused(metadata: object) -> None:
    async with open_house() as house:
        name = await begin(house)
        for path in ("/v1/conversations", f"/v1/conversations/{name}"):
            answer = await house.client.post(path, json={"metadata": metadata})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "invalid_metadata"


async def test_metadata_up_to_the_bounds_are_kept() -> None:
    async with open_house() as house:
        most = {f"{n:064}": "é" * 512 for n in range(16)}
        name = await begin(house, metadata=most)
        assert (await house.client.get(f"/v1/conversations/{name}")).json()["metadata"] == most


async def test_every_item_that_is_listed_has_an_id_by_which_it_is_found() -> None:
    async with open_house() as house:
        output = {"type": "function_call_output", "call_id": "c1", "output": "21"}
        given = [user("hi"), called("f", "c1"), output, {"type": "acme:odd", "n": 1}, said("yes")]
        name = await begin(house, *given)
        page = await listed(house, name)
        ids = [item["id"] for item in page["data"]]
        assert [one.split("_")[0] for one in ids] == ["msg", "fc", "fco", "item", "msg"]
        assert len(set(ids)) == 5
        assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[-1], False)
        for item in page["data"]:
            path = f"/v1/conversations/{name}/items/{item['id']}"
            assert (await house.client.get(path)).json() == item


async def test_a_short_message_is_listed_in_full() -> None:
    async with open_house() as house:
        name = await begin(house, user("hi"), {"role": "assistant", "content": "yes"})
        first, second = (await listed(house, name))["data"]
        assert first.pop("id")
        assert first == {
            "role": "user", "type": "message", "status": "completed",
            "content": [{"type": "input_text", "text": "hi"}],
        }  # fmt: skip
        assert second["content"] == [{"type": "output_text", "text": "yes", "annotations": []}]


async def test_the_model_is_shown_the_bytes_that_came() -> None:
    async with open_house() as house:
        body = b'{"items": [ {"content" : "hi",  "role":"user", "x": 1.50} ]}'
        answer = await house.client.post(
            "/v1/conversations", content=body, headers={"content-type": "application/json"}
        )
        await answer_in(house, answer.json()["id"], "yes")
        assert house.model.calls[0].items[0] == b'{"content" : "hi",  "role":"user", "x": 1.50}'


async def test_ids_that_a_client_brings_are_kept() -> None:
    async with open_house() as house:
        name = await begin(house, {"id": "msg_mine", **user("hi")})
        assert (await listed(house, name))["data"][0]["id"] == "msg_mine"
        path = f"/v1/conversations/{name}/items/msg_mine"
        assert (await house.client.get(path)).status_code == 200


async def test_items_with_one_id_are_all_kept_and_can_be_told_apart() -> None:
    async with open_house() as house:
        twin = {"id": "msg_twin", "type": "message", "role": "user"}
        name = await begin(house, {**twin, "content": "a"}, user("b"), {**twin, "content": "c"})
        await add(house, name, {**twin, "content": "d"})
        assert await texts(house, name) == ["a", "b", "c", "d"]
        ids = [item["id"] for item in (await listed(house, name))["data"]]
        assert ids[0] == "msg_twin"
        assert len(set(ids)) == 4
        await house.client.delete(f"/v1/conversations/{name}/items/{ids[2]}")
        assert await texts(house, name) == ["a", "b", "d"]
        await house.client.delete(f"/v1/conversations/{name}/items/msg_twin")
        assert await texts(house, name) == ["b", "d"]
        ids = [item["id"] for item in (await listed(house, name))["data"]]
        assert ids[1] == "msg_twin"


async def test_pages_go_through_a_list_in_both_orders_and_end() -> None:
    async with open_house() as house:
        name = await begin(house, *(user(str(n)) for n in range(7)))
        for order, expected in (("asc", list("0123456")), ("desc", list("6543210"))):
            seen: list[str] = []
            after: dict[str, str] = {}
            pages = 0
            while True:
                page = await listed(house, name, order=order, limit=2, **after)
                seen.extend(text_of(item) for item in page["data"])
                assert page["first_id"] == page["data"][0]["id"]
                after = {"after": page["data"][-1]["id"]}
                assert page["last_id"] == after["after"]
                pages += 1
                if not page["has_more"]:
                    break
            assert seen == expected
            assert pages == 4


async def test_an_empty_page_has_no_ids_and_nothing_more() -> None:
    async with open_house() as house:
        page = await listed(house, await begin(house))
        empty: Item = {
            "object": "list",
            "data": [],
            "first_id": None,
            "last_id": None,
            "has_more": False,
        }
        assert page == empty


async def test_without_an_order_the_newest_come_first() -> None:
    async with open_house() as house:
        name = await begin(house, user("a"), user("b"))
        found = (await house.client.get(f"/v1/conversations/{name}/items")).json()["data"]
        assert [text_of(item) for item in found] == ["b", "a"]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "invalid_input"),
        ("limit=101", "invalid_input"),
        ("limit=-1", "invalid_input"),
        ("limit=ten", "invalid_input"),
        ("limit=", "invalid_input"),
        (f"limit={'9' * 5000}", "invalid_input"),
        ("order=up", "invalid_input"),
        ("after=msg_unknown", "unknown_cursor"),
        ("after=%00", "invalid_input"),
        ("after=msg.1", "unknown_cursor"),
    ],
)
async def test_a_page_that_cannot_be_is_refused(query: str, code: str) -> None:
    async with open_house() as house:
        name = await begin(house, user("a"))
        answer = await house.client.get(f"/v1/conversations/{name}/items?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == code


async def test_a_page_goes_on_behind_an_item_that_was_deleted_meanwhile() -> None:
    async with open_house() as house:
        name = await begin(house, *(user(str(n)) for n in range(4)))
        last = (await listed(house, name, limit=2))["last_id"]
        await house.client.delete(f"/v1/conversations/{name}/items/{last}")
        page = await listed(house, name, limit=2, after=last)
        assert [text_of(item) for item in page["data"]] == ["2", "3"]


async def test_what_is_added_and_deleted_between_turns_is_what_the_model_sees() -> None:
    async with open_house() as house:
        name = await begin(house, *(user(f"p{n}") for n in range(20)))
        await add(house, name, *(user(f"q{n}") for n in range(20)))
        await answer_in(house, name, "one")
        expected = [*(f"p{n}" for n in range(20)), *(f"q{n}" for n in range(20)), "one"]
        assert house.model.shown[-1] == expected
        first = (await listed(house, name, limit=1))["data"][0]
        deleted = await house.client.delete(f"/v1/conversations/{name}/items/{first['id']}")
        assert deleted.json()["object"] == "conversation"
        assert deleted.json()["id"] == name
        await add(house, name, user("late"))
        await answer_in(house, name, "two")
        assert house.model.shown[-1] == [*expected[1:], "re:one", "late", "two"]
        assert await texts(house, name) == [*house.model.shown[-1], "re:two"]


async def test_a_deleted_item_is_gone_for_every_look_up() -> None:
    async with open_house() as house:
        name = await begin(house, user("a"), user("b"))
        first = (await listed(house, name))["first_id"]
        path = f"/v1/conversations/{name}/items/{first}"
        assert (await house.client.delete(path)).status_code == 200
        for answer in (await house.client.get(path), await house.client.delete(path)):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "item_not_found"


async def test_erasing_an_item_leaves_nothing_of_its_content() -> None:
    async with open_house() as house:
        name = await begin(house, user("the secret"), user("b"))
        first = (await listed(house, name))["first_id"]
        path = f"/v1/conversations/{name}/items/{first}?erase=true"
        assert (await house.client.delete(path)).status_code == 200
        session = "ses_" + name.removeprefix("conv_")
        log = await house.client.get(f"/v1/sessions/{session}/items?view=log")
        assert "the secret" not in log.text
        assert await texts(house, name) == ["b"]


async def test_items_wait_for_the_turn_that_runs() -> None:
    async with open_house() as house:
        name = await begin(house)
        house.model.door.clear()
        turn = asyncio.create_task(answer_in(house, name, "one"))
        await house.model.entered.acquire()
        adding = asyncio.create_task(add(house, name, user("two")))
        session = (await house.client.get("/v1/sessions")).json()["data"][0]
        while not session["queued_turns"]:
            session = (await house.client.get(f"/v1/sessions/{session['id']}")).json()
        assert not adding.done()
        house.model.door.set()
        await turn
        assert [text_of(item) for item in await adding] == ["two"]
        assert await texts(house, name) == ["one", "re:one", "two"]


async def test_items_that_may_not_wait_are_refused_by_a_busy_conversation() -> None:
    async with open_house() as house:
        name = await begin(house)
        house.model.door.clear()
        turn = asyncio.create_task(answer_in(house, name, "one"))
        await house.model.entered.acquire()
        answer = await house.client.post(
            f"/v1/conversations/{name}/items",
            json={"items": [user("two")]},
            headers={"X-On-Busy": "reject"},
        )
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "session_busy"
        assert answer.headers["retry-after"]
        house.model.door.set()
        await turn
        assert await texts(house, name) == ["one", "re:one"]


async def test_outputs_added_as_items_complete_the_turn_that_waits_for_them() -> None:
    async with open_house() as house:
        name = await begin(house)
        house.model.script = lambda items: [called("f", "c1")] if len(items) == 1 else [said("21")]
        await answer_in(house, name, "go")
        output = {"type": "function_call_output", "call_id": "c1", "output": "21"}
        shown = await add(house, name, output)
        assert [text_of(item) for item in shown] == ["=21"]
        await answer_in(house, name, "and?")
        assert house.model.shown[-1] == ["go", "f()", "=21", "and?"]


# ── once ────────────────────────────────────────────────────────────────────────────────────


async def test_an_sdk_that_sends_items_again_adds_them_once() -> None:
    async with open_house() as house:
        name = await begin(house)
        first = await add(house, name, user("yes"))
        again = await add(house, name, user("yes"), x_stainless_retry_count="1")
        assert again == first
        assert await texts(house, name) == ["yes"]


async def test_a_second_honest_yes_is_added() -> None:
    async with open_house() as house:
        name = await begin(house)
        await add(house, name, user("yes"))
        await add(house, name, user("yes"), x_stainless_retry_count="1")
        await add(house, name, user("yes"), x_stainless_retry_count="0")
        await add(house, name, user("no"), x_stainless_retry_count="1")
        await add(house, name, user("yes"), x_stainless_retry_count="1")
        assert await texts(house, name) == ["yes", "yes", "no", "yes"]


async def test_a_retry_count_is_claimed_once() -> None:
    async with open_house() as house:
        name = await begin(house)
        await add(house, name, user("yes"))
        await add(house, name, user("yes"), x_stainless_retry_count="1")
        await add(house, name, user("yes"), x_stainless_retry_count="2")
        await add(house, name, user("yes"), x_stainless_retry_count="2")
        assert await texts(house, name) == ["yes", "yes"]


async def test_a_batch_with_a_key_is_added_once_and_no_other_takes_its_key() -> None:
    async with open_house() as house:
        name = await begin(house)
        first = await add(house, name, user("a"), user("b"), idempotency_key="k1")
        await add(house, name, user("c"))
        assert await add(house, name, user("a"), user("b"), idempotency_key="k1") == first
        assert await texts(house, name) == ["a", "b", "c"]
        answer = await house.client.post(
            f"/v1/conversations/{name}/items",
            json={"items": [user("other")]},
            headers={"Idempotency-Key": "k1"},
        )
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] == "idempotency_key_reused"


async def test_a_conversation_with_a_key_is_begun_once() -> None:
    async with open_house() as house:
        for body in ({"items": [user("a")], "metadata": {"k": "v"}}, {}):
            headers = {"Idempotency-Key": f"k{len(body)}"}
            made = [
                (await house.client.post("/v1/conversations", json=body, headers=headers)).json()
                for _ in range(2)
            ]
            assert made[0] == made[1]
            assert made[0]["metadata"] == body.get("metadata", {})


async def test_a_batch_whose_first_sender_still_waits_is_answered_when_it_is_in() -> None:
    async with open_house() as house:
        name = await begin(house)
        house.model.door.clear()
        turn = asyncio.create_task(answer_in(house, name, "one"))
        await house.model.entered.acquire()
        adding = asyncio.create_task(add(house, name, user("two"), idempotency_key="k"))
        session = (await house.client.get("/v1/sessions")).json()["data"][0]
        while not session["queued_turns"]:
            session = (await house.client.get(f"/v1/sessions/{session['id']}")).json()
        again = asyncio.create_task(add(house, name, user("two"), idempotency_key="k"))
        house.model.door.set()
        await turn
        assert await adding == await again
        assert await texts(house, name) == ["one", "re:one", "two"]


# ── ends and refusals ───────────────────────────────────────────────────────────────────────


async def test_a_deleted_conversation_is_gone() -> None:
    async with open_house() as house:
        name = await begin(house, user("a"))
        item = (await listed(house, name))["first_id"]
        path = f"/v1/conversations/{name}"
        answer = await house.client.delete(path)
        assert answer.json() == {"id": name, "object": "conversation.deleted", "deleted": True}
        gone = [
            await house.client.get(path),
            await house.client.delete(path),
            await house.client.post(path, json={"metadata": {}}),
            await house.client.get(f"{path}/items"),
            await house.client.post(f"{path}/items", json={"items": [user("b")]}),
            await house.client.get(f"{path}/items/{item}"),
            await house.client.delete(f"{path}/items/{item}"),
        ]
        assert [one.status_code for one in gone] == [404] * 7
        assert {one.json()["error"]["code"] for one in gone} == {"conversation_not_found"}
        again = await house.respond("hello", key=None, conversation=name)
        assert again.status_code == 404


async def test_a_conversation_that_others_continue_is_deleted_only_with_them() -> None:
    async with open_house() as house:
        name = await begin(house)
        first = (await house.respond("one", key=None, conversation=name)).json()["id"]
        await answer_in(house, name, "two")
        fork = await house.respond("other", key=None, previous_response_id=first)
        assert house.model.shown[-1] == ["one", "re:one", "other"]
        answer = await house.client.delete(f"/v1/conversations/{name}")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "session_has_forks"
        answer = await house.client.delete(f"/v1/conversations/{name}?cascade=true")
        assert answer.status_code == 200
        assert (await house.client.get(f"/v1/responses/{fork.json()['id']}")).status_code == 404


async def test_a_fork_lists_what_it_inherited_and_keeps_its_own_deletions() -> None:
    async with open_house() as house:
        name = await begin(house, user("a"), user("b"))
        first = (await house.respond("one", key=None, conversation=name)).json()["id"]
        await answer_in(house, name, "two")
        fork = await house.respond("other", key=None, previous_response_id=first)
        child = "conv_" + fork.headers["x-session-id"].removeprefix("ses_")
        assert await texts(house, child) == ["a", "b", "one", "re:one", "other", "re:other"]
        inherited = (await listed(house, child))["first_id"]
        refused = await house.client.delete(
            f"/v1/conversations/{child}/items/{inherited}?erase=true"
        )
        assert refused.status_code == 400
        await house.client.delete(f"/v1/conversations/{child}/items/{inherited}")
        assert (await texts(house, child))[0] == "b"
        assert (await texts(house, name))[0] == "a"


@pytest.mark.parametrize(
    "body",
    [
        {"items": [user("x")] * 21},
        {"items": ["hi"]},
        {"items": [{}]},
        {"items": [{"type": 1}]},
        {"items": {"role": "user"}},
        {"items": [{"type": "a\0b"}]},
        {"items": [{"type": "function_call", "call_id": "a\0b"}]},
        {"items": [[[]]]},
        {"items": 1},
        [],
        1,
        "x",
        None,
    ],
)
async def test_what_is_not_a_batch_of_items_is_refused(body: object) -> None:
    async with open_house() as house:
        name = await begin(house)
        for path in ("/v1/conversations", f"/v1/conversations/{name}/items"):
            answer = await house.client.post(path, json=body)
            assert answer.status_code == (415 if body is None else 400)
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert await texts(house, name) == []


async def test_adding_no_items_is_refused() -> None:
    async with open_house() as house:
        name = await begin(house)
        bodies: list[Item] = [{}, {"items": []}, {"items": None}]
        for body in bodies:
            answer = await house.client.post(f"/v1/conversations/{name}/items", json=body)
            assert answer.status_code == 400


async def test_ids_that_cannot_be_looked_up_by_are_replaced_in_the_list_alone() -> None:
    async with open_house() as house:
        long, strange = "msg_" + "x" * 2000, "msg_\0"
        name = await begin(house, {"id": long, **user("a")}, {"id": strange, **user("b")},
                           {"id": None, **user("c")})  # fmt: skip
        ids = [item["id"] for item in (await listed(house, name))["data"]]
        assert not {long, strange, None} & set(ids)
        for one in ids:
            path = f"/v1/conversations/{name}/items/{one}"
            assert (await house.client.get(path)).status_code == 200
