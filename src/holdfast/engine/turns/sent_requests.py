"""Rebuilds the requests sent to providers from the log, and verifies them by their digest.

Of a request, only its digest and its position in the log are stored. A request that cannot be
rebuilt to the same digest is still returned, and marked as unproven.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.compaction.records import read_compaction, read_elision
from holdfast.core.healing.policy import Heal, read_heals
from holdfast.core.healing.refused_items import leave_out
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import HIDING, Record, in_force, quarantined
from holdfast.core.model.request import (
    DIGEST_BYTES,
    SentRequest,
    TurnRequest,
    find_request,
    hash_items,
    read_request,
)
from holdfast.core.model.session import ProviderState, Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.openai.response import decode_answer
from holdfast.core.projection.project import ProjectedItem, continue_after, show
from holdfast.engine.model_call.compactor import Compactor
from holdfast.ports.provider import ModelCall, digest_call
from holdfast.ports.store import Reader

MAX_LOOKBACK = 50
"""How many earlier turns are searched for the request before a turn's first one."""
MAX_RECORD_TRIES = 8
"""How many record numbers are tried, in case another writer added records during the call."""
_UNKNOWN_STATE = ProviderState("", "", "", b"")

ItemOrigin = Literal["log", "summary", "placeholder", "synthetic_output", "shortened"]
Change = Literal["added", "compacted", "hidden", "placeholder", "shortened", "changed", "left_out"]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a provider, its result, and what was recorded about it."""

    run: Run
    model: str
    heal: Heal | None = None
    """The failure and how it was healed; None for the last attempt of a run."""
    sent: SentRequest | None = None
    is_tool_call: bool = False
    """Whether it was answered with calls of gateway tools, so that the run continued."""


class RequestItem(msgspec.Struct, frozen=True):
    """One item of a request, and where it comes from."""

    body: bytes
    seq: int | None
    turn_number: int | None
    origin: ItemOrigin


class ItemChange(msgspec.Struct, frozen=True):
    """How one item changed since the previous request, and the record that caused it, if any."""

    change: Change
    seq: int | None
    record: Record | None = None


class RebuiltRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it was sent."""

    attempt: Attempt
    request: TurnRequest
    items: list[RequestItem]
    new_items: int
    """How many items were sent: all, or those that the provider's state did not cover."""
    digest: bytes
    call: ModelCall
    """The call to the provider; see `ports.provider.digest_call` for what its digest covers."""
    records: Sequence[Record] = ()
    """The records that it includes."""

    @property
    def is_proven(self) -> bool | None:
        """Whether the rebuilt request is the one that was sent; None if nothing was recorded."""
        sent = self.attempt.sent
        return sent.digest == self.digest if sent is not None else None

    @property
    def assumed_window(self) -> int | None:
        """The window that the newest compaction assumed, because the model's was not known."""
        for record in reversed(self.records):
            if record.body is not None and record.kind in ("compaction", "elision"):
                read = read_compaction if record.kind == "compaction" else read_elision
                return read(record.body).assumed_window
        return None


class SentRequests:
    """Rebuilds requests as they were sent to models."""

    def __init__(self, read: Reader, compactor: Compactor) -> None:
        self._read = read
        self._compactor = compactor

    async def attempts(self, turn: Turn) -> list[Attempt]:
        """Return every request that was sent for a turn, oldest first."""
        request = find_request(turn.request)
        runs = await self._read.runs(turn.id)
        return list(_attempts(request, runs)) if request is not None else []

    async def rebuild(self, session: Session, turn: Turn, attempt: Attempt) -> RebuiltRequest:
        """Return the request of an attempt, rebuilt from the log."""
        request = self._compactor.strip_gateway_fields(read_request(turn.request))
        last = attempt.sent.records if attempt.sent is not None else session.record_no
        best: RebuiltRequest | None = None
        for records in range(last, max(last - MAX_RECORD_TRIES, -1), -1):
            rebuilt = await self._rebuild(session, request, attempt, records)
            best = best or rebuilt
            if rebuilt.is_proven is not False:
                return rebuilt
        assert best is not None
        return best

    async def _rebuild(
        self, session: Session, request: TurnRequest, attempt: Attempt, record_no: int
    ) -> RebuiltRequest:
        last_seq = attempt.sent.last_seq if attempt.sent is not None else None
        if last_seq is None:
            last_seq = attempt.run.first_seq - 1
        then = session.as_of(last_seq, record_no)
        history = await self._read.context(then)
        placeholders: frozenset[int] = frozenset()
        if attempt.sent is not None and attempt.sent.left_out:
            history, placeholders = leave_out(history, attempt.sent.left_out)
        records: list[Record] = []
        if record_no or session.parent_id is not None:
            records = await self._read.lineage_records(then)
            own = in_force(await self._read.records(then))
            records += [record for record in own if record.kind in ("compaction", "elision")]
        set_aside = quarantined(records) | placeholders
        shown = show(history, set_aside)
        call = _call(request, attempt, [item.body for item in shown])
        sent, new_items = attempt.sent, len(shown)
        if sent is not None and sent.covers_seq is not None:
            new = continue_after(history, sent.covers_seq, set_aside) or []
            state = replace(_UNKNOWN_STATE, covers_seq=sent.covers_seq)
            call, new_items = replace(call, state=state, new_items=new), len(new)
        return RebuiltRequest(
            attempt=attempt,
            request=request,
            items=_request_items(history, shown, _notes(records, set_aside)),
            new_items=new_items,
            digest=rebuilt_digest(call, sent.digest if sent is not None else None),
            call=replace(call, session_id=session.id, is_stream=request.is_stream),
            records=records,
        )

    async def before(self, session: Session, turn: Turn, attempt: Attempt) -> "Before | None":
        """Return the last request before this answer's first one."""
        earlier = [other for other in await self.attempts(turn) if _is_before(other, attempt)]
        if earlier:
            return Before(turn, await self.rebuild(session, turn, earlier[-1]))
        views = await self._read.turns(
            session.id, after=turn.number, limit=MAX_LOOKBACK, order="desc"
        )
        for view in views:
            attempts = await self.attempts(view.turn)
            if attempts:
                return Before(view.turn, await self.rebuild(session, view.turn, attempts[-1]))
        return None


class Before(msgspec.Struct, frozen=True):
    """The previous request, and its turn."""

    turn: Turn
    rebuilt: RebuiltRequest


def rebuilt_digest(call: ModelCall, recorded: bytes | None) -> bytes:
    """Return the digest of a rebuilt call, by the rule by which the recorded one was made."""
    digest = digest_call(blake2b(digest_size=DIGEST_BYTES, key=hash_items(call.items)), call)
    if recorded in (None, digest):
        return digest
    # Version 0.1.0 hashed all items at once, each ended by a line feed.
    hasher = blake2b(digest_size=DIGEST_BYTES)
    for body in call.items:
        hasher.update(body)
        hasher.update(b"\n")
    earlier = digest_call(hasher, call)
    return earlier if earlier == recorded else digest


def difference(before: RebuiltRequest | None, after: RebuiltRequest) -> list[ItemChange]:
    """Return the changes from one request to the next, in the order of the log."""
    known = {_identity(item): item for item in before.items} if before is not None else {}
    seen = {_identity(item) for item in after.items}
    changes: list[ItemChange] = []
    for item in after.items:
        earlier = known.get(_identity(item))
        if earlier is None:
            changes.append(ItemChange("added", item.seq))
        elif earlier.body != item.body:
            changes.append(ItemChange(_kind_of_change(item), item.seq, _cause(item.seq, after)))
    changes += [
        _removal(item.seq, after)
        for identity, item in known.items()
        if identity not in seen and item.origin != "synthetic_output"
    ]
    return sorted(changes, key=lambda change: change.seq or 0)


def _notes(records: Sequence[Record], set_aside: frozenset[int]) -> dict[int, ItemOrigin]:
    """Return the items that a request shows in another form than the log."""
    notes: dict[int, ItemOrigin] = {}
    for record in records:
        if record.kind == "elision" and record.body is not None:
            notes |= {seq: "shortened" for seq, _ in read_elision(record.body).cuts}
    return notes | dict.fromkeys(set_aside, "placeholder")


def _identity(item: RequestItem) -> tuple[int | None, str | bytes]:
    """Return the identity of an item: its place in the log, or its content if it is in no log."""
    if item.seq is None:
        return None, item.body
    return item.seq, "summary" if item.origin == "summary" else "log"


def _kind_of_change(item: RequestItem) -> Change:
    if item.origin == "placeholder" or item.origin == "shortened":  # noqa: PLR1714 - narrows
        return item.origin
    return "changed"


def _removal(seq: int | None, after: RebuiltRequest) -> ItemChange:
    record = _cause(seq, after)
    if record is not None and record.kind in HIDING:
        return ItemChange("hidden", seq, record)
    summary = next((item.seq for item in after.items if item.origin == "summary"), None)
    if seq is not None and seq <= (summary or 0):
        return ItemChange("compacted", seq, record)
    return ItemChange("left_out", seq, record)


def _cause(seq: int | None, after: RebuiltRequest) -> Record | None:
    """Return the newest record in force over an item; a compaction applies from the first item."""
    if seq is None:
        return None
    for record in sorted(after.records, key=lambda record: record.no, reverse=True):
        first = 1 if record.kind == "compaction" else record.from_seq
        if first <= seq <= record.to_seq:
            return record
    return None


def _attempts(request: TurnRequest, runs: Sequence[Run]) -> Iterator[Attempt]:
    """Yield the requests of a turn's runs; a fallback model is used for the rest of its step."""
    model, step = request.model, -1
    for run in sorted(runs, key=lambda run: (run.step, run.epoch)):
        if run.step != step:
            model, step = request.model, run.step
        first_model = model
        answer = decode_answer(run.result) if run.result else None
        earlier = list(answer.earlier) if answer is not None else []
        for heal in read_heals(run.heals):
            while earlier and _last_seq(earlier[0]) < _last_seq(heal.sent):
                yield Attempt(run=run, model=model, sent=earlier.pop(0), is_tool_call=True)
                model = first_model
            yield Attempt(run=run, model=heal.model or model, heal=heal, sent=heal.sent)
            model = heal.next_model or model
        for call in earlier:
            yield Attempt(run=run, model=model, sent=call, is_tool_call=True)
            model = first_model
        sent = answer.sent if answer is not None else None
        # A run that completed without a request was imported, or it compacted the session.
        if sent is not None or run.outcome != "completed":
            yield Attempt(run=run, model=model, sent=sent)


def _last_seq(sent: SentRequest | None) -> int:
    """Return the last item that a request included, or 0 if it was not recorded."""
    return (sent.last_seq or 0) if sent is not None else 0


def _is_before(attempt: Attempt, other: Attempt) -> bool:
    """Whether one request included less of the same turn than another."""
    if attempt.run.step != other.run.step:
        return attempt.run.step < other.run.step
    return _last_seq(attempt.sent) < _last_seq(other.sent)


def _call(request: TurnRequest, attempt: Attempt, bodies: list[bytes]) -> ModelCall:
    sent = attempt.sent
    is_plain = sent is not None and sent.is_plain
    strips_opaque = sent is not None and sent.strips_opaque
    return ModelCall(
        model=attempt.model,
        items=bodies,
        fields=request.fields,
        chat_fields=request.chat_fields,
        keeps_state=request.is_stored,
        allows_opaque=not strips_opaque and not is_plain,
        is_plain=is_plain,
    )


def _request_items(
    history: Sequence[StoredItem], shown: Sequence[ProjectedItem], notes: dict[int, ItemOrigin]
) -> list[RequestItem]:
    stored = {item.seq: item for item in history if item.turn_number > 0}
    summaries = {item.seq: item for item in history if item.turn_number == 0}
    items: list[RequestItem] = []
    for item in shown:
        summary = summaries.get(item.seq) if item.seq is not None else None
        if summary is not None and summary.body == item.body:
            items.append(RequestItem(item.body, item.seq, None, "summary"))
            continue
        source = stored.get(item.seq) if item.seq is not None else None
        origin: ItemOrigin = "synthetic_output"
        if source is not None:
            origin = notes.get(source.seq, "log")
        number = source.turn_number if source is not None else None
        items.append(RequestItem(item.body, item.seq, number, origin))
    return items
