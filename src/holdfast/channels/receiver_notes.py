"""Record in the store whether a channel receives, for `holdfast doctor`."""

import contextlib
import time
from typing import Protocol

from holdfast.core.errors import HoldfastError
from holdfast.core.transaction.commands import NoteReceiver
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.channel import Channel

PROVEN_SECONDS = 40.0
"""Longer than a poll takes to fail, so a receiver that has run for this long works."""
NOTE_SECONDS = 60.0


class Counting(Protocol):
    """Counts handled messages."""

    @property
    def count(self) -> int:
        """How many messages were handled."""
        ...


class ReceiverNotes:
    """Records when a channel received, and why it could not."""

    def __init__(self, gateway: Gateway, channel: Channel, inbox: Counting) -> None:
        self._gateway = gateway
        self._channel = channel
        self._inbox = inbox
        self._began, self._handled, self._due = time.monotonic(), 0, 0.0

    def begin(self) -> None:
        """Note that the receiver was started."""
        self._began, self._handled, self._due = time.monotonic(), self._inbox.count, 0.0

    async def works(self, *, is_last: bool = False) -> None:
        """Record that the channel receives, if that is proven and not recorded recently."""
        now = time.monotonic()
        is_proven = self._inbox.count > self._handled or now - self._began >= PROVEN_SECONDS
        if is_proven and (is_last or now >= self._due):
            self._due = now + NOTE_SECONDS
            await self._submit("")

    async def confirm(self) -> None:
        """Record that the channel receives, because the platform confirmed it."""
        await self._submit("")

    async def failed(self, reason: str) -> None:
        """Record why the channel does not receive."""
        await self._submit(reason)

    async def _submit(self, reason: str) -> None:
        command = NoteReceiver(
            channel=self._channel.name,
            kind=self._channel.kind,
            keeps_seconds=self._channel.capabilities.keeps_seconds,
            reason=reason,
        )
        with contextlib.suppress(HoldfastError):  # the store itself may be what fails
            await self._gateway.submit(command)
