"""A stream's journal: batches of its events, packed.

Lifecycle events contain the response itself. A journal stores only their status; they are rebuilt
from the record. The terminal event is not stored at all, because the record has it.
"""

import zlib
from collections.abc import Sequence

import msgspec

from holdfast.core.transaction.changes import JournalRow
from holdfast.core.transaction.commands import JournalEntry

FAST = 1
"""Compression level: events are so repetitive that a higher level gains little."""


class JournalEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event in a journal: its JSON, or the status of the response that it contains."""

    type: str
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[JournalEvent]).decode


def pack_events(first: int, events: Sequence[JournalEvent]) -> JournalEntry:
    """Return a batch whose first event has the number `first`."""
    body = zlib.compress(_encode(events), FAST)
    return JournalEntry(first=first, last=first + len(events) - 1, body=body)


def unpack_events(row: JournalRow) -> list[JournalEvent]:
    """Return the events of a batch; the first one has the number `row.first_no`."""
    return _decode(zlib.decompress(row.body))
