"""Streams that failed after their first output, when nothing can be healed any more.

A provider that refuses its input only in the middle of the answer would fail every turn of the
session. So after some such failures in a row the next answer is shown once it is whole: if it
fails, it can still be healed.
"""

from collections.abc import Sequence

from holdfast.ports.provider import AnyEvent, OutputSink

HELD_BACK_AFTER = 2
"""How many streams of a session must fail in a row before the next answer is held back."""
MAX_SESSIONS = 10_000
"""How many sessions are counted; the one that failed first is forgotten."""
_AT_ONCE = 100


def count_cut_stream(counts: dict[str, int], session_id: str) -> None:
    """Count a stream of a session that failed after its first output."""
    counts[session_id] = counts.pop(session_id, 0) + 1
    if len(counts) > MAX_SESSIONS:
        del counts[next(iter(counts))]


class HeldBackSink:
    """An event sink that writes an answer only when it is whole.

    Its size is limited like that of every answer, by the client that reads it.
    """

    def __init__(self, sink: OutputSink) -> None:
        self._sink = sink
        self._held: list[AnyEvent] = []
        self.drain = sink.drain

    @property
    def has_output(self) -> bool:
        """Whether the client may have seen any output."""
        return self._sink.has_output

    def write(self, events: Sequence[AnyEvent]) -> bool:
        """Hold events back."""
        self._held += events
        return True

    async def show(self) -> None:
        """Write what was held back."""
        for place in range(0, len(self._held), _AT_ONCE):
            if not self._sink.write(self._held[place : place + _AT_ONCE]):
                await self._sink.drain()
