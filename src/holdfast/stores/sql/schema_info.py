"""The result of inspecting a database before it is opened as a store."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.core.errors import StoreError
from holdfast.stores.sql import migrations

POSTGRES_SETTINGS = (
    "fsync", "full_page_writes", "synchronous_commit", "transaction_read_only", "in_hot_standby",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """Why acknowledged turns may be lost, or none be acknowledged; `code` is that of a finding."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """What a primary says about its standbys."""

    synchronous_commit: str
    standby_names: str
    """`synchronous_standby_names`: which standbys a commit waits for."""
    standbys: tuple[tuple[str, str | None], ...] = ()
    """The attached ones, with their `sync_state`; None if this role may not read it."""

    def risk(self) -> Risk | None:
        """Return what endangers commits; of several consequences of one cause, the cause alone."""
        if self.standby_names and self.synchronous_commit in ("local", "remote_write"):
            waits = (
                "do not wait" if self.synchronous_commit == "local" else "do not wait for a disk"
            )
            detail = f"synchronous_commit is {self.synchronous_commit}: commits {waits}"
            return Risk(code="durability_weak", detail=f"{detail} of synchronous_standby_names")
        if not self.standby_names and self.standbys:
            names = ", ".join(sorted({name or "(name not shown)" for name, _ in self.standbys}))
            detail = f"synchronous_standby_names is empty, and standbys are attached: {names}"
            return Risk(code="replication_asynchronous", detail=detail)
        states = {state for _, state in self.standbys}
        if self.standby_names and not states & {"sync", "quorum", None}:
            detail = f"none of synchronous_standby_names ({self.standby_names}) is attached"
            return Risk(code="replication_stalled", detail=detail)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInspection:
    """The findings; None if something cannot be read or does not exist."""

    kind: str
    exists: bool = True
    pending: tuple[str, ...] = ()
    """Migrations that the store does not have yet."""
    refusal: str | None = None
    """Why this version cannot use the store's schema; None if it can."""
    is_first_schema: bool = False
    """Whether the store has the schema before the log, which no release wrote."""
    is_foreign: bool = False
    """Whether the tables are those of another application."""
    missing: tuple[str, ...] = ()
    """Tables and columns that an up-to-date schema has and this one lacks."""
    damage: tuple[str, ...] = ()
    is_verified: bool = True
    """Whether the structure of the file was checked, which takes long if it is large."""
    settings: dict[str, str] = field(default_factory=dict)
    is_standby_wanted: bool = False
    """Whether the URL asks for a standby."""
    replication: Replication | None = None
    clock_ahead_seconds: float | None = None
    """How far the database's clock is ahead of this machine's."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    wal_bytes: int | None = None
    path: str | None = None

    @property
    def is_bare(self) -> bool:
        """Whether no migration was applied."""
        return len(self.pending) == len(migrations.all_migrations())


def missing_from(actual: dict[str, set[str]], expected: dict[str, set[str]]) -> tuple[str, ...]:
    """Return the names of the tables and columns that a schema lacks."""
    lacking: list[str] = []
    for table, columns in sorted(expected.items()):
        if table not in actual:
            lacking.append(table)
        else:
            lacking += [f"{table}.{column}" for column in sorted(columns - actual[table])]
    return tuple(lacking)


def steps_left(applied: Iterable[tuple[int, str]]) -> tuple[tuple[str, ...], str | None]:
    """Return the migrations that a schema lacks, and why this version cannot use it, or None."""
    try:
        pending = migrations.pending(applied, migrations.all_migrations())
    except StoreError as exc:
        return (), exc.message
    return tuple(f"{step.version:04}_{step.name}" for step in pending), None
