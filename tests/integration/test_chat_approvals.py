"""Tool calls are approved in the chat, by the person who asked or by an approver."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.channels.approvals import FORBIDDEN, NOT_WAITING, NOT_YET, NOT_YET_IN_WORDS
from holdfast.core.ids import Key, Tenant
from holdfast.core.tools.approval_words import ApprovalAnswer
from holdfast.core.transaction.outgoing import UNANSWERED, WITHDRAWN
from holdfast.engine.settings import ToolSettings
from holdfast.engine.turns import approvals as engine_approvals
from holdfast.engine.turns.approvals import ApprovalService, Approver
from holdfast.simulator.platforms.signal import user_uuid
from tests.in_process import Item, ScriptedModel, called, said
from tests.integration.chat_room import ChatRoom, open_chat_room
from tests.tools.toolboxes import Gate, RecordingTools

KEYS = {"slack": "agent:main:slack:direct:U7", "telegram": "agent:main:telegram:direct:7"}


def _model(calls: int = 1, text: str = "") -> ScriptedModel:
    def script(items: list[Item]) -> list[Item]:
        last = items[-1]
        if last.get("type") == "message" and "go" in str(last["content"]):
            begin = [said(text)] if text else []
            return [*begin, *(called("desk__echo", f"c{n}", '{"n":1}') for n in range(calls))]
        return [said("done")]

    return ScriptedModel(script)


@asynccontextmanager
async def _room(
    kind: str, model: ScriptedModel, **more: Any
) -> AsyncIterator[tuple[ChatRoom, RecordingTools]]:
    tools = RecordingTools()
    tools.approved = {"echo"}
    async with open_chat_room(
        kind, model, toolbox=lambda _: tools, tools=("mcp:desk",), **more
    ) as room:
        yield room, tools


def _say(room: ChatRoom, kind: str, text: str, **more: Any) -> None:
    (room.slack if kind == "slack" else room.telegram).say(text, **more)


def _press(room: ChatRoom, kind: str, label: str, user: int = 7) -> None:
    if kind == "slack":
        request = next(one for one in room.slack.posted if one.blocks)
        room.slack.press(request, label, user=f"U{user}")
    else:
        asked = next(one for one in room.telegram.sent if one.buttons)
        room.telegram.press(asked, label, user=user)


@pytest.mark.parametrize("kind", ["slack", "telegram"])
async def test_a_button_allows_the_call_once(kind: str) -> None:
    async with _room(kind, _model(text="Let me look.")) as (room, tools):
        _say(room, kind, "go")
        await room.until_text("Approval needed")
        assert tools.calls == []
        _press(room, kind, "Allow")
        await room.until_text("done")
        await room.until_text("Allowed by User7.")
        simulator = room.slack if kind == "slack" else room.telegram
        simulator.deliver_again()
        _say(room, kind, "thanks")
        await room.until(lambda: len(room.texts()) == 4)
    assert tools.calls == [("echo", {"n": 1})]
    first, request, answer, _ = room.texts()
    assert (first, answer) == ("Let me look.", "done")
    assert '{"n":1}' in request
    assert not any(one.blocks for one in room.slack.posted)
    assert not any(one.buttons for one in room.telegram.sent)


@pytest.mark.parametrize("kind", ["slack", "telegram"])
async def test_a_button_denies_the_call_and_the_model_learns_it(kind: str) -> None:
    model = _model()
    async with _room(kind, model) as (room, tools):
        _say(room, kind, "go")
        await room.until_text("Approval needed")
        _press(room, kind, "Deny")
        await room.until_text("done")
    assert tools.calls == []
    assert "not approved" in model.shown[-1][-1]


async def test_a_button_works_again_after_another_call_has_ended() -> None:
    gate = Gate()
    async with _room("telegram", _model(calls=2)) as (room, tools):
        tools.bodies["echo"] = gate
        room.telegram.say("go")
        await room.until(lambda: sum("Approval needed" in one for one in room.texts()) == 2)
        first, second = (one for one in room.telegram.sent if one.buttons)
        room.telegram.press(first, "Allow")
        await room.until(gate.entered.is_set)
        room.telegram.press(second, "Allow")
        await room.until(lambda: room.telegram.notices == ["Allowed.", NOT_YET])
        assert len(tools.calls) == 1
        assert second.buttons
        gate.opened.set()
        await room.until(lambda: sum("Approval needed" in one for one in room.texts()) == 3)
        room.telegram.press(second, "Allow")
        await room.until_text("done")
    assert len(tools.calls) == 2


async def test_words_while_another_call_runs_are_asked_for_again_and_not_for_the_model() -> None:
    gate, model = Gate(), _model(calls=2)
    async with _room("telegram", model) as (room, tools):
        tools.bodies["echo"] = gate
        room.telegram.say("go")
        await room.until(lambda: sum("Approval needed" in one for one in room.texts()) == 2)
        first, second = re.findall(r"yes (\w{4})", " ".join(room.texts()))
        room.telegram.say(f"yes {first}")
        await room.until(gate.entered.is_set)
        room.telegram.say(f"`yes {second}`")
        await room.until_text(NOT_YET_IN_WORDS)
        gate.opened.set()
        await room.until(lambda: sum("Approval needed" in one for one in room.texts()) == 3)
        handled = room.telegram.confirmed[-1]
        room.telegram.deliver_again()
        await room.until(lambda: room.telegram.confirmed[-1] > handled)
        assert len(tools.calls) == 1, "the repeated message is the one that came too early"
        room.telegram.say(f"yes {second}")
        await room.until_text("done")
    assert len(tools.calls) == 2
    assert sum(NOT_YET_IN_WORDS in text for text in room.texts()) == 1
    assert not any(second in text for text in model.shown[-1])


async def test_only_the_sender_and_approvers_can_answer_in_a_channel() -> None:
    model = _model()
    more = {"allow_groups": ("C1",), "approvers": ("U9",)}
    async with _room("slack", model, **more) as (room, tools):
        thread = room.slack.say("<@UBOT> go", channel="C1")
        await room.until_text("Approval needed")
        code = re.findall(r"yes (\w{4})", room.texts()[0])[0]
        _press(room, "slack", "Allow", user=8)
        room.slack.say(f"yes {code}", user="U8", channel="C1", thread=thread)
        await room.until(lambda: room.slack.unacknowledged == 0)
        assert tools.calls == []
        assert [one.blocks != [] for one in room.slack.posted] == [True]
        _press(room, "slack", "Allow", user=9)
        await room.until_text("done")
        await room.until_text("Allowed by User9.")
    assert tools.calls == [("echo", {"n": 1})]
    assert model.shown[1][-1] == f"[User8] yes {code}", "words of others are only words"


async def test_words_with_the_code_allow_the_call_however_often_they_arrive() -> None:
    model = _model()
    async with _room("telegram", model) as (room, tools):
        room.telegram.say("go")
        await room.until_text("Approval needed")
        code = re.findall(r"yes (\w{4})", room.texts()[0])[0]
        room.telegram.say(f"Yes {code.lower()}!")
        await room.until_text("done")
        room.telegram.deliver_again()
        room.telegram.say("thanks")
        await room.until(lambda: len(room.texts()) == 3)
    assert tools.calls == [("echo", {"n": 1})]
    assert model.shown[-1][-1] == "thanks"
    assert not any(code in text.upper() for text in model.shown[-1])


@pytest.mark.parametrize("calls", [1, 2])
async def test_another_message_of_the_sender_means_no_and_is_answered(calls: int) -> None:
    model = _model(calls)
    async with _room("slack", model) as (room, tools):
        room.slack.say("go")
        await room.until(lambda: sum("Approval needed" in one for one in room.texts()) == calls)
        room.slack.deliver_again()
        room.slack.say("never mind, what time is it?")
        await room.until_text("done")
        await room.until(lambda: room.slack.unacknowledged == 0)
    assert tools.calls == []
    assert model.shown[1][-1] == "never mind, what time is it?"
    assert sum("not approved" in text for text in model.shown[1]) == calls
    assert room.texts()[-1] == "done"
    assert len(room.texts()) == calls + 1, "one answer, and no apology"


async def test_an_approver_may_answer_in_words_from_another_chat() -> None:
    async with _room("telegram", _model(), approvers=("9",)) as (room, tools):
        room.telegram.say("go")
        await room.until_text("Approval needed")
        found = re.search(r"yes ([0-9A-Z]{4})", room.texts()[0])
        assert found is not None
        room.telegram.say(f"yes {found[1]}", user=8)
        await room.until(lambda: "done" in room.telegram.texts(8))
        assert tools.calls == [], "others may not"
        room.telegram.say(f"yes {found[1]}", user=9)
        await room.until(lambda: "done" in room.telegram.texts(7))
    assert tools.calls == [("echo", {"n": 1})]


async def test_words_of_an_approver_elsewhere_are_asked_for_again_while_another_call_runs(
    any_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Approvals of other sessions may fill every page that lists those of the tenant.
    monkeypatch.setattr(engine_approvals, "MAX_SESSIONS", 0)
    gate, model = Gate(), _model(calls=2)
    more = {"approvers": ("9",), "store_url": any_store_url}
    async with _room("telegram", model, **more) as (room, tools):
        tools.bodies["echo"] = gate
        room.telegram.say("go")
        await room.until(lambda: sum("Approval needed" in t for t in room.telegram.texts(9)) == 2)
        first, second = re.findall(r"yes (\w{4})", " ".join(room.telegram.texts(9)))
        room.telegram.say(f"yes {first}", user=9)
        await room.until(gate.entered.is_set)
        room.telegram.say(f"yes {second}", user=8)
        await room.until(lambda: "done" in room.telegram.texts(8))
        room.telegram.say(f"yes {second}", user=9)
        await room.until(lambda: NOT_YET_IN_WORDS in room.telegram.texts(9))
        gate.opened.set()
        # The request that is left is shown again.
        await room.until(lambda: sum("Approval needed" in t for t in room.telegram.texts(9)) == 3)
        room.telegram.say(f"yes {second}", user=9)
        await room.until(lambda: "done" in room.telegram.texts(7))
    assert len(tools.calls) == 2
    assert "done" not in room.telegram.texts(9), "the words of the approver are not for the model"
    assert not any(NOT_YET_IN_WORDS in text for text in room.telegram.texts(8))


async def test_a_later_press_leaves_what_the_request_says_and_removes_its_buttons() -> None:
    async with _room("telegram", _model()) as (room, _):
        room.telegram.say("go")
        await room.until_text("Approval needed")
        request = next(one for one in room.telegram.sent if one.buttons)
        buttons = dict(request.buttons)
        _press(room, "telegram", "Allow")
        await room.until_text("Allowed by User7.")
        request.buttons = buttons
        room.telegram.press(request, "Deny")
        await room.until(lambda: not request.buttons)
        assert room.telegram.notices == ["Allowed.", NOT_WAITING]
        assert request.text.endswith("Allowed by User7.")


async def test_slack_tells_a_person_alone_why_a_press_did_nothing() -> None:
    more = {"allow_groups": ("C1",)}
    async with _room("slack", _model(), **more) as (room, _):
        room.slack.say("<@UBOT> go", channel="C1")
        await room.until_text("Approval needed")
        request = room.slack.posted[0]
        blocks = list(request.blocks)
        room.slack.press(request, "Allow", user="U8")
        await room.until(lambda: room.slack.notices == [("U8", FORBIDDEN)])
        _press(room, "slack", "Allow")
        await room.until_text("Allowed by User7.")
        assert not request.blocks
        request.blocks = blocks
        room.slack.press(request, "Deny", user="U8")
        await room.until(lambda: not request.blocks)
        assert room.slack.notices[1:] == [("U8", NOT_WAITING)]
        assert request.text.endswith("Allowed by User7.")


async def test_approvers_get_requests_of_other_peoples_direct_chats() -> None:
    async with _room("telegram", _model(), approvers=("9", "8")) as (room, tools):
        room.telegram.blocked.add(8)
        room.telegram.say("go")
        await room.until(lambda: any("Approval needed" in one for one in room.telegram.texts(9)))
        assert "direct chat of 7" in room.telegram.texts(9)[0]
        request = next(one for one in room.telegram.sent if one.chat_id == 9)
        room.telegram.press(request, "Allow", user=9)
        await room.until(lambda: "done" in room.telegram.texts(7))
    assert tools.calls == [("echo", {"n": 1})]
    assert room.telegram.texts(9) == [request.text], "the answer goes to who asked"


async def test_an_approver_who_is_not_paired_may_answer_and_nothing_else() -> None:
    more = {"direct": "allow", "allow": ("7",), "approvers": ("9",)}
    async with _room("telegram", _model(), **more) as (room, tools):
        room.telegram.say("go", user=9)
        room.telegram.say("go")
        await room.until(lambda: any("Approval needed" in one for one in room.telegram.texts(9)))
        code = re.findall(r"yes (\w{4})", room.telegram.texts(9)[0])[0]
        room.telegram.say(f"yes {code}", user=9)
        await room.until(lambda: "done" in room.telegram.texts(7))
        room.telegram.say("go")
        await room.until(lambda: len(room.telegram.texts(9)) == 2)
        again = [one for one in room.telegram.sent if one.chat_id == 9][1]
        room.telegram.press(again, "Allow", user=9)
        await room.until(lambda: room.telegram.texts(7).count("done") == 2)
    assert len(tools.calls) == 2


async def test_an_approver_on_signal_may_be_named_by_number() -> None:
    more = {"direct": "allow", "allow": ("+490000007",), "approvers": ("+490000009",)}
    async with _room("signal", _model(), **more) as (room, tools):
        room.signal.say("go")
        await room.until(
            lambda: any("Approval needed" in t for t in room.signal.texts("+490000009"))
        )
        code = re.findall(r"yes (\w{4})", room.texts()[0])[0]
        room.signal.say(f"yes {code}", user=8)
        room.signal.say(f"yes {code}", user=9)
        await room.until(lambda: "done" in room.signal.texts(user_uuid(7)))
    assert tools.calls == [("echo", {"n": 1})]


async def test_a_group_that_is_asked_needs_no_further_message_to_approvers() -> None:
    more = {"allow_groups": ("-5",), "groups": "always", "approvers": ("9",)}
    async with _room("telegram", _model(), **more) as (room, _):
        room.telegram.say("go", chat=-5)
        await room.until_text("Approval needed")
        _press(room, "telegram", "Allow", user=9)
        await room.until(lambda: "done" in room.telegram.texts(-5))
    assert room.telegram.texts(9) == []


async def test_a_request_that_was_answered_elsewhere_loses_its_buttons_in_every_chat() -> None:
    async with _room("telegram", _model(), approvers=("9", "8")) as (room, _):
        room.telegram.say("go")
        await room.until(lambda: sum("Approval needed" in one for one in room.texts()) == 3)
        request = next(one for one in room.telegram.sent if one.chat_id == 8)
        room.telegram.press(request, "Deny", user=8)
        await room.until(lambda: sum("Denied by User8." in one for one in room.texts()) == 3)
        assert not any(one.buttons for one in room.telegram.sent)


async def test_a_request_that_was_answered_over_http_loses_its_buttons() -> None:
    async with _room("slack", _model(), approvers=("admin",)) as (room, _):
        room.slack.say("go")
        await room.until_text("Approval needed")
        session = await room.gateway.engine.read.session(Tenant("default"), key=Key(KEYS["slack"]))
        assert session is not None
        approvals = ApprovalService(room.gateway.engine, room.gateway.turn_service, ("admin",))
        (waiting,) = await approvals.of_session(Tenant("default"), session.session.id)
        operator = Approver(sender="", is_admin=True)
        await approvals.answer(Tenant("default"), ApprovalAnswer(waiting.id, True), operator)
        await room.until(lambda: room.slack.posted[0].text.endswith("Allowed."))
        assert not room.slack.posted[0].blocks


@pytest.mark.parametrize("kind", ["slack", "telegram"])
async def test_a_request_whose_turn_is_stopped_loses_its_buttons(kind: str) -> None:
    async with _room(kind, _model()) as (room, _):
        _say(room, kind, "go")
        await room.until_text("Approval needed")
        _say(room, kind, "!stop" if kind == "slack" else "/stop")
        await room.until_text(WITHDRAWN)
        assert not any(one.blocks for one in room.slack.posted)
        assert not any(one.buttons for one in room.telegram.sent)


async def test_a_request_that_nobody_answers_in_time_loses_its_buttons() -> None:
    limits = ToolSettings(approval_seconds=1.0)
    async with _room("telegram", _model(), tool_limits=limits) as (room, tools):
        room.telegram.say("go")
        await room.until_text(UNANSWERED)
        assert not any(one.buttons for one in room.telegram.sent)
    assert tools.calls == []


async def test_a_request_that_was_deleted_in_the_chat_is_not_sent_again() -> None:
    async with _room("telegram", _model()) as (room, _):
        room.telegram.say("go")
        await room.until_text("Approval needed")
        code = re.findall(r"yes (\w{4})", room.texts()[0])[0]
        room.telegram.sent.clear()
        room.telegram.say(f"no {code}")
        await room.until_text("done")
        assert room.texts() == ["done"]
