"""Messages that a full lane refuses: recorded, and told to the person, whatever happens."""

from typing import Any

import msgspec
import pytest

from holdfast.channels.inbound import BUSY_TEXT, FULL_TEXT, UNUSABLE_TEXT, InboundHandler
from holdfast.channels.settings import ChannelSettings
from holdfast.core.errors import InvalidSessionKey, ModelNotFound
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.model.reset_policy import NEVER
from holdfast.core.transaction.commands import QueueMessages
from holdfast.engine.sessions.quota import StorageQuota
from holdfast.engine.settings import LaneSettings
from holdfast.ports.channel import Capabilities, ChatPlace, InboundMessage
from holdfast.ports.outbox import OutboxQuery
from holdfast.ports.provider import ModelCall
from holdfast.ports.store import Store
from holdfast.testing.clock import ManualClock
from tests.in_process import RunningGateway, ScriptedModel, open_gateway

KEY = "agent:main:telegram:direct:7"


class _Killed(BaseException):
    """The process ended here."""


class _FailingStore:
    """A store before one of whose commits of a refusal the process is killed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.left = 0
        """The number of the commit that fails; none if it is not positive."""

    async def submit(self, command: Any) -> Any:
        if isinstance(command, QueueMessages):
            self.left -= 1
            if self.left == 0:
                raise _Killed
        return await self._store.submit(command)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _inbox(gateway: RunningGateway) -> InboundHandler:
    settings = ChannelSettings(
        name="phone", kind="telegram", direct="open", collect_seconds=0, on_busy="enqueue"
    )
    return InboundHandler(
        gateway.engine, gateway.turn_service, settings, Capabilities(max_units=1000), people={},
        reset=NEVER, triggers=(), attend=lambda _: None,
    )  # fmt: skip


async def test_a_message_that_cannot_be_handled_is_recorded_after_three_tries(
    store_url: str,
) -> None:
    async with open_gateway(store_url=store_url) as gateway:
        inbox, dead = _inbox(gateway), gateway.engine.store.channels.dead_updates
        odd = msgspec.structs.replace(_message(1), sender="7" * 600)
        for _ in range(2):
            with pytest.raises(InvalidSessionKey):
                await inbox.handle(odd)
        assert await dead(10) == []
        await inbox.handle(odd)
        assert [row.update_id for row in await dead(10)] == ["m1"]
        assert inbox.outcomes == {"ignored": 1}


def _message(number: int) -> InboundMessage:
    return InboundMessage(
        unique_id=f"m{number}", place=ChatPlace("7"), sender="7", text=f"message {number}"
    )


async def _told(gateway: RunningGateway) -> list[str]:
    rows = await gateway.engine.store.channels.messages(None, OutboxQuery(channel="phone"))
    return [row.text for row in rows]


@pytest.mark.parametrize("failing", [1, 2])
async def test_a_refusal_notice_is_sent_although_the_process_is_killed_meanwhile(
    failing: int,
) -> None:
    stores: list[_FailingStore] = []

    def wrap(store: Store) -> Any:
        stores.append(_FailingStore(store))
        return stores[0]

    model = ScriptedModel()
    lanes = LaneSettings(max_waiting=1)
    async with open_gateway(model, lanes=lanes, wrap=wrap, clock=ManualClock()) as gateway:
        inbox = _inbox(gateway)
        model.gate.clear()
        await inbox.handle(_message(1))
        await model.entered.acquire()
        await inbox.handle(_message(2))
        await gateway.until_queued(1, KEY)
        stores[0].left = failing
        with pytest.raises(_Killed):
            await inbox.handle(_message(3))
        await inbox.handle(_message(3))
        assert await _told(gateway) == [BUSY_TEXT]
        await inbox.handle(_message(3))
        await inbox.handle(_message(4))
        assert await _told(gateway) == [BUSY_TEXT], "at most every ten minutes"
        assert inbox.outcomes["accepted"] == 2


class _UnknownModel(ScriptedModel):
    """The model of a channel that no upstream serves."""

    def check(self, call: ModelCall) -> None:
        raise ModelNotFound(f"The model {call.model!r} does not exist")


@pytest.mark.parametrize("text", ["hello", "/new hello"])
async def test_a_sender_gets_a_notice_if_the_channel_has_no_usable_model(text: str) -> None:
    async with open_gateway(_UnknownModel(), clock=ManualClock()) as gateway:
        inbox = _inbox(gateway)
        for number in (1, 2, 2):
            await inbox.handle(msgspec.structs.replace(_message(number), text=text))
        told = [one for one in await _told(gateway) if one == UNUSABLE_TEXT]
        assert len(told) == 1, "at most every ten minutes"
        dead = await gateway.engine.store.channels.dead_updates(10)
        assert {update.update_id for update in dead} == {"m1", "m2"}
        assert all("does not exist" in update.reason for update in dead)


async def test_a_sender_gets_one_notice_if_the_tenant_storage_is_full(
    any_store_url: str,
) -> None:
    async with open_gateway(store_url=any_store_url) as gateway:
        gateway.engine.storage = StorageQuota(gateway.engine.read, 2000)
        inbox = _inbox(gateway)
        await inbox.handle(msgspec.structs.replace(_message(1), text="x" * 3000))
        # The first one again, which is stored, and two that are not; then one of them again.
        for number in (1, 2, 3, 2):
            await inbox.handle(_message(number))
        assert inbox.outcomes == {"accepted": 1, "repeated": 2, "refused": 2}
        assert [text for text in await _told(gateway) if text == FULL_TEXT] == [FULL_TEXT]
        view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key(KEY))
        assert view is not None
        assert view.session.turn_count == 1
        await inbox.handle(msgspec.structs.replace(_message(4), text="/compact"))
        assert inbox.outcomes["command"] == 1, "a compaction stores no message"
