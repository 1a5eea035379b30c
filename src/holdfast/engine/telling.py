"""A model's words on their way to readers: behind what is said for it, durable as they go."""

import asyncio
from collections.abc import Sequence

from holdfast.engine.announcing import announced, shifted
from holdfast.engine.journal import JournalWriter
from holdfast.ports.provider import Answer, AnyEvent, ModelCall, Provider

BREATH_BYTES = 64 * 1024


class _Telling:
    """Passes on what a model says."""

    def __init__(self, writer: JournalWriter, preface: tuple[bytes, ...]) -> None:
        self._writer = writer
        self._preface = preface
        self.is_begun = not preface
        """Whether what is said for the model has been said."""
        self._said = 0

    def hear(self, events: Sequence[AnyEvent]) -> bool:
        if not self.is_begun:
            self.is_begun = True
            self._writer.pass_on(announced(self._preface))
        if self._preface:
            events = [shifted(event, len(self._preface)) for event in events]
        self._said += self._writer.pass_on(events)
        return self._said <= BREATH_BYTES

    async def room(self) -> None:
        # A model may say much at once; readers are not slow for that.
        self._said = 0
        await asyncio.sleep(0)


async def tell(
    provider: Provider, call: ModelCall, writer: JournalWriter, preface: tuple[bytes, ...]
) -> Answer:
    """Return a model's answer, told as it comes behind the items that the answer begins with."""
    telling = _Telling(writer, preface)
    answer = await provider.stream(call, telling)
    if not telling.is_begun:
        telling.hear(())
    return answer
