"""Clients that send the whole history, beside clients that send only new items."""

import asyncio
from typing import Any

import pytest

from holdfast.engine.settings import LaneSettings
from holdfast.http.request import first_questions
from holdfast.testing.clock import ManualClock
from tests.in_process import (
    RunningGateway,
    ScriptedModel,
    called,
    open_gateway,
    said,
    text_of,
)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def test_whole_history_and_new_only_give_the_same_log_and_the_same_requests() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")], "whole")
        await gateway.chat([_user("one"), _assistant("re:one"), _user("two")], "whole")
        await gateway.chat([_user("one")], "new")
        await gateway.chat([_user("two")], "new")
        assert await gateway.log("whole") == await gateway.log("new")
        assert gateway.model.shown[1] == gateway.model.shown[3] == ["one", "re:one", "two"]


async def test_an_edit_is_a_record_and_nothing_is_lost() -> None:
    async with open_gateway() as gateway:
        first = await gateway.chat([_user("one")])
        await gateway.chat([_user("one"), _assistant("re:one"), _user("two")])
        edited = await gateway.chat([_user("one"), _assistant("re:one"), _user("TWO")])
        assert await gateway.log() == ["one", "re:one", "TWO", "re:TWO"]
        assert await gateway.log(view="log") == [
            "one", "re:one", "two", "re:two", "TWO", "re:TWO",
        ]  # fmt: skip
        assert edited.headers["x-session-id"] == first.headers["x-session-id"]


async def test_regenerate_answers_the_same_question_again() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")])
        gateway.model.script = lambda _: [said("another answer")]
        await gateway.chat([_user("one"), _assistant("re:one")])
        assert await gateway.log() == ["one", "another answer"]
        assert gateway.model.shown[-1] == ["one"]


async def test_a_second_equal_message_is_kept() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("yes")])
        await gateway.chat([_user("yes")])
        assert await gateway.log() == ["yes", "re:yes", "yes", "re:yes"]


async def test_a_client_with_whole_histories_regenerates_its_first_question() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")])
        await gateway.chat([_user("one"), _assistant("re:one"), _user("two")])
        for count in (1, 2):
            gateway.model.script = lambda _: [said(f"answer {len(gateway.model.shown)}")]
            await gateway.chat([_user("one")])
            assert gateway.model.shown[-1] == ["one"]
            assert await gateway.log() == ["one", f"answer {count + 2}"]
        history = [_user("one"), _assistant("answer 4"), _user("two")]
        gateway.model.script = lambda _: [said("re:two")]
        await gateway.chat(history)
        assert await gateway.log() == ["one", "answer 4", "two", "re:two"]


async def test_the_first_question_is_meant_although_a_later_one_is_equal() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("yes")])
        await gateway.chat([_user("yes"), _assistant("re:yes"), _user("yes")])
        await gateway.chat([_user("yes")])
        assert await gateway.log() == ["yes", "re:yes"]


async def test_several_messages_of_a_first_question_are_asked_again_together() -> None:
    async with open_gateway() as gateway:
        question = [_user("see"), _user("this")]
        await gateway.chat(question)
        await gateway.chat([*question, _assistant("re:this"), _user("two")])
        await gateway.chat(question[:1])
        assert len(await gateway.log()) == 7
        await gateway.chat([*question, _assistant("re:this"), _user("two")])
        await gateway.chat(question)
        assert await gateway.log() == ["see", "this", "re:this"]


@pytest.mark.parametrize("other", [{"user-agent": "another"}, {"authorization": "Bearer another"}])
async def test_the_first_question_of_another_client_is_new(other: dict[str, str]) -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")])
        await gateway.chat([_user("one"), _assistant("re:one"), _user("two")])
        await gateway.chat([_user("one")], headers=other)
        assert len(await gateway.log()) == 6


async def test_the_first_question_is_new_after_a_message_without_its_history() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")])
        await gateway.chat([_user("one"), _assistant("re:one"), _user("two")])
        await gateway.chat([_user("three")])
        await gateway.chat([_user("one")])
        assert len(await gateway.log()) == 8


async def test_an_edit_of_the_first_question_is_new_unless_the_history_is_whole() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")])
        await gateway.chat([_user("one"), _assistant("re:one"), _user("two")])
        await gateway.chat([_user("ONE")])
        assert len(await gateway.log()) == 6
        await gateway.chat([_user("first")], headers={"x-session-history": "whole"})
        assert await gateway.log() == ["first", "re:first"]


async def test_first_questions_are_remembered_for_a_bounded_number_of_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_questions, "MAX_SESSIONS", 1)
    async with open_gateway() as gateway:
        for key in ("old", "recent"):
            await gateway.chat([_user("one")], key)
            await gateway.chat([_user("one"), _assistant("re:one"), _user("two")], key)
        for key in ("old", "recent"):
            await gateway.chat([_user("one")], key)
        assert len(await gateway.log("old")) == 6
        assert await gateway.log("recent") == ["one", "re:one"]


async def test_tool_calls_and_outputs_are_recognised_and_complete_their_turn() -> None:
    def script(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        is_asked = items[-1].get("type") == "message"
        return [called("look", "call_abc")] if is_asked else [said("found it")]

    async with open_gateway(ScriptedModel(script)) as gateway:
        asked = await gateway.chat([_user("find it")])
        call = asked.json()["choices"][0]["message"]["tool_calls"][0]
        assert asked.json()["choices"][0]["finish_reason"] == "tool_calls"
        history: list[dict[str, Any]] = [
            _user("find it"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "here"},
        ]
        done = await gateway.chat(history)
        assert done.json()["choices"][0]["message"]["content"] == "found it"
        assert await gateway.log() == ["find it", "look()", "=here", "found it"]
        assert done.headers["x-turn-id"] == asked.headers["x-turn-id"]
        again = await gateway.chat([*history, _assistant("found it"), _user("thanks")])
        assert again.status_code == 200
        assert (await gateway.log())[4] == "thanks"


async def test_a_second_tab_never_hides_a_running_turn() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")])
        gateway.model.gate.clear()
        await gateway.model.entered.acquire()
        history = [_user("one"), _assistant("re:one")]
        running = asyncio.create_task(gateway.chat([*history, _user("two")]))
        await gateway.model.entered.acquire()
        queued = asyncio.create_task(gateway.chat([*history, _user("three")]))
        await gateway.until_queued(1)
        gateway.model.gate.set()
        assert (await running).status_code == (await queued).status_code == 200
        assert await gateway.log() == ["one", "re:one", "two", "re:two", "three", "re:three"]
        assert gateway.model.shown[-1] == ["one", "re:one", "two", "re:two", "three"]


async def test_a_request_is_matched_again_if_the_session_changed_meanwhile() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")])
        history = [_user("one"), _assistant("re:one")]
        both = [gateway.chat([*history, _user(text)]) for text in ("two", "three")]
        replies = await asyncio.gather(*both)
        assert {reply.status_code for reply in replies} == {200}
        log = await gateway.log(view="log")
        assert log.count("one") == 1
        assert {"two", "three"} <= set(log)


async def test_responses_input_is_matched_like_chat_messages() -> None:
    async with open_gateway() as gateway:
        first = (await gateway.respond("one")).json()
        items = [{"role": "user", "content": "one"}, *first["output"]]
        await gateway.respond([*items, {"role": "user", "content": "two"}], store=False)
        assert await gateway.log() == ["one", "re:one", "two", "re:two"]


async def test_outputs_with_the_clients_own_call_ids_are_matched() -> None:
    def script(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        is_asked = items[-1].get("type") == "message"
        return [called("look", "call_ours")] if is_asked else [said("found it")]

    # To its turn the output is somebody else's: the client's version of the turn replaces ours.
    async with open_gateway(ScriptedModel(script)) as gateway:
        await gateway.chat([_user("find it")])
        call = {"id": "theirs", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        await gateway.chat(
            [
                _user("find it"),
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "theirs", "content": "here"},
            ]
        )
        assert gateway.model.shown[-1] == ["find it", "look()", "=here"]
        assert await gateway.log() == ["find it", "look()", "=here", "found it"]


async def test_a_history_without_the_providers_search_items_is_matched() -> None:
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    async with open_gateway(ScriptedModel(lambda _: [searched, said("found")])) as gateway:
        await gateway.chat([_user("one")])
        await gateway.chat([_user("one"), _assistant("found"), _user("two")])
        assert (await gateway.log(view="log")).count("one") == 1
        assert len(await gateway.log(view="log")) == 6


async def test_a_second_tab_never_hides_a_turn_in_requires_action() -> None:
    def script(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        is_call = items[-1].get("type") == "message" and items[-1]["content"][0]["text"] == "call"
        return [called("look", "c1")] if is_call else [said(f"seen {len(items)}")]

    async with open_gateway(ScriptedModel(script)) as gateway:
        await gateway.chat([_user("t1")])
        known = [_user("t1"), _assistant("seen 1")]
        asked = await gateway.chat([*known, _user("call")])
        call = asked.json()["choices"][0]["message"]["tool_calls"][0]
        second = asyncio.create_task(gateway.chat([*known, _user("tab2")]))
        await gateway.until_queued(1)
        history = [
            *known, _user("call"), {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "here"},
        ]  # fmt: skip
        done = await gateway.chat(history)
        assert done.headers["x-turn-id"] == asked.headers["x-turn-id"]
        assert (await second).status_code == 200
        assert await gateway.log() == [
            "t1", "seen 1", "call", "look()", "=here", "seen 5", "tab2", "seen 7",
        ]  # fmt: skip


@pytest.mark.parametrize(
    "more", [[], ["call"], ["edited"]], ids=["regenerated", "repeated", "edited"]
)
async def test_no_history_hides_a_turn_in_requires_action(more: list[str]) -> None:
    clock = ManualClock()
    script = [[said("a1")], [called("look", "c1")], [said("a2")]]
    async with open_gateway(ScriptedModel(lambda _: script.pop(0)), clock=clock) as gateway:
        await gateway.chat([_user("t1")])
        await gateway.chat([_user("t1"), _assistant("a1"), _user("call")])
        history = [_user("t1"), _assistant("a1"), *(_user(text) for text in more)]
        late = asyncio.create_task(gateway.chat(history))
        await gateway.until_queued(1)
        clock.advance(LaneSettings().tool_wait_seconds)
        assert (await late).status_code == 200
        log = await gateway.log()
        at = log.index("call")
        assert log[at + 1] == "look()"
        assert log[-1] == "a2"


async def test_a_regenerate_beside_a_running_turn_follows_its_question() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")])
        await gateway.model.entered.acquire()
        gateway.model.gate.clear()
        running = asyncio.create_task(gateway.chat([_user("two")]))
        await gateway.model.entered.acquire()
        again = asyncio.create_task(gateway.chat([_user("one"), _assistant("re:one")]))
        await gateway.until_queued(1)
        gateway.model.gate.set()
        assert (await running).status_code == (await again).status_code == 200
        assert await gateway.log() == ["two", "re:two", "one", "re:one"]
        assert gateway.model.shown[-1] == ["two", "re:two", "one"]


async def test_other_line_ends_and_unicode_forms_are_no_edit() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("Cafe\u0301\r\nau lait")])
        history = [_user("Caf\u00e9\nau lait"), _assistant("re:Caf\u00e9\nau lait"), _user("two")]
        await gateway.chat(history)
        assert len(await gateway.log(view="log")) == 4


async def test_the_part_of_an_answer_that_the_client_kept_takes_the_answers_place() -> None:
    async with open_gateway() as gateway:
        gateway.model.script = lambda _: [said("one two three four")]
        await gateway.chat([_user("count")])
        await gateway.chat([_user("count"), _assistant("one two"), _user("go on")])
        assert gateway.model.shown[-1] == ["count", "one two", "go on"]
        part = gateway.model.calls[-1].items[1]
        assert b'"status":"incomplete"' in part
        # It is recognised from then on.
        history = [_user("count"), _assistant("one two"), _user("go on")]
        await gateway.chat([*history, _assistant("one two three four"), _user("more")])
        assert len(await gateway.log(view="log")) == 7


async def test_an_answer_that_the_client_changed_is_complete() -> None:
    async with open_gateway() as gateway:
        gateway.model.script = lambda _: [said("one two three four")]
        await gateway.chat([_user("count")])
        await gateway.chat([_user("count"), _assistant("uno dos"), _user("go on")])
        assert gateway.model.shown[-1] == ["count", "uno dos", "go on"]
        assert b"incomplete" not in gateway.model.calls[-1].items[1]


def _calling(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    is_first = len(items) == 1
    return [called("look", "call_1")] if is_first else [said(f"saw {len(items)}")]


def _call() -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def test_a_history_that_goes_on_without_an_output_ends_the_wait_for_it() -> None:
    async with open_gateway() as gateway:
        gateway.model.script = _calling
        first = await gateway.chat([_user("find it")])
        answer = await gateway.chat([_user("find it"), _call(), _user("never mind")])
        assert answer.status_code == 200
        assert gateway.model.shown[-1][:2] == ["find it", "look()"]
        assert gateway.model.shown[-1][-1] == "never mind"
        turn = (await gateway.client.get(f"/v1/turns/{first.headers['x-turn-id']}")).json()
        assert turn["status"] == "interrupted"
        assert turn["error"]["code"] == "tool_calls_abandoned"


async def test_a_history_that_has_text_in_place_of_the_calls_ends_the_wait_for_them() -> None:
    """Agents that write calls and outputs as text go on at once, with what they sent."""
    async with open_gateway() as gateway:
        gateway.model.script = lambda items: [called("look", f"call_{len(items)}")]
        history = [_user("find it")]
        first = await gateway.chat(history)
        for step in ("1", "2"):
            history += [_assistant(f"calling look {step}"), _user(f"it says {step}")]
            answer = await gateway.chat(history)
            assert answer.status_code == 200
            assert gateway.model.shown[-1] == [text_of(item) for item in history]
        log = await gateway.log()
        assert log == [*(text_of(item) for item in history), "look()"]
        turn = (await gateway.client.get(f"/v1/turns/{first.headers['x-turn-id']}")).json()
        assert (turn["status"], turn["error"]["code"]) == ("interrupted", "tool_calls_abandoned")


async def test_a_history_that_keeps_the_text_and_drops_the_calls_ends_the_wait_for_them() -> None:
    async with open_gateway() as gateway:
        gateway.model.script = lambda items: (
            [said("one moment"), called("look", "call_1")] if len(items) == 1 else [said("fine")]
        )
        await gateway.chat([_user("find it")])
        await gateway.chat([_user("find it"), _assistant("one moment"), _user("never mind")])
        assert await gateway.log() == ["find it", "one moment", "never mind", "fine"]


class _ToolWait:
    """A conversation whose second question waits for a tool of the client."""

    def __init__(self, gateway: RunningGateway, on_busy: str) -> None:
        self.gateway = gateway
        self.headers = {"X-On-Busy": on_busy}
        self.history = [_user("hello"), {"role": "assistant", "content": "hi"}]
        self.turn = ""

    async def begin(self) -> None:
        self.gateway.model.script = lambda items: [
            said("hi") if len(items) == 1
            else called("look", "call_1") if text_of(items[-1]) == "find it"
            else said(f"saw {len(items)}")
        ]  # fmt: skip
        await self.gateway.chat([_user("hello")])
        first = await self.gateway.chat([*self.history, _user("find it")])
        self.turn = first.headers["x-turn-id"]

    async def go_on(self, *items: dict[str, Any]) -> str:
        """Send the history with these items; return the id of the turn that answers."""
        answer = await self.gateway.chat([*self.history, *items], headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-turn-id"]

    async def end(self) -> tuple[str, str | None]:
        turn = (await self.gateway.client.get(f"/v1/turns/{self.turn}")).json()
        return turn["status"], (turn["error"] or {}).get("code")


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_a_history_that_cuts_in_hides_what_it_does_not_repeat_of_a_tool_wait(
    on_busy: str,
) -> None:
    async with open_gateway() as gateway:
        talk = _ToolWait(gateway, on_busy)
        await talk.begin()
        await talk.go_on(_user("sing"))
        assert await gateway.log() == ["hello", "hi", "sing", "saw 3"]
        assert gateway.model.shown[-1] == ["hello", "hi", "sing"]
        assert await talk.end() == ("cancelled", "superseded")


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
@pytest.mark.parametrize("has_waiter", [False, True])
async def test_a_history_that_cuts_in_keeps_what_it_repeats_of_a_tool_wait(
    on_busy: str, *, has_waiter: bool
) -> None:
    async with open_gateway() as gateway:
        talk = _ToolWait(gateway, on_busy)
        await talk.begin()
        waiting = asyncio.create_task(gateway.chat([_user("me too")])) if has_waiter else None
        await gateway.until_queued(int(has_waiter))
        await talk.go_on(_user("find it"), _call(), _user("never mind"))
        if waiting is not None:
            await waiting
        log = await gateway.log()
        assert log[:6] == ["hello", "hi", "find it", "look()", "never mind", "saw 6"]
        assert log[6:] == ["me too", "saw 8"][: 2 * has_waiter]
        assert await talk.end() == ("cancelled", "superseded")


async def test_a_history_that_cuts_in_with_nothing_new_asks_the_question_again() -> None:
    async with open_gateway() as gateway:
        talk = _ToolWait(gateway, "interrupt")
        await talk.begin()
        gateway.model.script = lambda items: [said(f"saw {len(items)}")]
        await talk.go_on(_user("find it"))
        assert await gateway.log() == ["hello", "hi", "find it", "saw 3"]


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_an_output_in_a_history_that_cuts_in_continues_its_turn(on_busy: str) -> None:
    async with open_gateway() as gateway:
        talk = _ToolWait(gateway, on_busy)
        await talk.begin()
        output = {"role": "tool", "tool_call_id": "call_1", "content": "here"}
        assert await talk.go_on(_user("find it"), _call(), output) == talk.turn
        assert await gateway.log() == ["hello", "hi", "find it", "look()", "=here", "saw 5"]


async def test_a_history_alone_supersedes_no_tool_wait() -> None:
    clock = ManualClock()
    async with open_gateway(clock=clock) as gateway:
        talk = _ToolWait(gateway, "enqueue")
        await talk.begin()
        singing = asyncio.create_task(talk.go_on(_user("sing")))
        await gateway.until_queued(1)
        clock.advance(LaneSettings().tool_wait_seconds)
        await singing
        assert await talk.end() == ("interrupted", "tool_wait_expired")
        assert (await gateway.log())[:5] == ["hello", "hi", "find it", "look()", "sing"]


async def test_new_items_alone_wait_for_the_output() -> None:
    async with open_gateway() as gateway:
        gateway.model.script = _calling
        await gateway.chat([_user("find it")])
        waiting = asyncio.create_task(gateway.chat([_user("and then?")]))
        await gateway.until_queued(1)
        output = {"role": "tool", "tool_call_id": "call_1", "content": "here"}
        await gateway.chat([_user("find it"), _call(), output])
        assert (await waiting).status_code == 200
        assert gateway.model.shown[1:] == [
            ["find it", "look()", "=here"],
            ["find it", "look()", "=here", "saw 3", "and then?"],
        ]


async def test_an_edit_of_the_first_message_is_a_rewind_if_the_history_is_whole() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")])
        whole = {"X-Session-History": "whole"}
        await gateway.chat([_user("ONE")], headers=whole)
        assert await gateway.log() == ["ONE", "re:ONE"]
        # The same message again asks for another answer.
        await gateway.chat([_user("ONE")], headers=whole)
        assert await gateway.log() == ["ONE", "re:ONE"]
        assert len(await gateway.log(view="log")) == 5


async def test_every_item_is_stored_if_the_client_says_that_all_are_new() -> None:
    async with open_gateway() as gateway:
        await gateway.chat([_user("one")])
        history = [_user("one"), _assistant("re:one"), _user("two")]
        await gateway.chat(history, headers={"X-Session-History": "new"})
        assert await gateway.log() == ["one", "re:one", "one", "re:one", "two", "re:two"]


async def test_an_unknown_kind_of_history_is_refused() -> None:
    async with open_gateway() as gateway:
        answer = await gateway.chat([_user("one")], headers={"X-Session-History": "some"})
        assert answer.status_code == 400
        assert "X-Session-History" in answer.json()["error"]["message"]
