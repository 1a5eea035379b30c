"""The only file of the row gate that knows the store: its commands, their fields, its tables.

A step of a sequence is neutral data: a verb, who does it (`by`), and what it is about. This module
makes the store's command of it, submits it, and returns the outcome as data. Whoever changes the
commands changes this file, and neither the sequences nor what is expected of them.
"""

import asyncio
import json
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import time
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import asyncpg
import msgspec
from msgspec.structs import replace

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import WorkerId
from holdfast.core.model.channels import PairingRow
from holdfast.core.model.delivery import OutboxRow
from holdfast.core.model.import_rows import Imported
from holdfast.core.model.items import NewItem, message, read_item
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.core.model.schedule import ScheduleRow
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Fence, Run, Turn
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import ApiKeyRow, CompletionRow
from holdfast.core.transaction.commands import Command
from holdfast.stores.open import open_store, sqlite_path
from holdfast.stores.postgres import open_postgres
from holdfast.stores.sql.optimistic.plain_turns import PLANNERS
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.clock import ManualClock
from tests.freeze.values import Data, Shown, plain

VERBS: dict[str, type[Command[Any]]] = {
    "accept": cmd.Accept, "start": cmd.Claim, "extend": cmd.Extend, "finish": cmd.Finish,
    "cancel": cmd.Cancel, "ask to stop": cmd.RequestStop, "settle stop": cmd.SettleStop,
    "heal": cmd.RecordHeal, "mark delivered": cmd.MarkDelivered,
    "drop response": cmd.DropResponse, "annotate completion": cmd.AnnotateCompletion,
    "append": cmd.Append, "append batch": cmd.AppendBatch, "pop": cmd.Pop, "hide": cmd.Hide,
    "compact": cmd.Compact, "undo compaction": cmd.UndoCompaction,
    "reserve": cmd.Reserve, "reset": cmd.Reset, "restore": cmd.Restore, "fork": cmd.Fork,
    "delete": cmd.Delete, "prune": cmd.Prune, "import": cmd.Import, "annotate": cmd.Annotate,
    "forget state": cmd.ForgetState, "add api key": cmd.AddApiKey,
    "revoke api key": cmd.RevokeApiKey,
    "renew": cmd.Renew, "expire worker": cmd.ExpireWorker, "recover": cmd.Recover,
    "save schedule": cmd.SaveSchedule, "pause schedule": cmd.PauseSchedule,
    "delete schedule": cmd.DeleteSchedule, "skip run": cmd.SkipRun,
    "settle run": cmd.SettleRun, "forget run": cmd.ForgetRun,
    "open placeholder": cmd.OpenPlaceholder, "keep placeholder": cmd.KeepPlaceholder,
    "queue messages": cmd.QueueMessages, "queue facts": cmd.QueueFacts,
    "claim deliveries": cmd.ClaimDeliveries, "settle delivery": cmd.SettleDelivery,
    "revise delivery": cmd.ReviseDelivery, "prune outbox": cmd.PruneOutbox,
    "stop turns": cmd.StopTurns, "edit waiting": cmd.EditWaiting,
    "request pairing": cmd.RequestPairing, "approve pairing": cmd.ApprovePairing,
    "revoke pairing": cmd.RevokePairing, "hold channel": cmd.HoldChannel,
    "release channel": cmd.ReleaseChannel, "remember chat": cmd.RememberChat,
    "dead letter": cmd.DeadLetterUpdate, "count bot turn": cmd.CountBotTurn,
    "forget bot turns": cmd.ForgetBotTurns, "note receiver": cmd.NoteReceiver,
}  # fmt: skip
"""The verb of every command but those of followers: `index` makes one of what was read."""

OUTCOMES: dict[type, str] = {
    cmd.Started: "started", cmd.Queued: "queued", cmd.Repeated: "repeated", cmd.Ended: "ended",
    cmd.Appended: "appended", cmd.Popped: "popped", cmd.Recovered: "recovered",
    Session: "session", Turn: "turn", Imported: "imported", CompletionRow: "completion",
    ApiKeyRow: "api key", ScheduleRow: "schedule", OutboxRow: "message", PairingRow: "pairing",
}  # fmt: skip

OUTCOMES_OF_VERBS: dict[str, tuple[str, ...]] = {
    "accept": (
        "queued",
        "repeated",
        "started",
        "refused: approval_not_found",
        "refused: comparison_needed",
        "refused: idempotency_key_reused",
        "refused: lane_full",
        "refused: schedule_changed",
        "refused: session_busy",
        "refused: session_changed",
        "refused: session_deleted",
        "refused: session_moved",
        "refused: session_not_found",
        "refused: session_retired",
        "refused: storage_full",
        "refused: tenant_full",
    ),
    "start": (
        "queued",
        "started",
        "refused: run_fenced",
        "refused: session_deleted",
        "refused: turn_cancelled",
        "refused: turn_interrupted",
        "refused: turn_not_found",
    ),
    "extend": (
        "session",
        "refused: idempotency_key_reused",
        "refused: run_fenced",
    ),
    "finish": (
        "ended",
        "refused: run_fenced",
    ),
    "cancel": (
        "turn",
        "refused: turn_not_found",
    ),
    "ask to stop": (
        "false",
        "true",
    ),
    "settle stop": (
        "false",
        "true",
    ),
    "heal": (
        "session",
        "refused: run_fenced",
    ),
    "mark delivered": ("null",),
    "drop response": (
        "true",
        "refused: turn_not_found",
    ),
    "annotate completion": (
        "completion",
        "refused: completion_not_found",
    ),
    "append": (
        "appended",
        "refused: idempotency_key_reused",
        "refused: session_busy",
        "refused: session_deleted",
        "refused: session_not_found",
        "refused: session_retired",
        "refused: storage_full",
    ),
    "append batch": (
        "appended",
        "refused: idempotency_key_reused",
        "refused: session_busy",
        "refused: session_changed",
        "refused: session_deleted",
        "refused: session_moved",
        "refused: session_not_found",
        "refused: storage_full",
        "refused: turn_not_found",
    ),
    "pop": (
        "popped",
        "refused: session_not_found",
    ),
    "hide": (
        "session",
        "refused: item_not_found",
        "refused: session_not_found",
    ),
    "compact": (
        "session",
        "refused: item_not_found",
        "refused: run_fenced",
        "refused: session_moved",
    ),
    "undo compaction": (
        "session",
        "refused: compaction_not_found",
        "refused: session_not_found",
    ),
    "reserve": ("session",),
    "reset": (
        "session",
        "refused: idempotency_key_reused",
        "refused: session_changed",
        "refused: session_deleted",
        "refused: session_not_found",
        "refused: session_not_keyed",
    ),
    "restore": (
        "session",
        "refused: session_not_found",
        "refused: session_not_keyed",
    ),
    "fork": (
        "session",
        "refused: idempotency_key_reused",
        "refused: item_not_found",
        "refused: session_deleted",
        "refused: session_not_found",
    ),
    "delete": (
        "session",
        "refused: session_busy",
        "refused: session_has_forks",
        "refused: session_not_found",
    ),
    "prune": ("false",),
    "import": ("imported",),
    "annotate": (
        "session",
        "refused: session_not_found",
    ),
    "forget state": (
        "session",
        "refused: session_busy",
        "refused: session_not_found",
    ),
    "add api key": ("api key",),
    "revoke api key": (
        "api key",
        "refused: api_key_not_found",
    ),
    "renew": (
        "a number",
        "refused: run_fenced",
    ),
    "expire worker": (
        "false",
        "true",
    ),
    "recover": (
        "recovered",
        "refused: session_not_found",
    ),
    "save schedule": ("schedule",),
    "pause schedule": (
        "schedule",
        "refused: schedule_not_found",
    ),
    "delete schedule": (
        "false",
        "true",
    ),
    "skip run": (
        "false",
        "true",
    ),
    "settle run": (
        "null",
        "schedule",
    ),
    "forget run": ("null",),
    "open placeholder": (
        "message",
        "refused: run_fenced",
    ),
    "keep placeholder": (
        "false",
        "true",
    ),
    "queue messages": (
        "false",
        "true",
        "refused: idempotency_key_reused",
    ),
    "queue facts": (
        "false",
        "true",
    ),
    "claim deliveries": ("messages",),
    "settle delivery": (
        "message",
        "null",
    ),
    "revise delivery": (
        "message",
        "refused: message_not_found",
        "refused: message_settled",
    ),
    "prune outbox": ("false",),
    "stop turns": ("a number",),
    "edit waiting": (
        "false",
        "null",
        "true",
    ),
    "request pairing": ("pairing",),
    "approve pairing": (
        "pairing",
        "refused: pairing_not_found",
    ),
    "revoke pairing": (
        "false",
        "true",
    ),
    "hold channel": (
        "false",
        "true",
    ),
    "release channel": ("null",),
    "remember chat": ("null",),
    "dead letter": ("null",),
    "count bot turn": (
        "false",
        "true",
    ),
    "forget bot turns": ("null",),
    "note receiver": ("null",),
    "index": (
        "false",
        "true",
    ),
}
"""Every outcome that a verb has in some sequence: a result, a value, or the code of a refusal."""

ALONE = frozenset({"enlist", "dismiss", "advance", "set clock", "read backlog", "index"})
"""Verbs that are no commands, or depend on what is stored: a batch ends before them."""
_IDENTIFIED: dict[type, str] = {Session: "session", Turn: "turn", Run: "run"}
_BYTES = frozenset(
    {
        "request", "body_hash", "metadata", "hash", "spec", "result", "heals", "history_hash",
        "value", "content", "body", "fingerprint", "caller", "late", "compaction_body",
    }
)  # fmt: skip
_ITEM_LISTS = frozenset({"items", "partial"})
_HIDDEN_TABLES = frozenset({"schema_versions", "search_text"})
_SHADOWS = ("search_text_", "sqlite_")
"""Tables that the database keeps for itself, and those of its full-text index."""


def all_commands() -> set[str]:
    """Return the verb of every class of commands."""
    kinds = [each for each in vars(cmd).values() if isinstance(each, type)]
    commands = {each for each in kinds if issubclass(each, Command) and each is not Command}
    assert set(VERBS.values()) == commands - {cmd.IndexLog, cmd.SumUsage}
    return {*VERBS, "index"}


def verb_of(step: Mapping[str, Data]) -> str:
    """Return the verb of a step."""
    return str(step["do"])


class SqliteStores:
    """Stores on a new file each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    @asynccontextmanager
    async def empty(self, processes: int, *, is_cached: bool) -> "AsyncIterator[PlayedStore]":
        """Open an empty store as that many processes do."""
        template = self._folder / "template.db"
        if not template.exists():
            await (await open_store(f"sqlite:///{template}", clock=ManualClock())).close()
        self._count += 1
        path, clock = self._folder / f"{self._count}.db", ManualClock()
        shutil.copy(template, path)
        stores = [await open_store(f"sqlite:///{path}", clock=clock) for _ in range(processes)]
        try:
            with nullcontext() if is_cached else _caches_off(stores):
                yield PlayedStore(f"sqlite:///{path}", stores, clock)
        finally:
            for store in stores:
                await store.close()

    async def close(self) -> None:
        """Do nothing: the folder's owner deletes it."""


class PostgresStores:
    """Stores of one database that stay open; it is emptied, and they forget it, each time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clock = ManualClock()
        self._start = self._clock.now()
        self._stores: list[SqlStore] = []
        self._cleaner: asyncpg.Connection | None = None

    @asynccontextmanager
    async def empty(self, processes: int, *, is_cached: bool) -> "AsyncIterator[PlayedStore]":
        """Empty the store, as that many processes see it."""
        self._clock.set(self._start)
        if self._cleaner is None:
            self._cleaner = await asyncpg.connect(self._url)
        await self._cleaner.execute(_EMPTY)
        while len(self._stores) < processes:
            self._stores.append(await open_postgres(self._url, clock=self._clock))
        for store in self._stores:
            store._driver._lanes.clear()  # type: ignore[attr-defined]  # of this driver
            store._transcripts.clear()
        stores = self._stores[:processes]
        played = PlayedStore(self._url, stores, self._clock)
        with nullcontext() if is_cached else _caches_off(stores):
            yield played
        await played.dismiss_all()

    async def close(self) -> None:
        """Close all connections."""
        for store in self._stores:
            await store.close()
        if self._cleaner is not None:
            await self._cleaner.close()


_ALL_VISIBLE = "select coalesce(max(txid), 0) < (select txid from feed_horizon) from log"
_EMPTY = """
set session_replication_role = replica;
do $$
declare name text;
begin
  for name in select tablename from pg_tables
      where schemaname = 'public' and tablename <> 'schema_versions' loop
    execute format('delete from %I', name);
  end loop;
  insert into cursors (view, pos, txid) values ('search', 0, 0);
end $$;
"""


@contextmanager
def _caches_off(stores: Sequence[SqlStore]) -> Iterator[None]:
    """Decide from rows that are read for each command, and cache no transcript."""
    planners = dict(PLANNERS)
    PLANNERS.clear()
    for store in stores:
        store.limit_cache(0)
    try:
        yield
    finally:
        PLANNERS.update(planners)
        for store in stores:
            store.limit_cache(CACHE_BYTES)


@dataclass
class Known:
    """What steps refer to by name: the right of a run to write, and what a batch returned."""

    fences: dict[str, Fence] = field(default_factory=dict)
    appended: dict[str, cmd.Appended] = field(default_factory=dict)


class PlayedStore:
    """A store, opened by up to two processes' worth of callers, that a sequence is played on."""

    def __init__(self, url: str, stores: Sequence[SqlStore], clock: ManualClock) -> None:
        self.url = url
        self._stores = stores
        self._clock = clock
        self._workers: list[tuple[SqlStore, WorkerId]] = []
        self._backlogs: dict[str, Command[Any]] = {}
        self._commits_before = self._shared()
        self.known = Known()
        self._shown = Shown()

    async def dismiss_all(self) -> None:
        """Let every worker that is still enlisted say goodbye."""
        for store, worker in self._workers:
            await store.dismiss(worker)

    def store_of(self, index: int) -> SqlStore:
        """Return the store of a process; where there are fewer, several share one."""
        return self._stores[index % len(self._stores)]

    async def play(self, step: Mapping[str, Data], index: int) -> Data:
        """Carry out a step in a process, and return its outcome as data."""
        store, verb = self.store_of(index), step["do"]
        if verb in ALONE:
            return await self._play_alone(store, step)
        return self._told(step, await _outcome(store, self.command(step)))

    async def play_together(self, steps: Sequence[Mapping[str, Data]]) -> list[Data]:
        """Submit the commands of steps at once, so that they share a commit."""
        store = self._stores[0]
        commands = [self.command(step) for step in steps]
        outcomes = await asyncio.gather(*(_outcome(store, command) for command in commands))
        told = zip(steps, outcomes, strict=True)
        return [self._told(step, outcome) for step, outcome in told]

    @property
    def shared_commits(self) -> int:
        """How many commits had more than one command."""
        return self._shared() - self._commits_before

    def _shared(self) -> int:
        return sum(sum(store.commits.by_commands[1:]) for store in self._stores)

    async def rows(self) -> dict[str, list[dict[str, Data]]]:
        """Return every row of every table, by the table's name."""
        if self.url.startswith("postgresql:"):
            tables = await _postgres_tables(self.url)
        else:
            tables = _sqlite_tables(sqlite_path(self.url))
        return _comparable(tables)

    # ── commands ────────────────────────────────────────────────────────────────────────────

    def command(self, step: Mapping[str, Data]) -> Command[Any]:
        """Return the command of a step."""
        given = {name: each for name, each in step.items() if name not in ("do", "by")}
        known, run = given.pop("known", None), given.pop("run", None)
        values = _values(given)
        if run is not None:
            values["fence"] = self.known.fences[run]
        kind = VERBS[step["do"]]
        command: Command[Any] = msgspec.convert(
            values, kind, builtin_types=(bytes,), from_attributes=True, strict=True
        )
        if known is not None and isinstance(command, cmd.AppendBatch):
            command = replace(command, known=self.known.appended[known])
        return command

    async def _play_alone(self, store: SqlStore, step: Mapping[str, Data]) -> Data:
        verb = step["do"]
        if verb == "advance":
            self._clock.advance(step["seconds"])
        elif verb == "set clock":
            self._clock.set(step["now"])
        elif verb == "enlist":
            await store.enlist(WorkerId(step["worker"]), step["lease_seconds"])
            self._workers.append((store, WorkerId(step["worker"])))
        elif verb == "dismiss":
            await store.dismiss(WorkerId(step["worker"]))
        elif verb == "read backlog":
            await self._until_entries_are_visible()
            backlog = await store.search.read_backlog(WorkerId(step["worker"]), step["limit"])
            assert backlog is not None, "nothing is left to index"
            self._backlogs[step["as"]] = backlog
        else:
            return self._told(step, await _outcome(store, self._backlogs[step["backlog"]]))
        return None

    async def _until_entries_are_visible(self) -> None:
        """Wait until followers see all entries: on PostgreSQL any open transaction hides some."""
        if not self.url.startswith("postgresql:"):
            return
        connection = await asyncpg.connect(self.url)
        try:
            while True:
                if await connection.fetchval(_ALL_VISIBLE):
                    return
                await asyncio.sleep(0.01)
        finally:
            await connection.close()

    # ── outcomes ────────────────────────────────────────────────────────────────────────────

    def _told(self, step: Mapping[str, Data], outcome: object) -> Data:
        """Return an outcome as data, and remember what later steps refer to."""
        if isinstance(outcome, HoldfastError):
            facts = {name: each for name, each in vars(outcome).items() if each is not None}
            return {"refused": outcome.code, **plain(facts)}
        self._remember(outcome)
        if step["do"] == "extend" and "items" not in step and isinstance(outcome, Session):
            # Saving unfinished output adds no entry. Therefore the session is the one that this
            # process saw last, which another process may have changed.
            return {"session": {"id": outcome.id}}
        if isinstance(outcome, cmd.Appended) and "turn_id" in step:
            self.known.appended[f"{step['turn_id']}/{step.get('ordinal', 0)}"] = outcome
        if isinstance(outcome, tuple):
            return {"messages": [self._shown_value(each) for each in outcome]}
        if type(outcome) in OUTCOMES:
            return {OUTCOMES[type(outcome)]: self._shown_value(outcome)}
        return plain(outcome)

    def _remember(self, outcome: object) -> None:
        if isinstance(outcome, cmd.Started):
            self.known.fences[outcome.run.id] = outcome.fence
        elif isinstance(outcome, cmd.Ended) and outcome.successor is not None:
            self.known.fences[outcome.successor.run.id] = outcome.successor.fence

    def _shown_value(self, value: object) -> Data:
        """Return a value as data; of sessions, turns and runs only what has changed."""
        if isinstance(value, cmd.Ended):
            # Which retries were answered is kept beside the log: a process knows only its own.
            value = replace(value, turn=replace(value.turn, retry_claim=0, delivered_at=None))
        told = plain(value)
        kind = _IDENTIFIED.get(type(value))
        if kind is not None:
            return self._shown.changes(kind, told)
        if isinstance(value, msgspec.Struct) and isinstance(told, dict):
            for name in told:
                held = getattr(value, name)
                if isinstance(held, msgspec.Struct):
                    told[name] = self._shown_value(held)
        return told


async def _outcome(store: SqlStore, command: Command[Any]) -> object:
    try:
        return await store.submit(command)
    except HoldfastError as refusal:
        return refusal


# ── values of commands ──────────────────────────────────────────────────────────────────────


def _values(given: Mapping[str, Data]) -> dict[str, Any]:
    return {name: _value(name, each) for name, each in given.items()}


def _value(name: str, given: Data) -> Any:
    if name in _BYTES and given is not None:
        return _bytes(given)
    if name in _ITEM_LISTS and isinstance(given, list) and all(map(_is_item, given)):
        return tuple(_item(each) for each in given)
    if name == "reset":
        return _policy(given)
    if isinstance(given, dict):
        return _values(given)
    if isinstance(given, list):
        return [_value("", each) for each in given]
    return given


def _bytes(given: Data) -> bytes:
    return bytes.fromhex(given["hex"]) if isinstance(given, dict) else str(given).encode()


def _is_item(given: Data) -> bool:
    return isinstance(given, dict) and bool(given.keys() & {"user", "assistant", "item"})


def _item(given: Mapping[str, Data]) -> NewItem:
    """Return an item: a message of somebody, or any JSON object as `item`."""
    if "item" in given:
        held = given["item"]
        item = read_item(held.encode() if isinstance(held, str) else json.dumps(held).encode())
    else:
        role = "user" if "user" in given else "assistant"
        item = message(role, given[role])
    return replace(item, is_instruction=given.get("is_instruction", False))


def _policy(given: Mapping[str, Data]) -> ResetPolicy:
    values = dict(given)
    if "at" in values:
        values["at"] = time.fromisoformat(values["at"])
    if "zone" in values:
        values["zone"] = ZoneInfo(values["zone"])
    return ResetPolicy(**values)


# ── rows ────────────────────────────────────────────────────────────────────────────────────

_BLOCK = re.compile(r"\W*b\d+")
CACHE_BYTES = 16 * 1024 * 1024
_Tables = dict[str, list[dict[str, Any]]]


def _is_told(table: str) -> bool:
    return table not in _HIDDEN_TABLES and not table.startswith(_SHADOWS)


def _sqlite_tables(path: Path) -> _Tables:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        names = connection.execute("select name from sqlite_master where type = 'table'")
        tables = [name for (name,) in names.fetchall() if _is_told(name)]
        return {
            name: [dict(row) for row in connection.execute(f'select * from "{name}"')]
            for name in tables
        }
    finally:
        connection.close()


async def _postgres_tables(url: str) -> _Tables:
    connection = await asyncpg.connect(url)
    try:
        names = await connection.fetch(
            "select tablename from pg_tables where schemaname = current_schema()"
        )
        return {
            name: [dict(row) for row in await connection.fetch(f'select * from "{name}"')]
            for (name,) in names
            if _is_told(name)
        }
    finally:
        await connection.close()


def _comparable(tables: _Tables) -> dict[str, list[dict[str, Data]]]:
    """Return rows as data that does not depend on the database.

    Positions are replaced by their rank, transaction ids by an asterisk. Columns without a value
    are left out.
    """
    places = sorted(row["pos"] for row in tables["log"])
    rank = {place: number for number, place in enumerate(places, 1)}
    sent = sorted(row["pos"] for row in tables["outbox"])
    sent_rank = {place: number for number, place in enumerate(sent, 1)}
    told: dict[str, list[dict[str, Data]]] = {}
    for name in sorted(tables):
        ranks = sent_rank if name == "outbox" else rank
        rows = [_row(row, ranks) for row in tables[name]]
        if rows:
            told[name] = sorted(rows, key=_order)
    return told


def _order(row: Mapping[str, Data]) -> tuple[Any, ...]:
    return row.get("pos", 0), json.dumps(row, sort_keys=True)


def _row(row: Mapping[str, Any], ranks: Mapping[int, int]) -> dict[str, Data]:
    told = {name: plain(each) for name, each in row.items() if each is not None}
    if "pos" in told:
        told["pos"] = ranks.get(told["pos"], told["pos"])
    if "txid" in told:
        told["txid"] = "*"
    if "terms" in told:
        told["terms"] = sorted(_terms(told["terms"]))
    return told


def _terms(held: str) -> set[str]:
    """Return the words of an index entry, without what only PostgreSQL keeps: places, a block."""
    words = {re.sub(r":[\d,]+$", "", word) for word in held.replace("'", "").split()}
    return {word for word in words if not _BLOCK.fullmatch(word)}
