"""A model's words behind those that are said for it."""

from collections.abc import Sequence

from holdfast.engine.model_call.compaction_events import announced, shifted
from holdfast.engine.streaming.journal_writer import JournalWriter
from holdfast.ports.provider import Answer, AnyEvent, ModelCall, Provider


class _Telling:
    """Passes on what a model says, behind a preface."""

    def __init__(self, writer: JournalWriter, preface: tuple[bytes, ...]) -> None:
        self._writer = writer
        self._preface = preface
        self.is_begun = False
        """Whether what is said for the model has been said."""
        self.room = writer.room

    def hear(self, events: Sequence[AnyEvent]) -> bool:
        if not self.is_begun:
            self.is_begun = True
            self._writer.hear(announced(self._preface))
        return self._writer.hear([shifted(event, len(self._preface)) for event in events])


async def tell(
    provider: Provider, call: ModelCall, writer: JournalWriter, preface: tuple[bytes, ...]
) -> Answer:
    """Return a model's answer, told as it comes behind the items that the answer begins with."""
    if not preface:
        return await provider.stream(call, writer)
    telling = _Telling(writer, preface)
    answer = await provider.stream(call, telling)
    if not telling.is_begun:
        telling.hear(())
    return answer
