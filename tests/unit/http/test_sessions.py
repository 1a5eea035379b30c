"""The Sessions and Turns APIs: listing, lifecycle of a key, state of a turn."""

import asyncio
from typing import Any

import httpx
import pytest

from holdfast.http.api import sessions
from tests.in_process import Item, RunningGateway, called, open_gateway, said, text_of

SESSION_FIELDS = {
    "id", "object", "key", "generation", "previous_session_id", "status", "active_turn_id",
    "queued_turns", "last_turn", "created_at", "last_user_activity_at", "item_count",
    "turn_count", "usage", "metadata", "parent_session_id", "parent_sequence", "source",
    "waits_for",
}  # fmt: skip


async def get(gateway: RunningGateway, path: str, **query: Any) -> Item:
    answer = await gateway.client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    value: Item = answer.json()
    return value


async def post(
    gateway: RunningGateway, path: str, body: Any = None, **headers: str
) -> httpx.Response:
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    if body is None:
        return await gateway.client.post(path, headers=sent)
    return await gateway.client.post(path, json=body, headers=sent)


async def session_of(gateway: RunningGateway, key: str = "k") -> Item:
    (found,) = (await get(gateway, "/v1/sessions", key=key))["data"]
    value: Item = found
    return value


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def texts(gateway: RunningGateway, session_id: str, **query: Any) -> list[str]:
    page = await get(gateway, f"/v1/sessions/{session_id}/items", limit=100, **query)
    return [text_of(item.get("item", item)) for item in page["data"]]


async def running(
    gateway: RunningGateway, text: str, key: str = "k"
) -> "asyncio.Task[httpx.Response]":
    """Start a turn and hold the model at its gate."""
    while not gateway.model.entered.locked():
        await gateway.model.entered.acquire()  # Those who came and went before.
    gateway.model.gate.clear()
    turn = asyncio.create_task(gateway.respond(text, key=key))
    await gateway.model.entered.acquire()
    return turn


# ── reading ─────────────────────────────────────────────────────────────────────────────────


async def test_a_session_has_the_fields_of_the_contract() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("hi", metadata={})
        session = await session_of(gateway)
        assert session.keys() == SESSION_FIELDS
        assert await get(gateway, f"/v1/sessions/{session['id']}") == session
        last = session["last_turn"]
        assert last.keys() == {
            "id", "status", "model", "error", "started_at", "ended_at", "duration_ms",
        }  # fmt: skip
        assert (last["status"], last["error"]) == ("completed", None)
        assert (session["status"], session["item_count"], session["turn_count"]) == ("idle", 2, 1)
        assert session["usage"] == {
            "input_tokens": 1, "cached_tokens": 0, "output_tokens": 1, "reasoning_tokens": 0,
            "total_tokens": 2,
        }  # fmt: skip


async def test_a_session_keeps_the_source_that_started_it() -> None:
    async with open_gateway() as gateway:
        body = {"model": "scripted", "input": "hi", "background": True}
        answer = await post(gateway, "/v1/responses", body, X_Session_Key="k")
        assert answer.status_code == 200
        assert (await session_of(gateway))["source"] == "background"
        first = (await session_of(gateway))["id"]
        fork = (await post(gateway, f"/v1/sessions/{first}/fork")).json()
        await post(gateway, f"/v1/sessions/{first}/reset")
        await gateway.respond("hi", key="k")
        assert (await session_of(gateway))["source"] == fork["source"] == "background"
        await gateway.respond("hi", key="other")
        assert (await session_of(gateway, "other"))["source"] == "user"
        made = (await post(gateway, "/v1/conversations", {})).json()["id"]
        path = f"/v1/sessions/{made.replace('conv_', 'ses_')}"
        assert (await get(gateway, path))["source"] == "user"


async def test_the_last_turn_is_the_last_that_ended_while_another_runs() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        before = (await session_of(gateway))["last_turn"]
        turn = await running(gateway, "two")
        session = await session_of(gateway)
        assert session["status"] == "running"
        assert session["active_turn_id"] not in (None, before["id"])
        assert session["last_turn"] == before
        gateway.model.gate.set()
        await turn
        assert (await session_of(gateway))["last_turn"]["id"] != before["id"]


async def test_sessions_are_listed_by_pages_in_both_orders() -> None:
    async with open_gateway() as gateway:
        for n in range(5):
            await gateway.respond("hi", key=f"k{n}")
        for order, expected in (("asc", "01234"), ("desc", "43210")):
            seen = ""
            query: dict[str, Any] = {"limit": 2, "order": order}
            while True:
                page = await get(gateway, "/v1/sessions", **query)
                seen += "".join(one["key"][1] for one in page["data"])
                if not page["has_more"]:
                    break
                query["after"] = page["last_id"]
            assert seen == expected


async def test_sessions_are_listed_by_status_and_key_and_generation() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("hi", key="a")
        await gateway.respond("hi", key="b")
        old = await session_of(gateway, "a")
        await post(gateway, f"/v1/sessions/{old['id']}/reset")
        turn = await running(gateway, "wait", key="b")

        async def listed(**query: Any) -> list[tuple[str, int]]:
            page = await get(gateway, "/v1/sessions", order="asc", **query)
            return [(one["key"], one["generation"]) for one in page["data"]]

        assert await listed() == [("b", 1), ("a", 2)]
        assert await listed(generations="true") == [("a", 1), ("b", 1), ("a", 2)]
        assert await listed(key="a") == [("a", 2)]
        assert await listed(key="a", generations="true") == [("a", 1), ("a", 2)]
        assert await listed(status="running") == [("b", 1)]
        assert await listed(status="idle") == [("a", 2)]
        assert await listed(status="retired") == [("a", 1)]
        assert await listed(key="nobody") == []
        gateway.model.gate.set()
        await turn


@pytest.mark.parametrize(
    "query",
    [
        "status=busy", "order=up", "limit=0", "after=ses_unknown", "after=%00", "key=", "key=%01",
        "generations=perhaps", "limit=1e3",
    ],
)  # fmt: skip
async def test_an_invalid_session_list_request_is_rejected(query: str) -> None:
    async with open_gateway() as gateway:
        answer = await gateway.client.get(f"/v1/sessions?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


async def test_the_log_shows_everything_and_what_hides_it() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        await gateway.respond("two")
        session = await session_of(gateway)
        items = (await get(gateway, f"/v1/sessions/{session['id']}/items"))["data"]
        name = "conv_" + session["id"].removeprefix("ses_")
        await gateway.client.delete(f"/v1/conversations/{name}/items/{items[1]['id']}")
        assert await texts(gateway, session["id"]) == ["one", "two", "re:two"]
        log = (await get(gateway, f"/v1/sessions/{session['id']}/items", view="log"))["data"]
        assert [text_of(one["item"]) for one in log] == ["one", "re:one", "two", "re:two"]
        assert [one["sequence"] for one in log] == [1, 2, 3, 4]
        kinds = [one["hidden_by"]["kind"] if one["hidden_by"] else None for one in log]
        assert kinds == [None, "hide", None, None]
        assert (await session_of(gateway))["item_count"] == 3


async def test_a_page_of_items_is_bounded_in_bytes() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("hi")
        session = (await session_of(gateway))["id"]
        path = f"/v1/sessions/{session}/items"
        for _ in range(4):
            part = {"type": "input_text", "text": "x" * 400_000}
            items = [{"type": "message", "role": "user", "content": [part]}]
            assert (await post(gateway, path, {"items": items})).status_code == 200
        page = await get(gateway, path, view="log", order="desc")
        assert ([entry["sequence"] for entry in page["data"]], page["has_more"]) == ([6, 5], True)
        rest = await get(gateway, path, view="log", order="desc", after=page["last_id"])
        assert [entry["sequence"] for entry in rest["data"]] == [4, 3, 2, 1]
        assert not rest["has_more"]
        shown = await get(gateway, path, order="desc")
        assert (len(shown["data"]), shown["has_more"]) == (2, True)


async def test_turns_are_listed_by_pages() -> None:
    async with open_gateway() as gateway:
        for n in range(3):
            await gateway.respond(str(n))
        path = f"/v1/sessions/{(await session_of(gateway))['id']}/turns"
        first = await get(gateway, path, limit=2)
        assert [one["number"] for one in first["data"]] == [1, 2]
        assert first["has_more"]
        rest = await get(gateway, path, limit=2, after=first["last_id"])
        assert [one["number"] for one in rest["data"]] == [3]
        assert not rest["has_more"]
        down = await get(gateway, path, order="desc", after=rest["last_id"])
        assert [one["number"] for one in down["data"]] == [2, 1]
        assert code_of(await gateway.client.get(f"{path}?after=turn_x")) == (400, "unknown_cursor")


# ── a session's life ────────────────────────────────────────────────────────────────────────


async def test_metadata_of_a_session_are_replaced_and_survive_a_reset() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("hi")
        path = f"/v1/sessions/{(await session_of(gateway))['id']}"
        changed = await post(gateway, path, {"metadata": {"a": "b"}})
        assert changed.json()["metadata"] == {"a": "b"}
        fresh = (await post(gateway, f"{path}/reset")).json()
        assert fresh["metadata"] == {"a": "b"}
        assert code_of(await post(gateway, path, {})) == (400, "invalid_input")
        assert code_of(await post(gateway, path, {"metadata": 1})) == (400, "invalid_metadata")


async def test_items_are_added_without_a_run() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("hi")
        session_id = (await session_of(gateway))["id"]
        body = {"items": [{"role": "user", "content": "noted"}]}
        answer = await post(gateway, f"/v1/sessions/{session_id}/items", body)
        assert [text_of(item) for item in answer.json()["data"]] == ["noted"]
        assert await texts(gateway, session_id) == ["hi", "re:hi", "noted"]
        assert len(gateway.model.calls) == 1


async def test_a_reset_starts_a_fresh_session_and_cancels_all_open_turns() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        old = await session_of(gateway)
        turn = await running(gateway, "two")
        queued = asyncio.create_task(gateway.respond("three"))
        await gateway.until_queued(1)
        answer = await post(
            gateway, f"/v1/sessions/{old['id']}/reset",
            {"expected_session_id": old["id"], "reason": "asked to"},
        )  # fmt: skip
        fresh = answer.json()
        assert fresh == await session_of(gateway)
        assert (fresh["generation"], fresh["previous_session_id"]) == (2, old["id"])
        empty = {
            "status": "idle", "active_turn_id": None, "queued_turns": 0, "last_turn": None,
            "last_user_activity_at": None, "item_count": 0, "turn_count": 0,
        }  # fmt: skip
        assert {name: fresh[name] for name in empty} == empty
        assert set(fresh["usage"].values()) == {0}
        for cancelled in (await turn, await queued):
            assert code_of(cancelled) == (409, "turn_cancelled")
            assert cancelled.headers["x-should-retry"] == "false"
        turns = (await get(gateway, f"/v1/sessions/{old['id']}/turns"))["data"]
        assert [one["status"] for one in turns] == ["completed", "cancelled", "cancelled"]
        assert [one["error"]["code"] for one in turns[1:]] == ["session_reset"] * 2
        assert (await get(gateway, f"/v1/sessions/{old['id']}"))["status"] == "retired"
        assert await texts(gateway, old["id"]) == ["one", "re:one", "two"]


async def test_a_reset_with_a_wrong_expected_session_changes_nothing_and_names_the_live_one() -> (
    None
):
    async with open_gateway() as gateway:
        await gateway.respond("one")
        first = await session_of(gateway)
        path = f"/v1/sessions/{first['id']}/reset"
        wrong = await post(gateway, path, {"expected_session_id": "ses_other"})
        assert code_of(wrong) == (409, "session_changed")
        assert first["id"] in wrong.json()["error"]["message"]
        assert await session_of(gateway) == first
        second = (await post(gateway, path)).json()
        again = await post(gateway, path)
        assert code_of(again) == (409, "session_changed")
        assert second["id"] in again.json()["error"]["message"]
        assert again.headers["x-session-id"] == second["id"]
        assert again.headers["x-should-retry"] == "false"
        assert (await session_of(gateway))["id"] == second["id"]


async def test_an_idempotency_key_resets_or_forks_once() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        old = (await session_of(gateway))["id"]
        for what, more in (("fork", {"after_item": 1}), ("reset", {"reason": "x"})):
            path = f"/v1/sessions/{old}/{what}"
            first = await post(gateway, path, {}, idempotency_key=what)
            again = await post(gateway, path, {}, idempotency_key=what)
            assert first.status_code == again.status_code == 200
            assert first.json() == again.json()
            other = await post(gateway, path, more, idempotency_key=what)
            assert code_of(other) == (422, "idempotency_key_reused")
        listed = (await get(gateway, "/v1/sessions", generations="true"))["data"]
        assert [one["generation"] for one in listed if one["key"]] == [2, 1]
        assert len(listed) == 3
        made = (await post(gateway, f"/v1/sessions/{old}/fork", {}, idempotency_key="fork")).json()
        await gateway.client.delete(f"/v1/sessions/{made['id']}")
        gone = await post(gateway, f"/v1/sessions/{old}/fork", {}, idempotency_key="fork")
        assert code_of(gone) == (404, "session_deleted")
        taken = await gateway.respond("hi", headers={"Idempotency-Key": "reset"})
        assert code_of(taken) == (422, "idempotency_key_reused")


async def test_a_keyless_session_cannot_be_reset_or_restored() -> None:
    async with open_gateway() as gateway:
        made = (await gateway.client.post("/v1/conversations", json={})).json()["id"]
        path = f"/v1/sessions/ses_{made.removeprefix('conv_')}"
        assert code_of(await post(gateway, f"{path}/reset")) == (400, "session_not_keyed")
        assert code_of(await post(gateway, f"{path}/restore")) == (400, "session_not_keyed")


async def test_a_retired_session_rejects_turns_and_names_the_live_one() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        old = (await session_of(gateway))["id"]
        live = (await post(gateway, f"/v1/sessions/{old}/reset")).json()["id"]
        body = {"items": [{"role": "user", "content": "late"}]}
        for answer in (
            await gateway.respond("late", key=None, headers={"X-Session-Id": old}),
            await post(gateway, f"/v1/sessions/{old}/items", body),
            await post(gateway, f"/v1/conversations/conv_{old.removeprefix('ses_')}/items", body),
        ):
            assert code_of(answer) == (409, "session_retired")
            assert live in answer.json()["error"]["message"]
            assert answer.headers["x-session-id"] == live
        assert await texts(gateway, old) == ["one", "re:one"]


async def test_an_old_generation_is_restored_with_its_history() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        old = (await session_of(gateway))["id"]
        middle = (await post(gateway, f"/v1/sessions/{old}/reset")).json()["id"]
        await gateway.respond("two")
        assert gateway.model.shown[-1] == ["two"]
        restored = (await post(gateway, f"/v1/sessions/{old}/restore")).json()
        assert (restored["id"], restored["status"], restored["generation"]) == (old, "idle", 1)
        await gateway.respond("three")
        assert gateway.model.shown[-1] == ["one", "re:one", "three"]
        assert (await get(gateway, f"/v1/sessions/{middle}"))["status"] == "retired"
        assert (await post(gateway, f"/v1/sessions/{old}/restore")).json()["id"] == old


async def test_a_fork_starts_after_an_item_a_sequence_number_or_the_head() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        await gateway.respond("two")
        session = await session_of(gateway)
        items = (await get(gateway, f"/v1/sessions/{session['id']}/items"))["data"]
        path = f"/v1/sessions/{session['id']}/fork"
        for body, expected in (
            ({"after_item": items[1]["id"]}, ["one", "re:one"]),
            ({"after_item": 3}, ["one", "re:one", "two"]),
            ({"after_item": 0}, []),
            ({}, ["one", "re:one", "two", "re:two"]),
            (None, ["one", "re:one", "two", "re:two"]),
        ):
            fork = (await post(gateway, path, body)).json()
            assert (fork["key"], fork["id"] != session["id"]) == (None, True)
            assert await texts(gateway, fork["id"]) == expected
            assert fork["item_count"] == len(expected)
        for body in ({"after_item": "msg_x"}, {"after_item": 5}, {"after_item": -1},
                     {"after_item": 2**70}):  # fmt: skip
            assert code_of(await post(gateway, path, body)) == (404, "item_not_found")
        bads: list[Any] = [{"after_item": True}, {"after_item": 1.5}, {"after_item": []}, [], "x"]
        for bad in bads:
            assert code_of(await post(gateway, path, bad)) == (400, "invalid_input")
        fork_id = fork["id"]
        await gateway.respond("three", key=None, headers={"X-Session-Id": fork_id})
        assert await texts(gateway, session["id"]) == ["one", "re:one", "two", "re:two"]


async def test_after_a_delete_the_key_continues_in_the_next_generation() -> None:
    async with open_gateway() as gateway:
        answered = (await gateway.respond("one")).json()["id"]
        session = await session_of(gateway)
        path = f"/v1/sessions/{session['id']}"
        gone = {"id": session["id"], "object": "session.deleted", "deleted": True}
        assert (await gateway.client.delete(path)).json() == gone
        for one in ("", "/items", "/turns"):
            assert code_of(await gateway.client.get(path + one)) == (404, "session_not_found")
        for one in ("", "/items", "/reset", "/restore", "/fork"):
            assert code_of(await post(gateway, path + one, {})) == (404, "session_not_found")
        assert code_of(await gateway.client.delete(path)) == (404, "session_not_found")
        assert (await gateway.client.get(f"/v1/responses/{answered}")).status_code == 404
        turn = session["last_turn"]["id"]
        assert code_of(await gateway.client.get(f"/v1/turns/{turn}")) == (404, "turn_not_found")
        assert (await get(gateway, "/v1/sessions", generations="true"))["data"] == []
        await gateway.respond("two")
        assert (await session_of(gateway))["generation"] == 2
        assert gateway.model.shown[-1] == ["two"]


async def test_a_session_with_forks_is_deleted_only_with_cascade() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        path = f"/v1/sessions/{(await session_of(gateway))['id']}"
        fork = (await post(gateway, f"{path}/fork")).json()["id"]
        assert code_of(await gateway.client.delete(path)) == (409, "session_has_forks")
        for value in ("maybe", ""):
            assert (await gateway.client.delete(f"{path}?cascade={value}")).status_code == 400
        assert (await gateway.client.delete(f"{path}?cascade=true")).status_code == 200
        assert (await gateway.client.get(f"/v1/sessions/{fork}")).status_code == 404


async def test_an_internal_turn_leaves_no_visible_session() -> None:
    async with open_gateway() as gateway:
        answer = await gateway.respond("plan", headers={"X-Session-Internal": "true"})
        hidden = answer.headers["x-session-id"]
        assert (await gateway.client.get(f"/v1/sessions/{hidden}")).status_code == 404
        assert (await get(gateway, "/v1/sessions", generations="true"))["data"] == []


# ── turns ───────────────────────────────────────────────────────────────────────────────────


async def test_a_turn_has_its_state_usage_and_response() -> None:
    async with open_gateway() as gateway:
        answer = await gateway.respond("hi")
        turn = await get(gateway, f"/v1/turns/{answer.headers['x-turn-id']}")
        assert (turn["object"], turn["status"], turn["number"]) == ("turn", "completed", 1)
        assert turn["session_id"] == answer.headers["x-session-id"]
        assert turn["response_id"] == answer.json()["id"]
        assert (turn["attempts"], turn["error"]) == (1, None)
        assert (turn["first_sequence"], turn["last_sequence"]) == (1, 2)
        assert turn["usage"]["total_tokens"] == 2
        (run,) = turn["runs"]
        assert (run["object"], run["status"], run["heals"]) == ("run", "completed", None)
        assert run["usage"] == turn["usage"]


async def test_the_usage_of_all_steps_is_summed_and_unknown_is_null() -> None:
    async with open_gateway() as gateway:
        gateway.model.script = lambda items: (
            [called("f", "c1")] if len(items) == 1 else [said("21")]
        )
        first = await gateway.respond("go")
        turn_id = first.headers["x-turn-id"]
        assert (await get(gateway, f"/v1/turns/{turn_id}"))["status"] == "requires_action"
        await gateway.respond([{"type": "function_call_output", "call_id": "c1", "output": "21"}])
        turn = await get(gateway, f"/v1/turns/{turn_id}")
        assert (turn["status"], turn["step"], len(turn["runs"])) == ("completed", 1, 2)
        assert turn["usage"]["input_tokens"] == 1 + 3
        stopped = await running(gateway, "more")
        active = (await session_of(gateway))["active_turn_id"]
        assert (await get(gateway, f"/v1/turns/{active}"))["usage"]["total_tokens"] is None
        await post(gateway, f"/v1/turns/{active}/cancel")
        assert (await get(gateway, f"/v1/turns/{active}"))["usage"]["total_tokens"] is None
        gateway.model.gate.set()
        await stopped


async def test_a_running_turn_is_cancelled_and_the_lane_is_free() -> None:
    async with open_gateway() as gateway:
        turn = await running(gateway, "one")
        active = (await session_of(gateway))["active_turn_id"]
        assert (await get(gateway, f"/v1/turns/{active}"))["status"] == "running"
        cancelled = (await post(gateway, f"/v1/turns/{active}/cancel")).json()
        assert (cancelled["id"], cancelled["status"]) == (active, "cancelled")
        assert cancelled["error"]["code"] == "turn_cancelled"
        assert code_of(await turn) == (409, "turn_cancelled")
        gateway.model.gate.set()
        assert (await gateway.respond("two")).status_code == 200
        again = (await post(gateway, f"/v1/turns/{active}/cancel", {})).json()
        assert again == cancelled


async def test_a_queued_turn_is_cancelled_and_never_runs() -> None:
    async with open_gateway() as gateway:
        first = await running(gateway, "one")
        second = asyncio.create_task(gateway.respond("two"))
        await gateway.until_queued(1)
        path = f"/v1/sessions/{(await session_of(gateway))['id']}/turns"
        waiting = (await get(gateway, path))["data"][1]
        assert (waiting["status"], waiting["started_at"]) == ("queued", None)
        cancelled = (await post(gateway, f"/v1/turns/{waiting['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        gateway.model.gate.set()
        assert (await first).status_code == 200
        assert code_of(await second) == (409, "turn_cancelled")
        assert gateway.model.shown == [["one"]]


async def test_cancelling_an_ended_turn_changes_nothing() -> None:
    async with open_gateway() as gateway:
        answer = await gateway.respond("hi")
        path = f"/v1/turns/{answer.headers['x-turn-id']}"
        before = await get(gateway, path)
        assert (await post(gateway, f"{path}/cancel")).json() == before
        assert code_of(await post(gateway, "/v1/turns/turn_x/cancel")) == (404, "turn_not_found")
        assert code_of(await gateway.client.get("/v1/turns/%00")) == (404, "turn_not_found")


async def test_sessions_are_searched_by_key_and_id() -> None:
    async with open_gateway() as gateway:
        for key in ("agent:main:ada", "agent:main:grace"):
            await gateway.respond("hi", key=key)
        ada = await session_of(gateway, "agent:main:ada")
        for text in ("agent:main:a", ada["id"], ada["id"].replace("ses_", "conv_")):
            page = await get(gateway, "/v1/sessions", search=text)
            assert [one["key"] for one in page["data"]] == ["agent:main:ada"], text
        page = await get(gateway, "/v1/sessions", search="agent:", limit=1)
        assert (len(page["data"]), page["has_more"]) == (1, True)
        for wrong in ({"search": " "}, {"search": "x" * 513}, {"search": "a", "key": "k"}):
            refused = await gateway.client.get("/v1/sessions", params=wrong)
            assert code_of(refused) == (400, "invalid_input")


async def test_a_list_has_the_first_and_the_last_words_on_request() -> None:
    async with open_gateway() as gateway:
        for text in ("What is\na session?", "And a turn?"):
            await gateway.respond(text, key="k")
        (listed,) = (await get(gateway, "/v1/sessions", preview=True))["data"]
        assert listed["preview"]["first"] == {"role": "user", "text": "What is a session?"}
        assert listed["preview"]["last"]["role"] == "assistant"
        (plain,) = (await get(gateway, "/v1/sessions"))["data"]
        assert "preview" not in plain


async def test_a_list_of_few_among_many_goes_on_where_the_request_before_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "SCANNED_PAGE", 1)
    monkeypatch.setattr(sessions, "SCANNED_PAGES", 2)
    async with open_gateway() as gateway:
        for key in ("a", "b", "c"):
            await gateway.respond("hi", key=key)
        second = await session_of(gateway, "b")
        page = await get(gateway, "/v1/sessions", wants="failed")
        assert (page["data"], page["has_more"], page["last_id"]) == ([], True, second["id"])
        rest = await get(gateway, "/v1/sessions", wants="failed", after=page["last_id"])
        assert (rest["data"], rest["has_more"], rest["last_id"]) == ([], False, None)


async def test_a_turn_is_found_by_the_id_of_its_response() -> None:
    async with open_gateway() as gateway:
        answer = (await gateway.respond("hi", key="k")).json()
        turn = await get(gateway, f"/v1/turns/{answer['id']}")
        assert turn["response_id"] == answer["id"]
        unknown = await gateway.client.get("/v1/turns/resp_unknown")
        assert code_of(unknown) == (404, "turn_not_found")
