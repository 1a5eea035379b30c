"""Requests that name an item instead of sending it again."""

import msgspec

from tests.in_process import Item, RunningGateway, open_gateway, said, text_of


def _ref(name: str) -> Item:
    return {"type": "item_reference", "id": name}


def _user(text: str) -> Item:
    return {"role": "user", "content": text}


async def _first(gateway: RunningGateway, key: str | None = None) -> tuple[str, str]:
    """Ask something; return the answer's item and its session."""
    number = len(gateway.model.calls)
    gateway.model.script = lambda items: [
        {**said(f"re:{text_of(items[-1])}"), "id": f"msg_{number}"}
    ]
    reply = await gateway.respond([_user("one")], key)
    return reply.json()["output"][0]["id"], reply.headers["x-session-id"]


async def test_references_to_earlier_answers_are_resolved_for_the_model() -> None:
    async with open_gateway() as gateway:
        name, session = await _first(gateway)
        again = await gateway.respond([_user("one"), _ref(name), _user("two")], None)
        assert gateway.model.shown[-1] == ["one", "re:one", "two"]
        # What it refers to is a history that is stored: it goes on there.
        assert again.headers["x-session-id"] == session
        alone = await gateway.respond([_ref(name), _user("three")], None)
        assert alone.status_code == 200
        assert gateway.model.shown[-1] == ["re:one", "three"]


async def test_a_reference_is_resolved_in_the_session_of_the_request() -> None:
    async with open_gateway() as gateway:
        name, _ = await _first(gateway, "k")
        await gateway.respond([_user("one"), _ref(name), _user("two")], "k")
        assert await gateway.log("k") == ["one", "re:one", "two", "re:two"]
        for key in (None, "other"):
            refused = await gateway.respond([_ref(name), _user("three")], key)
            assert refused.status_code == 404


async def test_an_unstored_request_may_reference_stored_items() -> None:
    async with open_gateway() as gateway:
        name, _ = await _first(gateway)
        passed = await gateway.respond([_user("one"), _ref(name), _user("two")], None, store=False)
        assert passed.status_code == 200
        assert gateway.model.shown[-1] == ["one", "re:one", "two"]


async def test_items_of_a_conversation_may_be_references() -> None:
    async with open_gateway() as gateway:
        name, _ = await _first(gateway)
        made = await gateway.client.post("/v1/conversations", json={"items": [_ref(name)]})
        path = f"/v1/conversations/{made.json()['id']}/items"
        added = await gateway.client.post(path, json={"items": [_user("next"), _ref(name)]})
        assert added.status_code == 200
        listed = (await gateway.client.get(path, params={"order": "asc"})).json()["data"]
        assert [item["content"][0]["text"] for item in listed] == ["re:one", "next", "re:one"]
        assert len({item["id"] for item in listed}) == 3
        refused = await gateway.client.post(path, json={"items": [_ref("msg_nobody")]})
        assert refused.status_code == 404
        assert refused.json()["error"]["param"] == "items"


async def test_an_unknown_reference_is_rejected_and_nothing_is_stored() -> None:
    async with open_gateway() as gateway:
        for name in ("msg_nobody", "", "msg_\0", "x" * 5000):
            refused = await gateway.respond([_user("one"), _ref(name)], "k")
            assert refused.status_code == 404, name
            error = refused.json()["error"]
            assert error["message"] == f"Item with id '{name}' not found."
            assert (error["param"], error["type"]) == ("input", "not_found_error")
        no_name = await gateway.respond([{"type": "item_reference"}], "k")
        assert no_name.status_code == 404
        assert (await gateway.client.get("/v1/sessions")).json()["data"] == []


async def test_a_deleted_or_erased_item_cannot_be_referenced() -> None:
    async with open_gateway() as gateway:
        name, session = await _first(gateway)
        talk = session.replace("ses_", "conv_")
        await gateway.client.delete(f"/v1/conversations/{talk}/items/{name}")
        assert (await gateway.respond([_ref(name)], None)).status_code == 404
        other, session = await _first(gateway)
        await gateway.client.delete(f"/v1/sessions/{session}")
        assert (await gateway.respond([_ref(other)], None)).status_code == 404


async def test_a_referenced_item_is_shown_with_its_stored_bytes() -> None:
    async with open_gateway() as gateway:
        odd = {"type": "message", "role": "user", "id": "msg_mine", "content": "x", "colour": "red"}
        await gateway.respond([odd, {"role": "assistant", "content": "y"}, _user("q")], None)
        await gateway.respond([_ref("msg_mine"), _user("z")], None)
        assert msgspec.json.decode(gateway.model.calls[-1].items[0])["colour"] == "red"
