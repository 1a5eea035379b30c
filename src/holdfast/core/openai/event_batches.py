"""The journal of a response: its stream's events, kept in batches so that a reader can come back.

Events that show the whole response are kept as its status alone and written out again from the
record. The terminal event is not kept at all: it is what the record says.
"""

import zlib
from collections.abc import Sequence

import msgspec

from holdfast.core.errors import TurnNotFound
from holdfast.core.transaction.changes import Decision, JournalRow, ResponseDropped, refuse
from holdfast.core.transaction.commands import DropResponse, JournalEntry
from holdfast.core.transaction.facts import Facts

FAST = 1
"""Compression level: events repeat themselves so much that more effort gains little."""


class KeptEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event as a journal keeps it: its JSON, or the status that its response had."""

    type: str
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[KeptEvent]).decode


def pack_events(first: int, events: Sequence[KeptEvent]) -> JournalEntry:
    """Return a batch whose first event has the number `first`."""
    body = zlib.compress(_encode(events), FAST)
    return JournalEntry(first=first, last=first + len(events) - 1, body=body)


def unpack_events(row: JournalRow) -> list[KeptEvent]:
    """Return the events of a batch, the one numbered `row.first_no` first."""
    return _decode(zlib.decompress(row.body))


def drop_response(command: DropResponse, facts: Facts) -> Decision[bool]:
    """Take a response out of reach; the session it is part of keeps its history."""
    turn, session = facts.turn, facts.session
    if (
        turn is None
        or session is None
        or turn.tenant != command.tenant
        or session.deleted_at is not None
        or command.step > turn.step
    ):
        return refuse(TurnNotFound(f"no turn {command.turn_id}"))
    dropped = ResponseDropped(turn.id, command.step, session.id, facts.now)
    return Decision(outcome=True, changes=(dropped,))
