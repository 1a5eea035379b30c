"""The durable state, read back as plain rows, with simple queries."""

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import Event, IdempotencyRow
from tests.simulation.disk import Disk

HIDING = {"rewind", "rollback", "retry", "hide", "pop", "move"}


@dataclass(frozen=True)
class Image:
    """Every row of the store."""

    sessions: dict[str, Session]
    turns: dict[str, Turn]
    runs: dict[str, Run]
    items: dict[str, list[StoredItem]]
    records: dict[str, list[Record]]
    events: dict[str, list[Event]]
    idempotency: list[IdempotencyRow]
    provider_state: list[tuple[Any, ...]]
    workers: list[str]
    touched: list[tuple[str, str, int]]

    def log(self, session: Session, upto: int | None = None) -> list[StoredItem]:
        """Return a session's whole log, its parents' part first."""
        upto = session.head_seq if upto is None else upto
        own = [item for item in self.items.get(session.id, []) if item.seq <= upto]
        parent = self.sessions.get(session.parent_id or "")
        if parent is None:
            return own
        return [*self.log(parent, min(upto, session.parent_seq)), *own]

    def hidden(self, session: Session, upto_record: int | None = None) -> set[int]:
        """Return the sequence numbers that records hide, by the simplest computation."""
        last = session.record_no if upto_record is None else upto_record
        found: set[int] = set()
        for record in self.records.get(session.id, []):
            if record.no <= last and record.kind in HIDING:
                found.update(range(record.from_seq, record.to_seq + 1))
        parent = self.sessions.get(session.parent_id or "")
        if parent is not None:
            inherited = self.hidden(parent, session.parent_record)
            found.update(seq for seq in inherited if seq <= session.parent_seq)
        return found

    def visible(self, session: Session) -> list[StoredItem]:
        """Return the items that a model may see."""
        hidden = self.hidden(session)
        return [item for item in self.log(session) if item.seq not in hidden]

    def turns_of(self, session: Session) -> list[Turn]:
        """Return a session's turns by number."""
        found = [turn for turn in self.turns.values() if turn.session_id == session.id]
        return sorted(found, key=lambda turn: turn.number)

    def runs_of(self, session_id: str) -> list[Run]:
        """Return a session's runs by epoch."""
        found = [run for run in self.runs.values() if run.session_id == session_id]
        return sorted(found, key=lambda run: run.epoch)

    def digest(self) -> str:
        """Return a short hash of the durable state."""
        parts = [
            self.sessions, self.turns, self.runs, self.items, self.records, self.events,
            self.idempotency, self.workers,
        ]  # fmt: skip
        encoded = msgspec.json.encode(parts, order="deterministic")
        return hashlib.blake2b(encoded, digest_size=12).hexdigest()


def read_image(disk: Disk) -> Image:
    """Return every row, as it would be found after a crash now."""
    tables = disk.tables()
    idempotency = disk.rows(
        f"select {', '.join(IdempotencyRow.__struct_fields__)} from idempotency "
        "order by tenant, key"
    )
    return Image(
        sessions=tables.sessions,
        turns=dict(sorted(tables.turns.items())),
        runs=dict(sorted(tables.runs.items())),
        items=tables.items,
        records=tables.records,
        events=tables.events,
        idempotency=[IdempotencyRow(*row) for row in idempotency],
        provider_state=disk.rows("select session_id, slot, value, covers_seq from provider_state"),
        workers=[row[0] for row in disk.rows("select id from workers order by id")],
        touched=disk.rows("select what, session_id, at from sim_touched"),
    )
