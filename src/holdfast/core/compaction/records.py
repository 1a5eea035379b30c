"""Compaction: what stands for a part of a log when a model is shown it.

Nothing is taken out of the log. A `compaction` record says that a range, from the first item on, is
shown as the items it keeps and a summary; an `elision` record, that outputs are shown cut short.
The newest compaction in force counts; one whose range was hidden from since tells of what is gone,
and is void.
"""

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from holdfast.core.ids import SessionId
from holdfast.core.model.items import ERASED_ITEM, StoredItem, message
from holdfast.core.model.records import HIDING, RecordKind, Span, merge_spans
from holdfast.core.model.session import Usage

CompactionMode = Literal["model", "elide", "given"]
CompactionReason = Literal["budget", "overflow", "threshold", "trigger", "asked"]

SUMMARY_OPENING = "Summary of the conversation so far, of which the earlier part is not shown:\n\n"
SHORT_KINDS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}
)
"""Outputs that are plain text, so that they can be cut short."""
_MARK = "hfc1."
NOT_SHOWN = frozenset({"compaction_trigger"})
"""Items that ask something of us, and say nothing to a model."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a `compaction` record: what is shown in place of its range."""

    id: str
    mode: CompactionMode
    reason: CompactionReason
    text: str
    keeps: tuple[int, ...] = ()
    """Items of the range that are shown all the same, as they are."""
    left_out: int = 0
    """How many items of the log the summary stands for."""
    model: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    usage: Usage | None = None
    """What the summary cost, where a model made it."""


class Elision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an `elision` record: outputs, and how much of each is still shown."""

    id: str
    reason: CompactionReason
    cuts: tuple[tuple[int, int], ...]
    """Sequence number and kept bytes of each."""
    tokens_before: int = 0
    tokens_after: int = 0


write_body = msgspec.json.Encoder().encode
read_compaction = msgspec.json.Decoder(Compaction).decode
read_elision = msgspec.json.Decoder(Elision).decode


class RecordHead(msgspec.Struct, frozen=True, gc=False):
    """A record without its body; `upto` is where the part of the log ends that it can speak of."""

    session_id: SessionId
    no: int
    kind: RecordKind
    from_seq: int
    to_seq: int
    undoes: int | None
    upto: int


Name = tuple[SessionId, int]
"""A record's session and number."""


class InForce(msgspec.Struct, frozen=True):
    """Which records of a line of forks count now."""

    hidden: tuple[Span, ...] = ()
    compaction: RecordHead | None = None
    elisions: tuple[RecordHead, ...] = ()
    standing: frozenset[Name] = frozenset()
    """Compactions whose range is still as it was, also those that were undone since."""


def in_force(heads: Sequence[RecordHead]) -> InForce:
    """Judge the records of a log, given oldest first, its ancestors' before its own."""
    undone = {(head.session_id, head.undoes) for head in heads if head.kind == "undo"}
    hidden: list[Span] = []
    compaction: RecordHead | None = None
    elisions: list[RecordHead] = []
    standing: set[Name] = set()
    for place, head in enumerate(heads):
        is_undone = (head.session_id, head.no) in undone
        if head.kind in HIDING and not is_undone:
            hidden.append((head.from_seq, min(head.to_seq, head.upto)))
        elif head.kind == "elision" and not is_undone:
            elisions.append(head)
        elif head.kind == "compaction" and _stands(head, heads[place + 1 :]):
            standing.add((head.session_id, head.no))
            compaction = compaction if is_undone else head
    covered = compaction.to_seq if compaction is not None else 0
    return InForce(
        tuple(merge_spans(hidden)),
        compaction,
        tuple(head for head in elisions if head.to_seq > covered),
        frozenset(standing),
    )


def _stands(head: RecordHead, later: Sequence[RecordHead]) -> bool:
    """Whether the range is still what was summed up: nothing of it was hidden, or came back."""
    if head.to_seq > head.upto:
        return False
    return not any(
        (other.kind in HIDING or other.kind == "undo")
        and other.from_seq <= head.to_seq
        and min(other.to_seq, other.upto) >= max(other.from_seq, head.from_seq)
        for other in later
    )


class Shown(msgspec.Struct, frozen=True):
    """What the records in force say, with their bodies."""

    in_force: InForce
    compaction: Compaction | None = None
    elisions: tuple[Elision, ...] = ()


def show(items: Iterable[StoredItem], records: Shown) -> list[StoredItem]:
    """Return a log as a model may be shown it: compacted, short outputs short, triggers gone.

    `items` are the visible ones behind the compacted range and those that it keeps.
    """
    cuts = {seq: kept for elision in records.elisions for seq, kept in elision.cuts}
    head = records.in_force.compaction
    covered = head.to_seq if head is not None else 0
    shown: list[StoredItem] = []
    behind: list[StoredItem] = []
    for item in items:
        seen = _seen(item, records.in_force, cuts)
        if seen is not None:
            (behind if item.seq > covered else shown).append(seen)
    if head is not None and records.compaction is not None:
        shown.append(_as_message(records.compaction.text, head.session_id, head.to_seq))
    return shown + behind


def _seen(item: StoredItem, records: InForce, cuts: dict[int, int]) -> StoredItem | None:
    """Return one item as it is shown, if it is."""
    if item.kind in NOT_SHOWN or item.body == ERASED_ITEM:
        return None
    if is_ours(item):
        return _expand(item, records)
    return truncate_output(item, cuts[item.seq]) if item.seq in cuts else item


def _as_message(text: str, session_id: str, seq: int) -> StoredItem:
    said = message("user", SUMMARY_OPENING + text)
    return StoredItem(
        session_id, seq, 0, said.kind, None, None, said.fingerprint, False, said.body
    )  # fmt: skip


def truncate_output(item: StoredItem, kept: int) -> StoredItem:
    """Return an output of which only the beginning is shown."""
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


# ── compaction items: a summary that a client can carry ─────────────────────────────────────


class _Carried(msgspec.Struct, omit_defaults=True):
    text: str
    session_id: str = ""
    no: int = 0


class _Item(msgspec.Struct):
    encrypted_content: str | None = None


_read_item = msgspec.json.Decoder(_Item).decode
_read_carried = msgspec.json.Decoder(_Carried).decode


_WRAPPING = 160
"""How many bytes such an item has around its summary, at most."""


def compaction_item(name: str, text: str, record: Name | None = None) -> bytes:
    """Return a `compaction` item of ours: opaque to its client, readable to us.

    One that a session's own record stands behind names it: there the record tells. One that a
    session's log was too short for has the number 0 of it.
    """
    carried = _Carried(text, *record) if record else _Carried(text)
    packed = base64.urlsafe_b64encode(msgspec.json.encode(carried)).decode()
    return msgspec.json.encode(
        {"type": "compaction", "id": name, "encrypted_content": _MARK + packed}
    )


def summary_capacity(size: int) -> int:
    """Return how many bytes of plain text a `compaction` item of so many bytes carries."""
    return max(size - _WRAPPING, 0) * 3 // 4


def is_ours(item: StoredItem) -> bool:
    """Whether an item is a compaction that we made."""
    return item.kind == "compaction" and _carried(item.body) is not None


def carried_text(body: bytes) -> str | None:
    """Return the summary in a `compaction` item of ours; None in anybody else's."""
    carried = _carried(body)
    return carried.text if carried is not None else None


def carried_record(body: bytes) -> Name | None:
    """Return the record that a `compaction` item of ours names; 0 is no record of a session's."""
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
    """Return the summary that an item carries, unless the log itself tells what it sums up."""
    carried = _carried(item.body)
    if carried is None or (carried.session_id, carried.no) in records.standing:
        return None
    return msgspec.structs.replace(
        _as_message(carried.text, item.session_id, item.seq), turn_number=item.turn_number
    )


def expand(body: bytes) -> bytes:
    """Return an item as a model may be shown it, where there is no log: summaries as messages."""
    text = carried_text(body)
    return body if text is None else message("user", SUMMARY_OPENING + text).body
