"""A channel that cannot receive is a finding, and its test says why."""

import asyncio
from collections.abc import Callable

import pytest

from holdfast.channels import service
from holdfast.core.model.channels import ReceiverRow
from holdfast.doctor.channel_checks import check_channels, check_receivers
from holdfast.simulator.platforms.server import PlatformAnswer
from tests.integration.chat_room import ChatRoom, open_chat_room

CONFLICT = {"ok": False, "error_code": 409, "description": "Conflict: terminated by other"}


async def _findings(room: ChatRoom) -> list[tuple[str, str]]:
    engine = room.gateway.engine
    found = check_channels(engine.store, engine.clock.now())
    return [(one.code, one.detail) async for one in found]


async def _until_failing(room: ChatRoom) -> str:
    """Wait until the store knows of a failure; return what doctor says."""
    async with asyncio.timeout(20):
        while not (found := await _findings(room)):
            pass
    ((code, detail),) = found
    assert code == "channel_failing"
    return detail


def _conflict(room: ChatRoom) -> None:
    room.telegram.fail(
        lambda method, _: PlatformAnswer(CONFLICT, status=409) if method == "getUpdates" else None
    )
    room.telegram.say("wake up")


def _away(room: ChatRoom) -> None:
    room.telegram.down()


@pytest.mark.parametrize(("cause", "reason"), [(_conflict, "Conflict"), (_away, "getUpdates")])
async def test_what_keeps_a_channel_from_receiving_is_found(
    cause: Callable[[ChatRoom], None], reason: str
) -> None:
    async with open_chat_room("telegram") as room:
        assert (await room.service.check("telegram"))["account"] == "@testbot"
        await asyncio.to_thread(cause, room)
        assert reason in await _until_failing(room)
        assert not (await room.service.check("telegram"))["is_ok"]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"url": ""}, "call setWebhook"),
        (
            {"pending_update_count": 3, "last_error_message": "Wrong response: 502"},
            "502; 3 updates",
        ),
    ],
)
async def test_a_webhook_that_the_platform_cannot_reach_is_found(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, object], reason: str
) -> None:
    monkeypatch.setattr(service, "NOTE_SECONDS", 0.01)
    async with open_chat_room("telegram", receive="webhook", secret="s") as room:
        receivers = room.gateway.engine.store.channels.receivers
        async with asyncio.timeout(20):
            while not await receivers():
                pass
        (row,) = await receivers()
        assert row.received_at is not None
        assert await _findings(room) == []
        room.telegram.webhook.update(told)
        assert reason in await _until_failing(room)
        assert not (await room.service.check("telegram"))["is_ok"]
        room.telegram.webhook = {"url": "https://example.org"}
        async with asyncio.timeout(20):
            while await _findings(room):
                pass


async def test_a_wrong_token_is_found_and_reported() -> None:
    async with open_chat_room("telegram", token="42:WRONG") as room:
        assert "telegram (telegram): getMe: Unauthorized" in await _until_failing(room)
        checked = await room.service.check("telegram")
        assert (checked["is_ok"], checked["error"]) == (False, "getMe: Unauthorized")


def test_a_gap_is_reported_for_a_day_and_an_old_failure_is_not() -> None:
    gap = ReceiverRow(
        channel="s", kind="slack", received_at=2000.0, keeps_seconds=300.0, gap_from=1000.0,
        gap_until=2000.0,
    )  # fmt: skip
    assert [one.code for one in check_receivers([gap], 2100.0)] == ["channel_gap"]
    assert "up to now" in next(iter(check_receivers([gap], 2400.0))).detail
    assert list(check_receivers([gap], 2000.0 + 2 * 24 * 3600)) == []
    failed = ReceiverRow(channel="s", kind="slack", failed_at=2000.0, reason="no")
    assert [one.code for one in check_receivers([failed], 2010.0)] == ["channel_failing"]
    assert list(check_receivers([failed], 4000.0)) == []
