"""Compaction records: how parts of a log are replaced when it is shown to a model.

Nothing is removed from the log. A `compaction` record replaces a range, from the first item on, by
the items that it keeps and a summary; an `elision` record truncates outputs. The newest compaction
in force counts; one is void if anything in its range was hidden or restored since.
"""

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from holdfast.core.ids import SessionId
from holdfast.core.model.items import ERASED_ITEM, StoredItem, message
from holdfast.core.model.records import HIDING, Record, RecordKind, Span, merge_spans
from holdfast.core.model.session import Session, Usage

CompactionMode = Literal["model", "elide", "given"]
CompactionReason = Literal["budget", "overflow", "threshold", "trigger", "asked"]

SUMMARY_OPENING = "Summary of the conversation so far, of which the earlier part is not shown:\n\n"
SHORT_KINDS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}
)
"""Outputs that are plain text, so that they can be truncated."""
_MARK = "hfc1."
NOT_SHOWN = frozenset({"compaction_trigger"})
"""Items that are addressed to the gateway, not to a model."""


class CompactionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a `compaction` record: what replaces its range."""

    id: str
    mode: CompactionMode
    reason: CompactionReason
    text: str
    keeps: tuple[int, ...] = ()
    """Items of the range that are shown unchanged."""
    left_out: int = 0
    """How many items of the log the summary replaces."""
    model: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    usage: Usage | None = None
    """What the summary cost, where a model wrote it."""
    assumed_window: int | None = None
    """The window that the request was to fit into, where the model's own was not known."""


class Elision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an `elision` record: outputs, and how many bytes of each are shown."""

    id: str
    reason: CompactionReason
    cuts: tuple[tuple[int, int], ...]
    """The sequence number and shown bytes of each output."""
    tokens_before: int = 0
    tokens_after: int = 0
    assumed_window: int | None = None


write_body = msgspec.json.Encoder().encode
read_compaction = msgspec.json.Decoder(CompactionRecord).decode
read_elision = msgspec.json.Decoder(Elision).decode


class RecordHead(msgspec.Struct, frozen=True, gc=False):
    """A record without its body; `upto` is the end of the part of the log that it applies to."""

    session_id: SessionId
    no: int
    kind: RecordKind
    from_seq: int
    to_seq: int
    undoes: int | None
    upto: int


def heads_of(records: Sequence[Record], upto: int) -> tuple[RecordHead, ...]:
    """Return records without their bodies, except erased summaries, which no longer count."""
    return tuple(
        RecordHead(
            record.session_id, record.no, record.kind, record.from_seq, record.to_seq,
            record.undoes, upto,
        )
        for record in records
        if record.kind != "compaction" or record.body is not None
    )  # fmt: skip


Name = tuple[SessionId, int]
"""A record's session and number."""


class InForce(msgspec.Struct, frozen=True):
    """The records that apply to a log, including those of the sessions it was forked from."""

    hidden: tuple[Span, ...] = ()
    compaction: RecordHead | None = None
    elisions: tuple[RecordHead, ...] = ()
    instructions: Span | None = None
    """The items that give the session's instructions."""
    standing: frozenset[Name] = frozenset()
    """Compactions whose range is unchanged, including those that were undone since."""


def in_force(heads: Sequence[RecordHead]) -> InForce:
    """Return the records in force, given all of them oldest first, ancestors' before own ones."""
    undone = {(head.session_id, head.undoes) for head in heads if head.kind == "undo"}
    hidden: list[Span] = []
    compaction: RecordHead | None = None
    elisions: list[RecordHead] = []
    instructions: Span | None = None
    standing: set[Name] = set()
    for place, head in enumerate(heads):
        is_undone = (head.session_id, head.no) in undone
        if head.kind in HIDING and not is_undone:
            hidden.append((head.from_seq, min(head.to_seq, head.upto)))
        elif head.kind == "elision" and not is_undone:
            elisions.append(head)
        elif head.kind == "instructions" and head.to_seq <= head.upto:
            instructions = (head.from_seq, head.to_seq)
        elif head.kind == "compaction" and _is_unchanged(head, heads[place + 1 :]):
            standing.add((head.session_id, head.no))
            compaction = compaction if is_undone else head
    covered = compaction.to_seq if compaction is not None else 0
    return InForce(
        tuple(merge_spans(hidden)),
        compaction,
        tuple(head for head in elisions if head.to_seq > covered),
        instructions,
        frozenset(standing),
    )


def _is_unchanged(head: RecordHead, later: Sequence[RecordHead]) -> bool:
    """Whether the range is still what was summarized: nothing of it was hidden or restored."""
    if head.to_seq > head.upto:
        return False
    return not any(
        (other.kind in HIDING or other.kind == "undo")
        and other.from_seq <= head.to_seq
        and min(other.to_seq, other.upto) >= max(other.from_seq, head.from_seq)
        for other in later
    )


class Shown(msgspec.Struct, frozen=True):
    """The records in force, with their bodies."""

    in_force: InForce
    compaction: CompactionRecord | None = None
    elisions: tuple[Elision, ...] = ()


def show(items: Iterable[StoredItem], records: Shown) -> list[StoredItem]:
    """Return a log as it is shown to a model: compacted, with truncated outputs, without triggers.

    `items` are the visible items after the compacted range, and those that the compaction keeps.
    """
    cuts = {seq: kept for elision in records.elisions for seq, kept in elision.cuts}
    head = records.in_force.compaction
    covered = head.to_seq if head is not None else 0
    shown: list[StoredItem] = []
    behind: list[StoredItem] = []
    for item in items:
        seen = _shown_item(item, records.in_force, cuts)
        if seen is not None:
            (behind if item.seq > covered else shown).append(seen)
    if head is not None and records.compaction is not None:
        shown.append(_as_message(records.compaction.text, head.session_id, head.to_seq))
    return _instructions_first(shown + behind, records.in_force.instructions)


def _instructions_first(shown: list[StoredItem], span: Span | None) -> list[StoredItem]:
    """Return the items with the instructions at the beginning, wherever they were given."""
    if span is None:
        return shown
    first = [item for item in shown if span[0] <= item.seq <= span[1] and item.turn_number]
    if not first or shown[: len(first)] == first:
        return shown
    rest = [item for item in shown if not (span[0] <= item.seq <= span[1] and item.turn_number)]
    return first + rest


def _shown_item(item: StoredItem, records: InForce, cuts: dict[int, int]) -> StoredItem | None:
    """Return one item as it is shown to a model, or None if it is not shown."""
    if item.kind in NOT_SHOWN or item.body == ERASED_ITEM:
        return None
    if is_ours(item):
        return _expand(item, records)
    return truncate_output(item, cuts[item.seq]) if item.seq in cuts else item


def _as_message(text: str, session_id: str, seq: int) -> StoredItem:
    new = message("user", SUMMARY_OPENING + text)
    return StoredItem(
        session_id, seq, 0, new.kind, None, None, new.fingerprint, False, new.body
    )  # fmt: skip


def truncate_output(item: StoredItem, kept: int) -> StoredItem:
    """Return an output truncated to its first `kept` bytes."""
    text = output_text(item.body)
    head = text.encode()[:kept].decode("utf-8", "ignore")
    left = len(text.encode()) - len(head.encode())
    note = f"[{left} bytes of this output are left out to save room]"
    output = f"{head}\n{note}" if head else note
    body = msgspec.json.encode({"type": item.kind, "call_id": item.call_id, "output": output})
    return msgspec.structs.replace(item, body=body)


class _Output(msgspec.Struct):
    output: str | list[msgspec.Raw] | None = None


_read_output = msgspec.json.Decoder(_Output, strict=False).decode


def output_text(body: bytes) -> str:
    """Return an output as text."""
    try:
        output = _read_output(body).output
    except msgspec.ValidationError:
        return ""
    if isinstance(output, str):
        return output
    return "" if output is None else b"\n".join(bytes(part) for part in output).decode()


# ── compaction items: a summary that a client stores ─────────────────────────────────────


class _Carried(msgspec.Struct, omit_defaults=True):
    text: str
    session_id: str = ""
    no: int = 0


class _Item(msgspec.Struct):
    encrypted_content: str | None = None


_read_item = msgspec.json.Decoder(_Item).decode
_read_carried = msgspec.json.Decoder(_Carried).decode


_WRAPPING = 160
"""Upper bound on the bytes of such an item, not counting its summary."""


def compaction_item(name: str, text: str, record: Name | None = None) -> bytes:
    """Return the gateway's `compaction` item: opaque to clients, readable here.

    It names the record of the session that it represents, where there is one: within that session
    the record applies instead. Number 0 means that the log was too short for a record.
    """
    carried = _Carried(text, *record) if record else _Carried(text)
    packed = base64.urlsafe_b64encode(msgspec.json.encode(carried)).decode()
    return msgspec.json.encode(
        {"type": "compaction", "id": name, "encrypted_content": _MARK + packed}
    )


def summary_capacity(size: int) -> int:
    """Return how many bytes of plain text fit into a `compaction` item of `size` bytes."""
    return max(size - _WRAPPING, 0) * 3 // 4


def is_ours(item: StoredItem) -> bool:
    """Whether an item is a compaction by this gateway."""
    return item.kind == "compaction" and _carried(item.body) is not None


def carried_text(body: bytes) -> str | None:
    """Return the summary in the gateway's `compaction` item, or None for other items."""
    carried = _carried(body)
    return carried.text if carried is not None else None


def carried_record(body: bytes) -> Name | None:
    """Return the record that the gateway's `compaction` item names, number 0 included."""
    carried = _carried(body)
    if carried is None or not carried.session_id:
        return None
    return SessionId(carried.session_id), carried.no


def _carried(body: bytes) -> _Carried | None:
    if b'"' + _MARK.encode() not in body:
        return None
    try:
        content = _read_item(body).encrypted_content or ""
        packed = base64.urlsafe_b64decode(content.removeprefix(_MARK))
        return _read_carried(packed)
    except (msgspec.DecodeError, binascii.Error, ValueError):
        return None


def _expand(item: StoredItem, records: InForce) -> StoredItem | None:
    """Return the summary in an item, unless the log has its record."""
    carried = _carried(item.body)
    if carried is None or (carried.session_id, carried.no) in records.standing:
        return None
    return msgspec.structs.replace(
        _as_message(carried.text, item.session_id, item.seq), turn_number=item.turn_number
    )


def expand(body: bytes) -> bytes:
    """Return an item as a model sees it where there is no log: summaries become messages."""
    text = carried_text(body)
    return body if text is None else message("user", SUMMARY_OPENING + text).body


# ── compactions as they are listed ────────────────────────────────────────────────────────────

CompactionStatus = Literal["in_force", "superseded", "void", "undone"]


class CompactionView(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction: its summary, its shortened outputs, or both."""

    id: str
    status: CompactionStatus
    created_at: float
    turn_id: str | None
    to_seq: int | None = None
    compaction: CompactionRecord | None = None
    elision: Elision | None = None


def list_compactions(session: Session, records: Sequence[Record]) -> list[CompactionView]:
    """Return a session's own compactions, oldest first, without the erased ones."""
    force = in_force(heads_of(records, session.head_seq))
    undone = {record.undoes for record in records if record.kind == "undo"}
    views: dict[str, CompactionView] = {}
    for record in records:
        if record.body is None or record.kind not in ("compaction", "elision"):
            continue
        summary = read_compaction(record.body) if record.kind == "compaction" else None
        elision = read_elision(record.body) if record.kind == "elision" else None
        body = summary or elision
        assert body is not None
        is_in_force = force.compaction is not None and force.compaction.no == record.no
        is_in_force = is_in_force or any(head.no == record.no for head in force.elisions)
        status: CompactionStatus = "in_force" if is_in_force else "superseded"
        if record.no in undone:
            status = "undone"
        elif summary is not None and (record.session_id, record.no) not in force.standing:
            status = "void"
        before = views.get(body.id)
        views[body.id] = CompactionView(
            id=body.id,
            # A compaction with two records is in force as long as its summary is.
            status=before.status if before is not None else status,
            created_at=record.created_at,
            turn_id=record.turn_id,
            to_seq=record.to_seq if summary is not None else before.to_seq if before else None,
            compaction=summary or (before.compaction if before else None),
            elision=elision or (before.elision if before else None),
        )
    return list(views.values())
