"""How often the message of a growing answer is edited."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.channels import live_reply
from tests.integration.chat_room import ChatRoom, open_chat_room
from tests.loop_clock import stopped_loop_clock
from tests.streaming import TalkingModel

WORDS = ("one ", "two ", "three ", "four ", "five")


@pytest.mark.parametrize(
    ("kind", "seconds", "say"),
    [
        ("telegram", 1.0, lambda room: room.telegram.say("hi")),
        ("telegram", 4.0, lambda room: room.telegram.say("hi", chat=-5)),
        ("slack", 3.0, lambda room: room.slack.say("hi")),
        ("slack", 3.0, lambda room: room.slack.say("hi", channel="C1")),
    ],
    ids=["telegram-direct", "telegram-group", "slack-direct", "slack-channel"],
)
async def test_a_growing_answer_is_edited_as_often_as_its_platform_allows(
    monkeypatch: pytest.MonkeyPatch, kind: str, seconds: float, say: Callable[[ChatRoom], str]
) -> None:
    looks: asyncio.Queue[list[str]] = asyncio.Queue()
    model = TalkingModel(*WORDS, is_gated=True)
    more: dict[str, Any] = {"groups": "always", "allow_groups": ("-5", "C1")}
    async with open_chat_room(kind, model, **more) as room:

        async def show_typing(*_: Any) -> None:
            looks.put_nowait(room.texts())

        # The typing state, renewed after each look at the text so far, tells that a look is over.
        monkeypatch.setattr(live_reply, "TYPING_SECONDS", 0.0)
        monkeypatch.setattr(type(room.channel), "show_typing", show_typing)
        can_type = replace(room.channel.capabilities, can_type=True)
        monkeypatch.setattr(room.channel, "capabilities", can_type)
        with stopped_loop_clock() as clock:
            say(room)
            model.allow(3)
            while await looks.get() != ["one …"]:
                pass
            shown = "one"
            for early, due in (WORDS[1:3], WORDS[3:5]):
                clock.advance(seconds - 0.25)
                assert await looks.get() == [f"{shown} …"]
                model.allow(1)
                assert await looks.get() == [f"{shown} …"], "too early"
                clock.advance(0.25)
                model.allow(1)
                shown = f"{shown} {early}{due}".strip()
                assert await looks.get() == [f"{shown} …"]
            model.allow_all()
