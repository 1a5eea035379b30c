"""A request held against what is stored: what of it is new, and what it rewinds or repeats."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.chat import text_of
from holdfast.core.ids import Key, SessionId, Tenant
from holdfast.core.items import NewItem
from holdfast.core.novelty import LogEntry, SentItem, find_new
from holdfast.core.trail import NO_TRAIL, Milestone, TrailRow, follow, milestones
from holdfast.ports.store import OutlineEntry, Reader


class _Said(msgspec.Struct):
    role: str | None = None
    content: Any = None


_read_said = msgspec.json.Decoder(_Said).decode


class Recognised(msgspec.Struct, frozen=True):
    """What is new in a request; `seen_seq` is what it was compared with, if it was."""

    items: tuple[NewItem, ...]
    rewind: tuple[int, int] | None = None
    seen_seq: int | None = None
    brought: Milestone | None = None
    """The history among `items` that is complete in itself, where none of it is stored."""
    repeated: TrailRow | None = None
    """The end of the stored history that the request repeats and `items` follow."""
    trail: bytes = NO_TRAIL
    """Of everything that was sent, where its answer may be found by it."""


async def recognise(
    read: Reader,
    tenant: Tenant,
    items: Sequence[NewItem],
    *,
    key: Key | None = None,
    session_id: SessionId | None = None,
    is_whole: bool = False,
) -> Recognised:
    """Compare a request with the settled log of its session.

    A client that sends only what its user says costs nothing here: that is always new, unless the
    client is known to send all it has (`is_whole`).
    """
    sent = [_sent(item) for item in items]
    if not is_whole and not any(item.repeats or item.is_output for item in sent):
        return Recognised(tuple(items))
    outline = await read.outline(tenant, session_id=session_id, key=key)
    if outline is None or not outline.entries:
        brought = next(reversed(_milestones(sent, items)), None)
        seen = outline.settled_seq if outline is not None else 0
        return Recognised(tuple(items), seen_seq=seen, brought=brought)
    log = [_entry(entry) for entry in outline.entries]
    found = find_new(sent, log, is_whole=is_whole)
    return Recognised(tuple(items[found.new_from :]), found.rewind, outline.settled_seq)


async def find_repeated(read: Reader, tenant: Tenant, items: Sequence[NewItem]) -> Recognised:
    """Look for a stored history that a request without a session begins with, the longest."""
    trail = follow(NO_TRAIL, [(item.fingerprint, item.call_id) for item in items])
    sent = [_sent(item) for item in items]
    passed = _milestones(sent, items)
    if not passed:
        return Recognised(tuple(items), trail=trail)
    end = await read.trail_end(tenant, [stone.trail for stone in reversed(passed)])
    if end is None:
        return Recognised(tuple(items), brought=passed[-1], trail=trail)
    count = next(stone.count for stone in passed if stone.trail == end.trail)
    return Recognised(tuple(items[count:]), repeated=end, trail=trail)


def _milestones(sent: Sequence[SentItem], items: Sequence[NewItem]) -> list[Milestone]:
    return milestones(sent, [item.call_id for item in items])


def _sent(item: NewItem) -> SentItem:
    if item.kind != "message":
        return SentItem(item.fingerprint, item.kind, call_id=item.call_id)
    said = _read_said(item.body)
    text = text_of(said.content) if said.role == "assistant" else ""
    return SentItem(item.fingerprint, item.kind, said.role, text)


def _entry(entry: OutlineEntry) -> LogEntry:
    torn = None
    if entry.torn_body is not None:
        torn = text_of(_read_said(entry.torn_body).content)
    return LogEntry(entry.seq, entry.fingerprint, entry.kind, torn, entry.call_id)
