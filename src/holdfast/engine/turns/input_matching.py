"""A request held against what is stored: what of it is new, and what it rewinds or repeats."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.decisions.lane import unpack_items
from holdfast.core.history.diff import ASSISTANT, LogEntry, SentItem, find_new
from holdfast.core.history.history_hash import (
    NO_TRAIL,
    PrefixHash,
    TrailRow,
    extend_hash,
    prefix_hashes,
)
from holdfast.core.history.tool_outputs import sort_outputs
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.items import NewItem
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Turn
from holdfast.core.openai.chat import text_of
from holdfast.ports.store import ItemQuery, Outline, OutlineEntry, Reader

QUEUE_LOOKED_AT = 100
"""The last turns of a session that are looked at for outputs that wait with them."""


class _Speaker(msgspec.Struct, gc=False):
    role: str | None = None


class _Said(msgspec.Struct):
    content: Any = None


_read_speaker = msgspec.json.Decoder(_Speaker).decode
_read_said = msgspec.json.Decoder(_Said).decode


class MatchedInput(msgspec.Struct, frozen=True):
    """What is new in a request; `seen_seq` is what it was compared with, if it was."""

    items: tuple[NewItem, ...]
    rewind: tuple[int, int] | None = None
    seen_seq: int | None = None
    brought: PrefixHash | None = None
    """The history among `items` that is complete in itself, where none of it is stored."""
    repeated: TrailRow | None = None
    """The end of the stored history that the request repeats and `items` follow."""
    trail: bytes = NO_TRAIL
    """Of everything that was sent, where its answer may be found by it."""
    same_as: tuple[TurnId, int] | None = None
    """The turn and step that took the very same tool outputs in before."""
    after_turn: int | None = None
    """The number of the last turn there was, where one more would change what is found."""


def has_no_history(items: Sequence[NewItem]) -> bool:
    """Whether there are but messages, none of a model's: such a request repeats nothing."""
    for item in items:
        if item.kind != "message" or _read_speaker(item.body).role == ASSISTANT:
            return False
    return True


async def match_input(
    read: Reader,
    tenant: Tenant,
    items: Sequence[NewItem],
    *,
    key: Key | None = None,
    session_id: SessionId | None = None,
    is_whole: bool = False,
) -> MatchedInput:
    """Compare a request with the settled log of its session.

    A client that sends only what its user says costs nothing here: that is always new, unless the
    client is known to send all it has (`is_whole`).
    """
    sent = [_sent(item) for item in items]
    is_history, has_outputs = is_whole, False
    for one in sent:
        is_history = is_history or one.is_model_output
        has_outputs = has_outputs or one.is_output
    if not (is_history or has_outputs):
        return MatchedInput(tuple(items))
    outline = await read.outline(tenant, session_id=session_id, key=key)
    if not is_history:
        return await _recognise_outputs(read, outline, items, sent)
    if outline is None or not outline.entries:
        brought = next(reversed(_milestones(sent, items)), None)
        seen = outline.settled_seq if outline is not None else 0
        return MatchedInput(tuple(items), seen_seq=seen, brought=brought)
    log = [_entry(entry) for entry in outline.entries]
    found = find_new(sent, log, is_whole=is_whole, open_from=outline.open_from)
    is_again = found.new_from == len(sent) or found.new_upto is not None
    return MatchedInput(
        tuple(items[found.new_from : found.new_upto]),
        found.rewind,
        outline.settled_seq,
        # What is to be answered again stands elsewhere if another turn comes first.
        after_turn=outline.session.turn_count if is_again else None,
    )


async def _recognise_outputs(
    read: Reader, outline: Outline | None, items: Sequence[NewItem], sent: Sequence[SentItem]
) -> MatchedInput:
    """Find the calls that the outputs of a request without a history answer."""
    if outline is None:
        sort_outputs(sent, ())
        return MatchedInput(tuple(items))
    session = outline.session
    log = [_entry(entry) for entry in (*outline.entries, *outline.running)]
    waiting = await _waiting_outputs(read, session)
    log += [LogEntry(0, item.fingerprint, item.kind, call_id=item.call_id) for item in waiting]
    found = sort_outputs(sent, log, is_growing=session.active_run_id is not None)
    same_as = None
    if found.given is not None and not found.new:
        queued = next(
            (t for item, t in waiting.items() if item.call_id == found.given.call_id), None
        )
        same_as = (queued.id, queued.step) if queued else await _taker(read, session, found.given)
    return MatchedInput(
        tuple(items[index] for index in found.new),
        seen_seq=outline.settled_seq,
        same_as=same_as,
        after_turn=session.turn_count,
    )


async def _waiting_outputs(read: Reader, session: Session) -> dict[NewItem, Turn]:
    """Return the outputs that wait in a session's queue, each with its turn."""
    if session.active_turn_id is None:
        return {}
    views = await read.turns(session.id, after=0, limit=QUEUE_LOOKED_AT, order="desc")
    return {
        item: view.turn
        for view in reversed(views)
        if view.turn.is_open
        for item in unpack_items(view.turn.input)
        if _sent(item).is_output
    }


async def _taker(read: Reader, session: Session, given: LogEntry) -> tuple[TurnId, int] | None:
    """Return the turn and step that took an output in; none where that is to be done again."""
    query = ItemQuery(after=given.seq - 1, limit=1, view="log")
    item = (await read.items(session, query))[0]
    if item.session_id != session.id:
        return None
    turn = (await read.turns(session.id, after=item.turn_number - 1, limit=1))[0].turn
    if turn.outcome == "cancelled" or (turn.outcome == "failed" and not turn.is_retryable):
        return None
    runs = await read.runs(turn.id)
    return turn.id, min((run.step for run in runs if run.first_seq > given.seq), default=turn.step)


async def match_stored_history(
    read: Reader, tenant: Tenant, items: Sequence[NewItem]
) -> MatchedInput:
    """Look for a stored history that a request without a session begins with, the longest."""
    trail = extend_hash(NO_TRAIL, [(item.fingerprint, item.call_id) for item in items])
    sent = [_sent(item) for item in items]
    passed = _milestones(sent, items)
    if not passed:
        return MatchedInput(tuple(items), trail=trail)
    end = await read.trail_end(tenant, [stone.trail for stone in reversed(passed)])
    if end is None:
        return MatchedInput(tuple(items), brought=passed[-1], trail=trail)
    count = next(stone.count for stone in passed if stone.trail == end.trail)
    return MatchedInput(tuple(items[count:]), repeated=end, trail=trail)


def _milestones(sent: Sequence[SentItem], items: Sequence[NewItem]) -> list[PrefixHash]:
    return prefix_hashes(sent, [item.call_id for item in items])


def _sent(item: NewItem) -> SentItem:
    if item.kind != "message":
        return SentItem(item.fingerprint, item.kind, call_id=item.call_id)
    role = _read_speaker(item.body).role
    text = text_of(_read_said(item.body).content) if role == ASSISTANT else ""
    return SentItem(item.fingerprint, item.kind, role, text)


def _entry(entry: OutlineEntry) -> LogEntry:
    torn = None
    if entry.torn_body is not None:
        torn = text_of(_read_said(entry.torn_body).content)
    return LogEntry(entry.seq, entry.fingerprint, entry.kind, torn, entry.call_id)
