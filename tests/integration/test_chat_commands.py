"""Commands in a chat: only those that are meant for us, and bounded for bots."""

from typing import Any

import pytest

from holdfast.channels.inbound import QUOTE_LABEL
from holdfast.ports.channel import OperatorMessage
from tests.in_process import ScriptedModel, said
from tests.integration.chat_room import ChatRoom, open_chat_room

GROUP = -5
KEY = f"agent:main:telegram:group:{GROUP}"
SETTINGS: dict[str, Any] = {
    "allow_groups": (str(GROUP),), "bots": ("99",), "groups": "always", "on_busy": "enqueue",
}  # fmt: skip


async def _say(room: ChatRoom, text: str, **more: Any) -> None:
    """Have somebody write to the group, and wait until that was handled."""
    confirmed = len(room.telegram.confirmed)
    room.telegram.say(text, chat=GROUP, **more)
    await room.until(lambda: len(room.telegram.confirmed) > confirmed)


def _command(text: str) -> dict[str, Any]:
    return {
        "entities": [{"type": "bot_command", "offset": 0, "length": len(text.split(maxsplit=1)[0])}]
    }


async def test_a_command_to_another_bot_of_the_group_does_nothing_here() -> None:
    model = ScriptedModel()
    async with open_chat_room(
        "telegram", model, **{**SETTINGS, "groups": "mention"}
    ) as room:  # fmt: skip
        model.gate.clear()
        await _say(room, "@testbot hi", entities=[{"type": "mention", "offset": 0, "length": 8}])
        await model.entered.acquire()
        for text in ("/stop@otherbot", "/new@otherbot", "/stop@testbotx"):
            await _say(room, text, **_command(text))
        model.gate.set()
        await room.until_text("re:[User7] hi")
        assert not any("Stopped" in text or "new conv" in text for text in room.texts())
        await _say(room, "/new@TestBot", **_command("/new@TestBot"))
        await room.until_text("A new conversation")


async def test_a_forwarded_text_is_neither_a_command_nor_a_mention() -> None:
    model = ScriptedModel(lambda _: [said("ok")])
    forwarded: dict[str, Any] = {"forward_origin": {"type": "user", "date": 1}}
    async with open_chat_room(
        "telegram", model, **{**SETTINGS, "groups": "mention"}
    ) as room:  # fmt: skip
        mention = {"entities": [{"type": "mention", "offset": 0, "length": 8}]}
        await _say(room, "@testbot hi", **mention, **forwarded)
        await _say(room, "/new@testbot", **_command("/new@testbot"), **forwarded)
        (listed,) = await room.service.listing()
        assert listed["received"] == {"ignored": 2}
        room.telegram.say("/new and more", **forwarded)
        await room.until_text("ok")
    assert model.shown == [[f"{QUOTE_LABEL}\n/new and more(empty message)"]]


async def test_commands_of_bots_count_among_their_turns() -> None:
    model = ScriptedModel(lambda _: [said("ok")])
    async with open_chat_room("telegram", model, **SETTINGS) as room:
        bot = {"id": 99, "is_bot": True, "first_name": "Other"}
        for number in range(4):
            await _say(room, f"/new message {number}", **{"from": bot})
            await _say(room, "/status", **{"from": bot})
        (listed,) = await room.service.listing()
        assert listed["received"] == {"accepted": 3, "command": 2, "ignored": 3}
        await _say(room, "/whoami")
        await _say(room, "/new again", **{"from": bot})
        (listed,) = await room.service.listing()
        assert listed["received"] == {"accepted": 4, "command": 3, "ignored": 3}


@pytest.mark.parametrize("word", ["start", "stop", "new"])
async def test_a_word_below_a_message_of_ours_is_an_answer_and_no_command(word: str) -> None:
    model = ScriptedModel()
    async with open_chat_room("slack", model, allow_groups=("C1",)) as room:
        question = OperatorMessage(chat="C1", text="Shall I start, stop, or make a new plan?")
        await room.service.send("slack", question)
        await room.until_text("Shall I start")
        thread = room.slack.posted[0].ts
        room.slack.say(word, channel="C1", thread=thread)
        await room.until_text(f"[User7] {word}")
        room.slack.say("<@UBOT> new", channel="C1", thread=thread)
        await room.until_text("A new conversation")
    assert len(model.shown) == 1


async def test_a_picture_that_comes_with_a_new_conversation_is_its_first_message() -> None:
    model = ScriptedModel(lambda _: [said("seen")])
    async with open_chat_room("telegram", model) as room:
        room.telegram.say("old talk")
        await room.until_text("seen")
        room.telegram.files["p1"] = b"\x89PNG picture"
        photo = [{"file_id": "p1", "file_size": 12}]
        room.telegram.say("", caption="/new", photo=photo)
        await room.until(lambda: room.texts().count("seen") == 2)
        room.telegram.deliver_again()
        room.telegram.say("and now?")
        await room.until(lambda: room.texts().count("seen") == 3)
    assert len(room.texts()) == 3, "the answer says enough"
    assert "old talk" not in model.shown[1]
    assert len(model.shown) == 3
