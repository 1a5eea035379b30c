"""Messages that reach two replicas in an unusual order: edits first, albums in parts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.channels import inbound
from holdfast.channels.inbound import BUSY_TEXT, InboundHandler
from holdfast.channels.settings import ChannelSettings
from holdfast.core.model.reset_policy import NEVER
from holdfast.engine.settings import LaneSettings
from holdfast.ports.channel import Capabilities, ChatPlace, InboundMessage
from holdfast.ports.outbox import OutboxQuery
from holdfast.testing.clock import ManualClock
from tests.in_process import RunningGateway, ScriptedModel, open_gateway

KEY = "agent:main:telegram:direct:7"
GROUP = "agent:main:telegram:group:-8"


def inbox(
    gateway: RunningGateway,
    *,
    is_polled: bool = False,
    kind: type[InboundHandler] = InboundHandler,
    **more: Any,
) -> InboundHandler:
    """Return the inbox of one replica."""
    settings = ChannelSettings(
        name="phone", kind="telegram", direct="open", collect_seconds=0, on_busy="enqueue",
        allow_groups=("-8",), **more,
    )  # fmt: skip
    return kind(
        gateway.engine, gateway.turn_service, settings,
        Capabilities(max_units=1000, is_polled=is_polled), people={}, reset=NEVER, triggers=(),
        attend=lambda _: None,
    )  # fmt: skip


def message(name: str, text: str, **more: Any) -> InboundMessage:
    """Return a message of person 7."""
    return InboundMessage(
        **{"unique_id": name, "place": ChatPlace("7"), "sender": "7", "text": text, **more}
    )


def edit(name: str, text: str, *, sent_at: float, **more: Any) -> InboundMessage:
    """Return an edit of a message of person 7."""
    return message(
        f"{name}:edit", text, is_edit=True, original_id=name, first_sent_at=sent_at, **more
    )


@asynccontextmanager
async def busy(model: ScriptedModel) -> AsyncIterator[tuple[RunningGateway, ManualClock]]:
    """A gateway whose lanes of person 7 are held by an earlier message."""
    clock = ManualClock()
    async with open_gateway(model, clock=clock) as gateway:
        model.gate.clear()
        await inbox(gateway).handle(message("m0", "first"))
        await model.entered.acquire()
        yield gateway, clock


async def test_an_edit_that_comes_before_its_message_takes_its_place() -> None:
    model = ScriptedModel()
    async with busy(model) as (gateway, clock):
        here, there = inbox(gateway), inbox(gateway)
        await here.handle(edit("m1", "second", sent_at=clock.now() - 5))
        await gateway.until_queued(1, KEY)
        await there.handle(message("m1", "secnd"))
        await here.handle(edit("m1", "second", sent_at=clock.now() - 5))
        await there.handle(message("m2", "third"))
        await gateway.until_queued(2, KEY)
        model.gate.set()
        await gateway.until_idle(KEY)
        assert there.outcomes == {"repeated": 1, "accepted": 1}
    assert [shown[-1] for shown in model.shown] == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("is_polled", "more"),
    [
        (False, {"sent_at": -601.0}),
        (True, {}),
        (False, {"text": "/new"}),
        (False, {"is_bot": True}),
        (False, {"is_direct": False, "place": ChatPlace("-8"), "is_mention": True}),
        (False, {"is_direct": False, "place": ChatPlace("-8"), "was_mention": False}),
    ],
)
async def test_other_edits_of_unknown_messages_run_nothing(
    is_polled: bool, more: dict[str, Any]
) -> None:
    model = ScriptedModel()
    async with open_gateway(model, clock=ManualClock()) as gateway:
        given: dict[str, Any] = {"text": "hello", "sent_at": 0.0, **more}
        given["sent_at"] += gateway.engine.clock.now()
        handler = inbox(gateway, is_polled=is_polled, bots=("7",) if "is_bot" in more else ())
        await handler.handle(edit("m1", **given))
        assert handler.outcomes == {"edit": 1}
        assert await gateway.engine.read.session("default", key=KEY) is None  # type: ignore[arg-type]  # names
        assert await gateway.engine.read.session("default", key=GROUP) is None  # type: ignore[arg-type]  # names


async def test_an_early_edit_counts_in_a_group_whose_message_is_known_to_have_named_us() -> None:
    async with open_gateway(ScriptedModel(), clock=ManualClock()) as gateway:
        handler, now = inbox(gateway), gateway.engine.clock.now()
        place: dict[str, Any] = {"is_direct": False, "place": ChatPlace("-8"), "is_mention": True}
        await handler.handle(edit("m1", "hello", sent_at=now, was_mention=True, **place))
        assert handler.outcomes == {"accepted": 1}


class _Waiting(InboundHandler):
    """An inbox that shows when it waits for something that comes later."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.waits = asyncio.Event()

    async def _is_recorded(self, key: str) -> bool:
        self.waits.set()
        return await super()._is_recorded(key)


@pytest.mark.parametrize("is_mention", [True, False])
async def test_an_early_edit_in_a_group_waits_for_its_message(
    is_mention: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbound, "ALBUM_SECONDS", 60.0)
    place: dict[str, Any] = {"is_direct": False, "place": ChatPlace("-8"), "is_mention": True}
    model, clock = ScriptedModel(), ManualClock()
    async with open_gateway(model, clock=clock) as gateway:
        here, there = inbox(gateway, kind=_Waiting), inbox(gateway)
        assert isinstance(here, _Waiting)
        model.gate.clear()
        await there.handle(message("m0", "first", **place))
        await model.entered.acquire()
        changed = edit("m1", "second", sent_at=clock.now(), **{**place, "is_mention": is_mention})
        early = asyncio.create_task(here.handle(changed))
        await here.waits.wait()
        await there.handle(message("m1", "secnd", **place))
        await early
        model.gate.set()
        await gateway.until_idle(GROUP)
        assert (here.outcomes, there.outcomes) == ({"edit": 1}, {"accepted": 2})
    assert [shown[-1] for shown in model.shown] == ["[7] first", "[7] second"]


def part(number: int, *, is_mention: bool = False, sender: str = "7") -> InboundMessage:
    """Return a part of an album in a group."""
    return message(
        f"p{number}", f"part {number}", place=ChatPlace("-8"), is_direct=False, is_album=True,
        album="G1", is_mention=is_mention, sender=sender,
    )  # fmt: skip


async def test_an_album_shares_its_mention_over_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "ALBUM_SECONDS", 60.0)
    async with open_gateway(ScriptedModel()) as gateway:
        here, there = inbox(gateway), inbox(gateway, is_polled=True)
        early = asyncio.create_task(here.handle(part(1)))
        await there.handle(part(2, is_mention=True))
        await there.handle(part(3))
        await early
        await there.handle(part(4, sender="8"))
        assert here.outcomes == {"accepted": 1}
        assert there.outcomes == {"accepted": 2, "ignored": 1}
        await gateway.until_idle(GROUP)


async def test_an_album_that_nobody_mentions_us_in_is_ignored() -> None:
    async with open_gateway(ScriptedModel()) as gateway:
        here = inbox(gateway)
        await here.handle(part(1))
        assert here.outcomes == {"ignored": 1}


async def test_a_full_lane_sends_at_most_one_notice_in_ten_minutes() -> None:
    model, clock = ScriptedModel(), ManualClock()
    async with open_gateway(model, lanes=LaneSettings(max_waiting=1), clock=clock) as gateway:
        here, there = inbox(gateway), inbox(gateway)
        model.gate.clear()
        await here.handle(message("m1", "a"))
        await model.entered.acquire()
        await here.handle(message("m2", "b"))
        await gateway.until_queued(1, KEY)
        clock.advance(599.0 - clock.now() % 600)
        told = []
        for step, replica in ((0.0, here), (2.0, there), (597.0, here), (122.0, there)):
            clock.advance(step)
            await replica.handle(message(f"x{clock.now()}", "c"))
            rows = await gateway.engine.store.channels.messages(None, OutboxQuery())
            assert {row.text for row in rows} == {BUSY_TEXT}
            told.append(len(rows))
        assert told == [1, 1, 1, 2]
