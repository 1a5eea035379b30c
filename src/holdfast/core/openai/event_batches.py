"""The journal of a response: its stream's events, kept in batches so that a reader can come back.

Events that show the whole response are kept as its status alone and written out again from the
record. The terminal event is not kept at all: it is what the record says.
"""

import zlib
from collections.abc import Sequence

import msgspec

from holdfast.core.transaction.changes import JournalRow
from holdfast.core.transaction.commands import JournalEntry

FAST = 1
"""Compression level: events repeat themselves so much that more effort gains little."""


class JournalEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event as a journal keeps it: its JSON, or the status that its response had."""

    type: str
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[JournalEvent]).decode


def pack_events(first: int, events: Sequence[JournalEvent]) -> JournalEntry:
    """Return a batch whose first event has the number `first`."""
    body = zlib.compress(_encode(events), FAST)
    return JournalEntry(first=first, last=first + len(events) - 1, body=body)


def unpack_events(row: JournalRow) -> list[JournalEvent]:
    """Return the events of a batch, the one numbered `row.first_no` first."""
    return _decode(zlib.decompress(row.body))
