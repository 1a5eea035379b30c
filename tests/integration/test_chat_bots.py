"""Bots that are answered have five turns until a person writes, however often we restart."""

from pathlib import Path
from typing import Any

from tests.in_process import ScriptedModel, said
from tests.integration.chat_room import ChatRoom, open_chat_room
from tests.store_urls import sqlite_url

GROUP = -5
SETTINGS: dict[str, Any] = {
    "allow_groups": ("-5",), "bots": ("99",), "groups": "always", "on_busy": "enqueue",
}  # fmt: skip


async def _say(room: ChatRoom, number: int, *, is_bot: bool = True) -> int:
    """Have a bot, or a person, write to the group; return how many turns there were then."""
    sender = {"id": 99 if is_bot else 7, "is_bot": is_bot, "first_name": "Somebody"}
    more: dict[str, Any] = {"from": sender, "message_id": 1000 + number}
    confirmed = len(room.telegram.confirmed)
    room.telegram.say(f"message {number}", chat=GROUP, **more)
    await room.until(lambda: len(room.telegram.confirmed) > confirmed)
    (listed,) = await room.service.listing()
    received: Any = listed["received"]
    accepted: int = received["accepted"]
    return accepted


async def test_bots_have_five_turns_over_restarts_until_a_person_writes(tmp_path: Path) -> None:
    model = ScriptedModel(lambda _: [said("ok")])
    url = sqlite_url(tmp_path)
    async with open_chat_room("telegram", model, store_url=url, **SETTINGS) as room:
        assert [await _say(room, number) for number in range(4)] == [1, 2, 3, 4]
    async with open_chat_room("telegram", model, store_url=url, **SETTINGS) as room:
        assert [await _say(room, number) for number in range(4, 7)] == [1, 1, 1]
        assert await _say(room, 7, is_bot=False) == 2
        assert await _say(room, 8) == 3
