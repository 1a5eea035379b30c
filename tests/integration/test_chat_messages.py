"""Edits, replies and compaction in a chat."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.channels import live_reply
from holdfast.core.decisions.import_session import session_id_for
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.model.import_rows import ImportedTurn
from holdfast.core.model.items import message
from holdfast.core.model.schedule import DeliverTo
from holdfast.core.transaction.commands import Import, RememberChat
from holdfast.ports.channel import OperatorMessage
from holdfast.testing.channel_contract import PNG
from tests.in_process import ScriptedModel, said
from tests.integration.chat_room import ChatRoom, open_chat_room
from tests.streaming import TalkingModel

KEY = "agent:main:telegram:direct:7"


@asynccontextmanager
async def _busy_room(model: ScriptedModel) -> AsyncIterator[ChatRoom]:
    """A chat in which the first message is being answered."""
    async with open_chat_room("telegram", model) as room:
        model.gate.clear()
        room.telegram.say("first")
        await model.entered.acquire()
        yield room


async def test_an_edit_before_the_run_replaces_the_message_and_later_ones_run_nothing() -> None:
    model = ScriptedModel()
    async with _busy_room(model) as room:
        first = room.telegram.say("secnd")
        await room.gateway.until_queued(1, KEY)
        room.telegram.edit(first, "second")
        await room.until(lambda: len(room.telegram.confirmed) >= 3)
        model.gate.set()
        await room.until_text("re:second")
        room.telegram.edit(first, "third")
        room.telegram.say("fourth")
        await room.until_text("re:fourth")
    assert [shown[-1] for shown in model.shown] == ["first", "second", "fourth"]
    assert not any("secnd" in text or "third" in text for text in model.shown[-1])


async def test_a_reply_carries_its_quote_only_where_the_model_does_not_see_it() -> None:
    model = ScriptedModel()
    async with open_chat_room("telegram", model) as room:
        asked = room.telegram.say("shall I book?")
        await room.until_text("re:shall I book?")
        (sent,) = room.telegram.sent
        await _until_sent(room)
        for message_id, text in ((sent.message_id, sent.text), (asked, "shall I book?")):
            replied = _message(message_id, text)
            room.telegram.say("yes", reply_to_message=replied)
            await model.entered.acquire()
        await room.until(lambda: len(room.texts()) == 3)
        assert [shown[-1] for shown in model.shown[1:]] == ["yes", "yes"]
        room.telegram.say("/new")
        await room.until_text("A new conversation")
        room.telegram.say("yes", reply_to_message=_message(sent.message_id, sent.text))
        await room.until(lambda: len(room.texts()) == 5)
    assert "not the sender's own words]\nre:shall I book?" in model.shown[-1][-1]
    assert model.shown[-1][-1].endswith("yes")


def _message(message_id: int, text: str) -> dict[str, object]:
    chat, bot = {"id": 7, "type": "private"}, {"id": 42, "is_bot": True}
    return {"message_id": message_id, "date": 1, "chat": chat, "from": bot, "text": text}


async def _until_sent(room: ChatRoom) -> None:
    counts = room.gateway.engine.store.channels.counts
    async with asyncio.timeout(60):
        while await counts():
            pass


async def test_a_conversation_is_compacted_on_command_once() -> None:
    model = ScriptedModel()
    async with open_chat_room("telegram", model) as room:
        room.telegram.say("/compact")
        await room.until_text("There is no conversation yet.")
        room.telegram.say("long " * 2000)
        await room.until(lambda: len(room.texts()) >= 2)
        room.telegram.say("/compact")
        await room.until_text("replaced by a summary")
        room.telegram.deliver_again()
        room.telegram.say("what now?")
        await room.until_text("re:what now?")
        summaries = sum("replaced by a summary" in text for text in room.texts())
    assert summaries == 1
    assert sum(len(text) for text in model.shown[-1]) < 15_000, "of more than 20,000"


async def test_a_reply_below_a_message_of_an_operator_carries_that_message() -> None:
    model = ScriptedModel()
    async with open_chat_room("slack", model, allow_groups=("C1",)) as room:
        question = OperatorMessage(chat="C1", text="Shall I order **lunch**?")
        await room.service.send("slack", question)
        await room.until_text("Shall I order lunch?")
        thread = room.slack.posted[0].ts
        room.slack.say("yes", channel="C1", thread=thread)
        await room.until(lambda: len(room.texts()) == 2)
        room.slack.say("for two", channel="C1", thread=thread)
        await room.until(lambda: len(room.texts()) == 3)
    assert model.shown[0][0].startswith("[Quoted text, not the sender's own words]\nShall I order")
    assert model.shown[0][0].endswith("[User7] yes")
    assert model.shown[1][-1] == "[User7] for two"
    assert [one.thread for one in room.slack.posted] == [None, thread, thread]


async def test_the_pictures_of_an_album_share_the_mention_of_one_of_them() -> None:
    model = ScriptedModel()
    async with open_chat_room(
        "telegram", model, allow_groups=("-80",), collect_seconds=0.3
    ) as room:  # fmt: skip
        room.telegram.files.update(dict.fromkeys("abc", PNG))
        entities = [{"type": "mention", "offset": 0, "length": 8}]
        first: dict[str, Any] = {"caption": "@testbot look", "caption_entities": entities}
        for name in "abc":
            photo = [{"file_id": name, "file_size": len(PNG)}]
            more = first if name == "a" else {}
            room.telegram.say("", chat=-80, media_group_id="G1", photo=photo, **more)
        await room.until(lambda: len(room.texts()) == 1)
        room.telegram.say("unrelated", chat=-80, media_group_id="G2", photo=[])
        await room.until(lambda: len(room.telegram.confirmed) >= 4)
    assert sum("[The file image:]" in text for text in model.shown[0]) == 3
    assert len(model.shown) == 1


async def test_a_group_that_moved_while_another_replica_received_keeps_its_session() -> None:
    async with open_chat_room("telegram", ScriptedModel(), allow_groups=("-5",)) as room:
        room.telegram.say("hello")
        await room.until_text("re:hello")
        moved = RememberChat(channel="telegram", chat="-5", successor="-1005")
        await room.gateway.engine.submit(moved)
        room.telegram.fail_next("getUpdates", 1, code=409, description="Conflict: another poller")
        room.telegram.say("wake up")
        await room.until_text("re:wake up")
        mention = [{"type": "mention", "offset": 0, "length": 8}]
        room.telegram.say("@testbot again", chat=-1005, entities=mention)
        await room.until_text("re:[User7] again")
        key = Key("agent:main:telegram:group:-5")
        assert await room.gateway.engine.read.session(DEFAULT_TENANT, key=key) is not None


async def test_a_direct_chat_is_found_by_its_other_id_once_the_person_wrote() -> None:
    async with open_chat_room("slack", ScriptedModel()) as room:
        target = DeliverTo(channel="slack", to="D7")
        _, key, to = await room.service.find_chat(target)
        assert (key, to.to) == ("agent:main:slack:direct:D7", "D7")
        room.slack.say("hello")
        await room.until_text("re:hello")
        _, key, to = await room.service.find_chat(target)
        assert (key, to.to) == ("agent:main:slack:direct:U7", "U7")


async def test_a_chat_goes_on_with_a_session_that_was_imported_in_lower_case() -> None:
    """OpenClaw writes keys in lower case, whatever the case of the platform's ids."""
    model = ScriptedModel()
    async with open_chat_room("slack", model) as room:
        said_before = ImportedTurn(items=(message("user", "I am Ada"),))
        imported = Import(
            tenant=DEFAULT_TENANT, session_id=session_id_for(DEFAULT_TENANT, "claw", 1.0),
            key=Key("agent:main:slack:direct:u7"), turns=(said_before,),
        )  # fmt: skip
        await room.gateway.engine.submit(imported)
        await room.gateway.respond("not imported", "agent:main:slack:direct:u8")
        for user, text in (("U7", "who am I?"), ("U8", "and I?"), ("U7", "!new"), ("U7", "now?")):
            room.slack.say(text, user=user)
            await room.until_text("A new conversation" if text == "!new" else f"re:{text}")
        assert await room.gateway.log("agent:main:slack:direct:u7") == ["now?", "re:now?"]
        _, key, _ = await room.service.find_chat(DeliverTo(channel="slack", to="U7"))
        assert key == "agent:main:slack:direct:u7"
    assert model.shown[1:] == [["I am Ada", "who am I?"], ["and I?"], ["now?"]]


async def test_a_moved_group_sees_its_answer_grow_under_its_new_id() -> None:
    model = ScriptedModel()
    async with open_chat_room("telegram", model, groups="always", allow_groups=("-5",)) as room:
        room.telegram.say("", chat=-1005, migrate_from_chat_id=-5)
        model.gate.clear()
        room.telegram.say("hello", chat=-1005)
        await room.until(lambda: _has_call(room, "sendChatAction"))
        model.gate.set()
        await room.until_text("re:[User7] hello")
        chats = {str(body["chat_id"]) for _, body in room.telegram.calls if "chat_id" in body}
        key = Key("agent:main:telegram:group:-5")
        assert await room.gateway.engine.read.session(DEFAULT_TENANT, key=key) is not None
    assert chats == {"-1005"}


async def test_a_message_before_the_note_of_a_move_is_copied_into_the_session() -> None:
    model = ScriptedModel()
    more: dict[str, Any] = {"groups": "always", "allow_groups": ("-5", "-1005")}
    async with open_chat_room("telegram", model, **more) as room:
        room.telegram.say("first", chat=-5)
        await room.until_text("re:[User7] first")
        room.telegram.say("too early", chat=-1005)
        await room.until_text("re:[User7] too early")
        room.telegram.migrate(-5, -1005)
        for text in ("again", "last"):
            room.telegram.say(text, chat=-1005)
            await room.until_text(f"re:[User7] {text}")
        early = Key("agent:main:telegram:group:-1005")
        kept = await room.gateway.engine.read.session(DEFAULT_TENANT, key=early)
        assert kept is not None
        assert kept.session.turn_count == 1, "it is copied, and stays as it is"
    told = ["first", "too early", "again", "last"]
    assert [text for text in model.shown[-1] if "re:" not in text] == [f"[User7] {t}" for t in told]


async def test_a_replica_that_missed_a_move_finds_the_session() -> None:
    model = ScriptedModel()
    more: dict[str, Any] = {"groups": "always", "allow_groups": ("-5", "-1005")}
    async with open_chat_room("telegram", model, **more) as room:
        room.telegram.say("early", chat=-1005)
        await room.until_text("re:[User7] early")
        moved = RememberChat(channel="telegram", chat="-5", successor="-1005")
        await room.gateway.engine.submit(moved)
        room.telegram.say("later", chat=-1005)
        await room.until_text("re:[User7] later")
        key = Key("agent:main:telegram:group:-5")
        assert await room.gateway.engine.read.session(DEFAULT_TENANT, key=key) is not None
    assert "[User7] early" in model.shown[-1]


@pytest.mark.parametrize("notify", [False, True])
async def test_an_answer_that_must_notify_is_sent_once_and_not_edited(
    monkeypatch: pytest.MonkeyPatch, *, notify: bool
) -> None:
    monkeypatch.setattr(live_reply, "TYPING_SECONDS", 0.0)
    model = TalkingModel("one ", "two", is_gated=True)
    model.allow(3)
    async with open_chat_room("telegram", model, notify=notify) as room:
        room.telegram.say("hi")
        for _ in range(3):
            await model.sent.acquire()
        typed = sum(called == "sendChatAction" for called, _ in room.telegram.calls)
        # The typing state is shown after each look at the text so far.
        await room.until(
            lambda: sum(called == "sendChatAction" for called, _ in room.telegram.calls) > typed + 2
        )
        model.allow_all()
        await room.until_text("one two")
        (sent,) = room.telegram.sent
    assert (sent.texts == ["one two"]) == notify


def _has_call(room: ChatRoom, method: str) -> bool:
    return any(called == method for called, _ in room.telegram.calls)


@pytest.mark.parametrize("answer", ["```\n```", "1. x\n" * 780])
async def test_an_answer_that_cannot_be_shown_rendered_is_sent_as_it_is(answer: str) -> None:
    """Rendered, the first is empty and the second, whose numbers grow, is too long."""
    model = ScriptedModel(lambda _: [said(answer)])
    async with open_chat_room("telegram", model, reply="whole") as room:
        room.telegram.say("hi")
        await room.until_text(answer.strip()[:3])
        await _until_sent(room)
        (sent,) = room.telegram.sent
    assert sent.text.strip() == answer.strip()
