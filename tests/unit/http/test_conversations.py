"""The Conversations API: the model is shown exactly the items that are listed."""

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from tests.in_process import Item, RunningGateway, called, open_gateway, said, text_of


def user(text: str) -> Item:
    return {"role": "user", "content": text}


async def begin(gateway: RunningGateway, *items: Item, **fields: Any) -> str:
    answer = await gateway.client.post("/v1/conversations", json={"items": [*items], **fields})
    assert answer.status_code == 200, answer.text
    name = answer.json()["id"]
    assert isinstance(name, str)
    return name


async def add(gateway: RunningGateway, name: str, *items: Item, **headers: str) -> list[Item]:
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    answer = await gateway.client.post(
        f"/v1/conversations/{name}/items", json={"items": [*items]}, headers=sent
    )
    assert answer.status_code == 200, answer.text
    data: list[Item] = answer.json()["data"]
    return data


async def listed(gateway: RunningGateway, name: str, **query: Any) -> Item:
    answer = await gateway.client.get(
        f"/v1/conversations/{name}/items", params={"order": "asc", **query}
    )
    assert answer.status_code == 200, answer.text
    value: Item = answer.json()
    return value


async def texts(gateway: RunningGateway, name: str) -> list[str]:
    """Return every item's text, paged through as a client would."""
    found: list[Item] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = await listed(gateway, name, **query)
        found.extend(page["data"])
        if not page["has_more"]:
            return [text_of(item) for item in found]
        query["after"] = page["last_id"]


async def answer_in(gateway: RunningGateway, name: str, text: str) -> None:
    answer = await gateway.respond(text, key=None, conversation=name)
    assert answer.status_code == 200, answer.text
    assert answer.json()["conversation"] == {"id": name}


async def test_a_conversation_has_its_four_fields_and_nothing_else() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, metadata={"topic": "tea"})
        found = (await gateway.client.get(f"/v1/conversations/{name}")).json()
        assert found.keys() == {"id", "object", "created_at", "metadata"}
        assert found["object"] == "conversation"
        assert found["metadata"] == {"topic": "tea"}
        assert name.startswith("conv_")


async def test_metadata_is_replaced() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, metadata={"a": "1"})
        changed = await gateway.client.post(
            f"/v1/conversations/{name}", json={"metadata": {"b": ""}}
        )
        assert changed.json()["metadata"] == {"b": ""}
        assert (await gateway.client.get(f"/v1/conversations/{name}")).json() == changed.json()


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
async def test_metadata_of_a_conversation_beyond_its_limits_is_rejected(metadata: object) -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        for path in ("/v1/conversations", f"/v1/conversations/{name}"):
            answer = await gateway.client.post(path, json={"metadata": metadata})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "invalid_metadata"


async def test_metadata_up_to_its_limits_is_stored() -> None:
    async with open_gateway() as gateway:
        most = {f"{n:064}": "é" * 512 for n in range(16)}
        name = await begin(gateway, metadata=most)
        assert (await gateway.client.get(f"/v1/conversations/{name}")).json()["metadata"] == most


async def test_every_listed_item_can_be_found_by_its_id() -> None:
    async with open_gateway() as gateway:
        output = {"type": "function_call_output", "call_id": "c1", "output": "21"}
        given = [user("hi"), called("f", "c1"), output, {"type": "acme:odd", "n": 1}, said("yes")]
        name = await begin(gateway, *given)
        page = await listed(gateway, name)
        ids = [item["id"] for item in page["data"]]
        assert [one.split("_")[0] for one in ids] == ["msg", "fc", "fco", "item", "msg"]
        assert len(set(ids)) == 5
        assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[-1], False)
        for item in page["data"]:
            path = f"/v1/conversations/{name}/items/{item['id']}"
            assert (await gateway.client.get(path)).json() == item


async def test_a_short_message_is_listed_in_full() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, user("hi"), {"role": "assistant", "content": "yes"})
        first, second = (await listed(gateway, name))["data"]
        assert first.pop("id")
        assert first == {
            "role": "user", "type": "message", "status": "completed",
            "content": [{"type": "input_text", "text": "hi"}],
        }  # fmt: skip
        assert second["content"] == [{"type": "output_text", "text": "yes", "annotations": []}]


async def test_the_model_is_shown_the_bytes_that_were_sent() -> None:
    async with open_gateway() as gateway:
        body = b'{"items": [ {"content" : "hi",  "role":"user", "x": 1.50} ]}'
        answer = await gateway.client.post(
            "/v1/conversations", content=body, headers={"content-type": "application/json"}
        )
        await answer_in(gateway, answer.json()["id"], "yes")
        assert gateway.model.calls[0].items[0] == b'{"content" : "hi",  "role":"user", "x": 1.50}'


async def test_item_ids_sent_by_a_client_are_kept() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, {"id": "msg_mine", **user("hi")})
        assert (await listed(gateway, name))["data"][0]["id"] == "msg_mine"
        path = f"/v1/conversations/{name}/items/msg_mine"
        assert (await gateway.client.get(path)).status_code == 200


@pytest.mark.parametrize("item_id", ["msg/1", "msg%2F1", "msg%41", "msg 1?#é"])
async def test_an_item_is_found_whatever_characters_its_id_has(item_id: str) -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, {**user("hi"), "type": "message", "id": item_id})
        path = f"/v1/conversations/{name}/items/{quote(item_id, safe='')}"
        answer = await gateway.client.get(path)
        assert answer.status_code == 200, answer.text
        assert answer.json()["id"] == item_id


async def test_items_with_the_same_id_are_all_kept_and_distinguishable() -> None:
    async with open_gateway() as gateway:
        twin = {"id": "msg_twin", "type": "message", "role": "user"}
        name = await begin(gateway, {**twin, "content": "a"}, user("b"), {**twin, "content": "c"})
        await add(gateway, name, {**twin, "content": "d"})
        assert await texts(gateway, name) == ["a", "b", "c", "d"]
        ids = [item["id"] for item in (await listed(gateway, name))["data"]]
        assert ids[0] == "msg_twin"
        assert len(set(ids)) == 4
        await gateway.client.delete(f"/v1/conversations/{name}/items/{ids[2]}")
        assert await texts(gateway, name) == ["a", "b", "d"]
        await gateway.client.delete(f"/v1/conversations/{name}/items/msg_twin")
        assert await texts(gateway, name) == ["b", "d"]
        ids = [item["id"] for item in (await listed(gateway, name))["data"]]
        assert ids[1] == "msg_twin"


async def test_pages_cover_a_list_in_both_orders() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, *(user(str(n)) for n in range(7)))
        for order, expected in (("asc", list("0123456")), ("desc", list("6543210"))):
            seen: list[str] = []
            after: dict[str, str] = {}
            pages = 0
            while True:
                page = await listed(gateway, name, order=order, limit=2, **after)
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
    async with open_gateway() as gateway:
        page = await listed(gateway, await begin(gateway))
        empty: Item = {
            "object": "list",
            "data": [],
            "first_id": None,
            "last_id": None,
            "has_more": False,
        }
        assert page == empty


async def test_without_an_order_the_newest_come_first() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, user("a"), user("b"))
        found = (await gateway.client.get(f"/v1/conversations/{name}/items")).json()["data"]
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
async def test_an_invalid_page_request_is_rejected(query: str, code: str) -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, user("a"))
        answer = await gateway.client.get(f"/v1/conversations/{name}/items?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == code


async def test_a_page_continues_after_an_item_that_was_deleted_meanwhile() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, *(user(str(n)) for n in range(4)))
        last = (await listed(gateway, name, limit=2))["last_id"]
        await gateway.client.delete(f"/v1/conversations/{name}/items/{last}")
        page = await listed(gateway, name, limit=2, after=last)
        assert [text_of(item) for item in page["data"]] == ["2", "3"]


async def test_what_is_added_and_deleted_between_turns_is_what_the_model_sees() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, *(user(f"p{n}") for n in range(20)))
        await add(gateway, name, *(user(f"q{n}") for n in range(20)))
        await answer_in(gateway, name, "one")
        expected = [*(f"p{n}" for n in range(20)), *(f"q{n}" for n in range(20)), "one"]
        assert gateway.model.shown[-1] == expected
        first = (await listed(gateway, name, limit=1))["data"][0]
        deleted = await gateway.client.delete(f"/v1/conversations/{name}/items/{first['id']}")
        assert deleted.json()["object"] == "conversation"
        assert deleted.json()["id"] == name
        await add(gateway, name, user("late"))
        await answer_in(gateway, name, "two")
        assert gateway.model.shown[-1] == [*expected[1:], "re:one", "late", "two"]
        assert await texts(gateway, name) == [*gateway.model.shown[-1], "re:two"]


async def test_a_deleted_item_is_not_found_anywhere() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, user("a"), user("b"))
        first = (await listed(gateway, name))["first_id"]
        path = f"/v1/conversations/{name}/items/{first}"
        assert (await gateway.client.delete(path)).status_code == 200
        for answer in (await gateway.client.get(path), await gateway.client.delete(path)):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "item_not_found"


async def test_erasing_an_item_removes_its_content() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, user("the secret"), user("b"))
        first = (await listed(gateway, name))["first_id"]
        path = f"/v1/conversations/{name}/items/{first}?erase=true"
        assert (await gateway.client.delete(path)).status_code == 200
        session = "ses_" + name.removeprefix("conv_")
        log = await gateway.client.get(f"/v1/sessions/{session}/items?view=log")
        assert "the secret" not in log.text
        assert await texts(gateway, name) == ["b"]


@pytest.mark.parametrize("how", ["deleted", "edited"])
async def test_what_is_hidden_already_can_be_erased_once(how: str) -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, user("the secret"))
        session, path = "ses_" + name.removeprefix("conv_"), f"/v1/conversations/{name}/items"
        secret = (await listed(gateway, name))["first_id"]
        if how == "deleted":
            assert (await gateway.client.delete(f"{path}/{secret}")).status_code == 200
        else:
            headers = {"X-Session-Id": session, "X-Session-History": "whole"}
            body = {"model": "scripted", "input": "another question"}
            await gateway.client.post("/v1/responses", json=body, headers=headers)
        seen = await texts(gateway, name)
        assert "the secret" not in seen
        statuses = [
            (await gateway.client.delete(f"{path}/{secret}{query}")).status_code
            for query in ("", "?erase=true", "?erase=true")
        ]
        assert statuses == [404, 200, 404]
        log = await gateway.client.get(f"/v1/sessions/{session}/items?view=log")
        assert "the secret" not in log.text
        assert await texts(gateway, name) == seen
        found = (await gateway.client.get(f"/v1/sessions/{session}")).json()
        assert found["item_count"] == len(seen)


async def test_items_wait_for_the_turn_that_runs() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        gateway.model.gate.clear()
        turn = asyncio.create_task(answer_in(gateway, name, "one"))
        await gateway.model.entered.acquire()
        adding = asyncio.create_task(add(gateway, name, user("two")))
        session = (await gateway.client.get("/v1/sessions")).json()["data"][0]
        while not session["queued_turns"]:
            session = (await gateway.client.get(f"/v1/sessions/{session['id']}")).json()
        assert not adding.done()
        gateway.model.gate.set()
        await turn
        assert [text_of(item) for item in await adding] == ["two"]
        assert await texts(gateway, name) == ["one", "re:one", "two"]


async def test_items_with_on_busy_reject_are_rejected_by_a_busy_conversation() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        gateway.model.gate.clear()
        turn = asyncio.create_task(answer_in(gateway, name, "one"))
        await gateway.model.entered.acquire()
        answer = await gateway.client.post(
            f"/v1/conversations/{name}/items",
            json={"items": [user("two")]},
            headers={"X-On-Busy": "reject"},
        )
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "session_busy"
        assert answer.headers["retry-after"]
        gateway.model.gate.set()
        await turn
        assert await texts(gateway, name) == ["one", "re:one"]


async def test_outputs_added_as_items_complete_the_turn_that_waits_for_them() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        gateway.model.script = lambda items: (
            [called("f", "c1")] if len(items) == 1 else [said("21")]
        )
        await answer_in(gateway, name, "go")
        output = {"type": "function_call_output", "call_id": "c1", "output": "21"}
        shown = await add(gateway, name, output)
        assert [text_of(item) for item in shown] == ["=21"]
        await answer_in(gateway, name, "and?")
        assert gateway.model.shown[-1] == ["go", "f()", "=21", "and?"]


# ── once ────────────────────────────────────────────────────────────────────────────────────


async def test_an_sdk_retry_appends_items_once() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        first = await add(gateway, name, user("yes"))
        again = await add(gateway, name, user("yes"), x_stainless_retry_count="1")
        assert again == first
        assert await texts(gateway, name) == ["yes"]


async def test_a_second_equal_message_is_appended() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        await add(gateway, name, user("yes"))
        await add(gateway, name, user("yes"), x_stainless_retry_count="1")
        await add(gateway, name, user("yes"), x_stainless_retry_count="0")
        await add(gateway, name, user("no"), x_stainless_retry_count="1")
        await add(gateway, name, user("yes"), x_stainless_retry_count="1")
        assert await texts(gateway, name) == ["yes", "yes", "no", "yes"]


async def test_a_retry_count_is_claimed_once() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        await add(gateway, name, user("yes"))
        await add(gateway, name, user("yes"), x_stainless_retry_count="1")
        await add(gateway, name, user("yes"), x_stainless_retry_count="2")
        await add(gateway, name, user("yes"), x_stainless_retry_count="2")
        assert await texts(gateway, name) == ["yes", "yes"]


async def test_an_idempotency_key_appends_a_batch_once_and_rejects_another_body() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        first = await add(gateway, name, user("a"), user("b"), idempotency_key="k1")
        await add(gateway, name, user("c"))
        assert await add(gateway, name, user("a"), user("b"), idempotency_key="k1") == first
        assert await texts(gateway, name) == ["a", "b", "c"]
        answer = await gateway.client.post(
            f"/v1/conversations/{name}/items",
            json={"items": [user("other")]},
            headers={"Idempotency-Key": "k1"},
        )
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] == "idempotency_key_reused"


async def test_an_idempotency_key_creates_a_conversation_once() -> None:
    async with open_gateway() as gateway:
        for body in ({"items": [user("a")], "metadata": {"k": "v"}}, {}):
            headers = {"Idempotency-Key": f"k{len(body)}"}
            made = [
                (await gateway.client.post("/v1/conversations", json=body, headers=headers)).json()
                for _ in range(2)
            ]
            assert made[0] == made[1]
            assert made[0]["metadata"] == body.get("metadata", {})


async def test_a_repeat_of_a_waiting_batch_is_answered_when_it_is_stored() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        gateway.model.gate.clear()
        turn = asyncio.create_task(answer_in(gateway, name, "one"))
        await gateway.model.entered.acquire()
        adding = asyncio.create_task(add(gateway, name, user("two"), idempotency_key="k"))
        session = (await gateway.client.get("/v1/sessions")).json()["data"][0]
        while not session["queued_turns"]:
            session = (await gateway.client.get(f"/v1/sessions/{session['id']}")).json()
        again = asyncio.create_task(add(gateway, name, user("two"), idempotency_key="k"))
        gateway.model.gate.set()
        await turn
        assert await adding == await again
        assert await texts(gateway, name) == ["one", "re:one", "two"]


# ── ends and refusals ───────────────────────────────────────────────────────────────────────


async def test_a_deleted_conversation_is_gone() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, user("a"))
        item = (await listed(gateway, name))["first_id"]
        path = f"/v1/conversations/{name}"
        answer = await gateway.client.delete(path)
        assert answer.json() == {"id": name, "object": "conversation.deleted", "deleted": True}
        gone = [
            await gateway.client.get(path),
            await gateway.client.delete(path),
            await gateway.client.post(path, json={"metadata": {}}),
            await gateway.client.get(f"{path}/items"),
            await gateway.client.post(f"{path}/items", json={"items": [user("b")]}),
            await gateway.client.get(f"{path}/items/{item}"),
            await gateway.client.delete(f"{path}/items/{item}"),
        ]
        assert [one.status_code for one in gone] == [404] * 7
        assert {one.json()["error"]["code"] for one in gone} == {"conversation_not_found"}
        again = await gateway.respond("hello", key=None, conversation=name)
        assert again.status_code == 404


async def test_a_conversation_with_forks_is_deleted_only_with_cascade() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        first = (await gateway.respond("one", key=None, conversation=name)).json()["id"]
        await answer_in(gateway, name, "two")
        fork = await gateway.respond("other", key=None, previous_response_id=first)
        assert gateway.model.shown[-1] == ["one", "re:one", "other"]
        answer = await gateway.client.delete(f"/v1/conversations/{name}")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "session_has_forks"
        answer = await gateway.client.delete(f"/v1/conversations/{name}?cascade=true")
        assert answer.status_code == 200
        assert (await gateway.client.get(f"/v1/responses/{fork.json()['id']}")).status_code == 404


async def test_a_fork_lists_what_it_inherited_and_keeps_its_own_deletions() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway, user("a"), user("b"))
        first = (await gateway.respond("one", key=None, conversation=name)).json()["id"]
        await answer_in(gateway, name, "two")
        fork = await gateway.respond("other", key=None, previous_response_id=first)
        child = "conv_" + fork.headers["x-session-id"].removeprefix("ses_")
        assert await texts(gateway, child) == ["a", "b", "one", "re:one", "other", "re:other"]
        inherited = (await listed(gateway, child))["first_id"]
        refused = await gateway.client.delete(
            f"/v1/conversations/{child}/items/{inherited}?erase=true"
        )
        assert refused.status_code == 400
        await gateway.client.delete(f"/v1/conversations/{child}/items/{inherited}")
        assert (await texts(gateway, child))[0] == "b"
        assert (await texts(gateway, name))[0] == "a"


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
async def test_an_invalid_batch_of_items_is_rejected(body: object) -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        for path in ("/v1/conversations", f"/v1/conversations/{name}/items"):
            answer = await gateway.client.post(path, json=body)
            assert answer.status_code == (415 if body is None else 400)
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert await texts(gateway, name) == []


async def test_an_empty_batch_is_rejected() -> None:
    async with open_gateway() as gateway:
        name = await begin(gateway)
        bodies: list[Item] = [{}, {"items": []}, {"items": None}]
        for body in bodies:
            answer = await gateway.client.post(f"/v1/conversations/{name}/items", json=body)
            assert answer.status_code == 400


async def test_unusable_item_ids_are_replaced_only_in_lists() -> None:
    async with open_gateway() as gateway:
        long, strange = "msg_" + "x" * 2000, "msg_\0"
        name = await begin(gateway, {"id": long, **user("a")}, {"id": strange, **user("b")},
                           {"id": None, **user("c")})  # fmt: skip
        ids = [item["id"] for item in (await listed(gateway, name))["data"]]
        assert not {long, strange, None} & set(ids)
        for one in ids:
            path = f"/v1/conversations/{name}/items/{one}"
            assert (await gateway.client.get(path)).status_code == 200


@pytest.mark.parametrize("query", ["earse=true", "erase=true&cascade=true", "Erase=true"])
async def test_a_misspelt_erasure_is_refused_and_hides_nothing(query: str) -> None:
    async with open_gateway() as gateway:
        client = gateway.client
        made = (await client.post("/v1/conversations", json={"items": [user("secret")]})).json()
        items = f"/v1/conversations/{made['id']}/items"
        [item] = (await client.get(items)).json()["data"]
        refused = await client.delete(f"{items}/{item['id']}?{query}")
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"] not in ("erase", None)
        assert (await client.delete(f"/v1/conversations/{made['id']}?casacde=true")).is_error
        assert (await client.get(items)).json()["data"] == [item]
        erased = await client.delete(f"{items}/{item['id']}?erase=true&api-version=2026-01-01")
        assert erased.status_code == 200, erased.text
