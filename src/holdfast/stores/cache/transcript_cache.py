"""Cache whole transcripts as bytes, so that a later read only fetches the new items.

An entry stays valid by the rule of `context_cache.py`: as long as the session has no new record,
its transcript at a later head is the cached one with the new items appended.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.ids import SessionId
from holdfast.core.lru import SizedLru
from holdfast.core.model.session import Session

MAX_BYTES = 16 * 1024 * 1024
NOTHING = b"[]"


class CachedTranscript(NamedTuple):
    """The visible items of a session at a head, as a JSON list."""

    record_no: int
    head_seq: int
    listed: bytes


class TranscriptCache:
    """Recently read transcripts, bounded in bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._readings: SizedLru[SessionId, CachedTranscript] = SizedLru(max_bytes)

    @property
    def held_bytes(self) -> int:
        """The size of all transcripts in bytes."""
        return self._readings.held

    def find(self, session: Session) -> CachedTranscript | None:
        """Return the cached transcript if it is still valid; may be called from any thread."""
        known = self._readings.peek(session.id)
        if known is None or known.record_no != session.record_no:
            return None
        return known if known.head_seq <= session.head_seq else None

    def keep(self, session: Session, listed: bytes) -> None:
        """Add a transcript, except a fork's: its inherited items may be erased elsewhere."""
        if session.parent_id is not None:
            return
        known = self._readings.get(session.id)
        if known is not None and known[:2] >= (session.record_no, session.head_seq):
            # The cached one is as new or newer: a later read finished first.
            return
        self.drop(session.id)
        if len(listed) * 2 <= self._max_bytes:
            reading = CachedTranscript(session.record_no, session.head_seq, listed)
            self._readings.put(session.id, reading, len(listed))

    def drop(self, session_id: SessionId) -> None:
        """Remove a session's transcript."""
        self._readings.pop(session_id)


def listed(bodies: Sequence[bytes], before: bytes = NOTHING) -> bytes:
    """Return items as a JSON list, appended to the list `before`; everything is copied once."""
    if not bodies:
        return before
    pieces: list[bytes | memoryview] = [*bodies]
    pieces[-1] = bodies[-1] + b"]"
    if before == NOTHING:
        pieces[0] = b"[" + pieces[0]
    else:
        pieces.insert(0, memoryview(before)[:-1])
    return b",".join(pieces)
