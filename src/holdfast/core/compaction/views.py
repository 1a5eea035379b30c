"""Compactions as they are listed: what each one did, and whether it is in force."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.core.compaction.records import (
    CompactionRecord,
    Elision,
    heads_of,
    in_force,
    read_compaction,
    read_elision,
)
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session

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
    found: dict[str, CompactionView] = {}
    for record in records:
        if record.body is None or record.kind not in ("compaction", "elision"):
            continue
        made = read_compaction(record.body) if record.kind == "compaction" else None
        elision = read_elision(record.body) if record.kind == "elision" else None
        body = made or elision
        assert body is not None
        is_in_force = force.compaction is not None and force.compaction.no == record.no
        is_in_force = is_in_force or any(head.no == record.no for head in force.elisions)
        status: CompactionStatus = "in_force" if is_in_force else "superseded"
        if record.no in undone:
            status = "undone"
        elif made is not None and (record.session_id, record.no) not in force.standing:
            status = "void"
        before = found.get(body.id)
        found[body.id] = CompactionView(
            id=body.id,
            # A compaction with two records is in force as long as its summary is.
            status=before.status if before is not None else status,
            created_at=record.created_at,
            turn_id=record.turn_id,
            to_seq=record.to_seq if made is not None else before.to_seq if before else None,
            compaction=made or (before.compaction if before else None),
            elision=elision or (before.elision if before else None),
        )
    return list(found.values())
