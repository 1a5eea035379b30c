"""Compute what a model must see of a log, in the simplest way, from durable rows alone."""

from typing import Any, NamedTuple

import msgspec

from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session
from tests.simulation.image import HIDING, Gone, Image

OPENING = "Summary of the conversation so far, of which the earlier part is not shown:\n\n"


class Told(NamedTuple):
    """A record, and the last item that it can refer to here."""

    record: Record
    upto: int

    @property
    def body(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.record.body or b"null")


def told(
    image: Image, session: Session, record_no: int, head_seq: int, gone: Gone | None = None
) -> list[Told]:
    """Return the records of a fork lineage, oldest first, without erased ones."""
    own = [
        Told(record, head_seq)
        for record in image.records.get(session.id, [])
        if record.no <= record_no and not (gone and (session.id, record.no) in gone.summaries)
    ]
    parent = image.sessions.get(session.parent_id or "")
    if parent is None:
        return own
    upto = min(session.parent_seq, head_seq)
    return [*told(image, parent, session.parent_record, upto, gone), *own]


def summaries_of(image: Image, session: Session) -> list[Told]:
    """Return all summaries of a session, in force or not."""
    found = image.records.get(session.id, [])
    return [Told(record, session.head_seq) for record in found if record.kind == "compaction"]


def summary_in_force(records: list[Told]) -> Told | None:
    """Return the newest summary that was not undone and of which nothing was hidden since."""
    undone = {(one.record.session_id, one.record.undoes) for one in records}
    for place in reversed(range(len(records))):
        one = records[place]
        if one.record.kind != "compaction" or one.record.to_seq > one.upto:
            continue
        is_undone = (one.record.session_id, one.record.no) in undone
        if not is_undone and not is_void(one, records[place + 1 :]):
            return one
    return None


def is_void(one: Told, later: list[Told]) -> bool:
    """Whether an item that the summary covers was hidden since."""
    return any(
        other.record.kind in HIDING
        and other.record.from_seq <= min(other.record.to_seq, other.upto)
        and other.record.from_seq <= one.record.to_seq
        for other in later
    )


def shown(
    image: Image, session: Session, record_no: int, head_seq: int, gone: Gone | None = None
) -> list[StoredItem]:
    """Return the items that a model must see: summarized, shortened, without hidden ones.

    `gone` is what had been erased by then.
    """
    records = told(image, session, record_no, head_seq, gone)
    undone = {(one.record.session_id, one.record.undoes) for one in records}
    hidden = image.hidden(session, record_no)
    summary = summary_in_force(records)
    covered = summary.record.to_seq if summary else 0
    kept = set(summary.body.get("keeps", [])) if summary else set()
    cuts: dict[int, int] = {}
    for one in records:
        is_undone = (one.record.session_id, one.record.no) in undone
        if one.record.kind == "elision" and not is_undone and one.record.to_seq > covered:
            cuts.update({seq: left for seq, left in one.body["cuts"] if seq <= one.upto})
    log = [
        _cut(item, cuts[item.seq]) if item.seq in cuts else item
        for item in image.log(session, head_seq)
        if item.seq not in hidden and not (gone and (item.session_id, item.seq) in gone.items)
    ]
    head = [item for item in log if item.seq <= covered and item.seq in kept]
    middle = [_summary(summary.body["text"], session.id)] if summary else []
    return [*head, *middle, *(item for item in log if item.seq > covered)]


def _summary(text: str, session_id: str) -> StoredItem:
    part = {"type": "input_text", "text": OPENING + text}
    body = msgspec.json.encode({"type": "message", "role": "user", "content": [part]})
    return StoredItem(session_id, 0, 0, "message", None, None, b"", False, body)


def _cut(item: StoredItem, kept: int) -> StoredItem:
    value = msgspec.json.decode(item.body)
    text = value["output"]
    note = f"[{len(text) - kept} bytes of this output are left out to save room]"
    output = f"{text[:kept]}\n{note}" if kept else note
    short = {"type": value["type"], "call_id": value["call_id"], "output": output}
    return msgspec.structs.replace(item, body=msgspec.json.encode(short))
