"""Lock the rows that a batch needs, in a fixed order, before anything is read.

Every process locks sessions in the order of their ids, so no two of them deadlock, and the facts of
a decision cannot change while it is made. The version in each row is still the fence: it detects a
session that takes its key between the look-up and the lock.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import asyncpg

from holdfast.core.model.turn import Fence
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.commands import Command
from holdfast.stores.postgres.clock import READ_CLOCK
from holdfast.stores.sql.statements import IS_INDEXED


class Name(NamedTuple):
    """A reference of a command to rows; `kind` is one of those in `LOCK_SESSIONS`."""

    kind: str
    first: str
    second: str = ""


# Sessions by id, turn, key or idempotency key; the live session of the same key as one that is to
# be retired or restored; and all descendants of one that is to be erased. The time of the last row
# is read after the locks. Subqueries with an offset are read in the order in which they stand.
LOCK_SESSIONS = f"""
with recursive below(root, id) as (
  select r.id, r.id from unnest($8::text[] collate "C") as r(id)
  union select b.root, c.id from below b cross join lateral
    (select id from sessions where parent_id = b.id and deleted_at is null offset 0) c
), named(kind, first, second, id) as (
  select 'session', s.id, '', s.id from unnest($1::text[]) as s(id)
  union select 'turn', l.turn, '', s.id from log l join sessions s on s.no = l.session
    where l.turn = any($2::text[]) and {IS_INDEXED.format(entry="l")}
  union select 'key', s.tenant, s.key, s.id
    from unnest($3::text[], $4::text[]) as k(tenant, key) cross join lateral (select * from sessions
      where tenant = k.tenant and key = k.key and is_live = 1 offset 0) s
  union select 'repeat', i.tenant, i.key, s.id
    from unnest($5::text[], $6::text[]) as r(tenant, key)
    cross join lateral (select * from idempotency
      where tenant = r.tenant and key = r.key offset 0) i
    cross join lateral (select t.session from log t where t.turn = i.turn_id
      and {IS_INDEXED.format(entry="t")} offset 0) t
    join sessions s on s.no = t.session
  union select 'rival', s.id, '', r.id from sessions s cross join lateral (select id from sessions
      where tenant = s.tenant and key = s.key and is_live = 1 offset 0) r
    where s.id = any($7::text[])
  union select 'below', b.root, '', b.id from below b
), locked as (
  select id from sessions where id in (select id from named) order by id for update
)
select kind, first, second, id, extract(epoch from clock_timestamp())::double precision from named
union all
select 'locked', '', '', id, extract(epoch from clock_timestamp())::double precision from locked
"""
# The same if every session is named by its id: about a tenth of the time.
LOCK_SESSIONS_BY_ID = """
with locked as (
  select id from sessions where id = any($1::text[]) order by id for update
) select 'session', id, '', id, extract(epoch from clock_timestamp())::double precision from locked
"""
LOCK_WORKERS = "select 1 from workers where id = any($1::text[]) order by id for update"

_KINDS = ("session", "turn", "key", "repeat", "rival", "below")


class Locked:
    """The locked sessions, and the time after locking."""

    def __init__(self, rows: Sequence[asyncpg.Record], now: float) -> None:
        self.now = now
        self._sessions: dict[Name, list[Name]] = {}
        for kind, first, second, session_id, _ in rows:
            sessions = self._sessions.setdefault(Name(kind, first, second), [])
            sessions.append(Name("session", session_id))

    def sessions_of(self, name: Name) -> list[Name]:
        """Return the sessions that a name refers to."""
        return self._sessions.get(name, [])


def lock_keys(command: Command[Any]) -> list[Name]:
    """Return the names of the rows that a command needs."""
    match command:
        case cmd.Accept() | cmd.Append():
            return list(_names_of_arrival(command))
        case cmd.AppendBatch():
            names = [*_names_of_arrival(command), Name("turn", command.turn_id)]
            if command.known is not None:
                names.append(Name("session", command.known.session.id))
            return names
        case cmd.Reserve(key=str(key)) | cmd.StopTurns(key=key) | cmd.EditWaiting(key=key):
            return [Name("key", command.tenant, key), *_names_of_repeat(command)]
        case cmd.Import():
            keys = [Name("key", command.tenant, command.key)] if command.key is not None else []
            return [Name("session", command.session_id), *keys]
        case cmd.MarkDelivered() | cmd.QueueFacts():
            return _names_of_many(command)
        case cmd.Delete() | cmd.Hide(erase=True):
            return [Name("below", command.session_id)]
        case cmd.Reset() | cmd.Restore():
            rivals = [Name("session", command.session_id), Name("rival", command.session_id)]
            return [*rivals, *_names_of_repeat(command)]
        case cmd.Renew() | cmd.ExpireWorker() | cmd.Prune() | cmd.IndexLog() | cmd.SumUsage():
            return [Name("worker", command.worker)]
        case _:
            return list(_names_in_fields(command))


def _names_of_many(command: cmd.MarkDelivered | cmd.QueueFacts) -> list[Name]:
    if isinstance(command, cmd.MarkDelivered):
        return [Name("turn", turn_id) for turn_id, _ in command.steps]
    # Lock these sessions, so that nothing about one is written after its erasure.
    ids = {fact.session_id for fact in command.facts if fact.session_id}
    return [Name("any", "QueueFacts"), *(Name("session", session_id) for session_id in ids)]


def _names_of_arrival(
    command: cmd.Accept | cmd.Append | cmd.AppendBatch,
) -> Iterable[Name]:
    if command.session_id is not None:
        yield Name("session", command.session_id)
    elif command.key is not None:
        yield Name("key", command.tenant, command.key)
    yield from _names_of_repeat(command)
    if command.again:
        yield Name("turn", command.turn_id)


def _names_of_repeat(command: Command[Any]) -> Iterable[Name]:
    key: str | None = getattr(command, "idempotency_key", None)
    if key is not None:
        yield Name("repeat", getattr(command, "tenant", ""), key)


def _names_in_fields(command: Command[Any]) -> Iterable[Name]:
    """Yield the names of any other command: its fence, its session id or its turn id."""
    fence: Fence | None = getattr(command, "fence", None)
    if fence is not None:
        yield Name("session", fence.session_id)
    elif hasattr(command, "session_id"):
        yield Name("session", command.session_id)
    elif hasattr(command, "turn_id"):
        yield Name("turn", command.turn_id)
    else:
        yield Name("any", type(command).__name__)
    yield from _names_of_repeat(command)


async def lock(connection: asyncpg.Connection, commands: Sequence[Command[Any]]) -> Locked:
    """Lock the sessions of `commands`, then the workers."""
    names = {name for command in commands for name in lock_keys(command)}
    by_kind: dict[str, list[Name]] = {}
    for name in names:
        by_kind.setdefault(name.kind, []).append(name)
    workers = [name.first for name in by_kind.pop("worker", [])]
    by_kind.pop("any", None)
    rows: list[asyncpg.Record] = []
    if set(by_kind) == {"session"}:
        ids = [name.first for name in by_kind["session"]]
        rows = await connection.fetch(LOCK_SESSIONS_BY_ID, ids)
    elif by_kind:
        rows = await connection.fetch(LOCK_SESSIONS, *_in_order(by_kind))
        count = 0 if "below" in by_kind else len(rows)
        while count < len(rows):
            # A fork that was created while this waited for the lock of its parent is not locked.
            count = len(rows)
            rows = await connection.fetch(LOCK_SESSIONS, *_in_order(by_kind))
    if len(workers) > 1:
        await connection.fetch(LOCK_WORKERS, workers)
    now = rows[-1][4] if rows else await connection.fetchval(READ_CLOCK)
    return Locked(_of_locked(rows), now)


def _of_locked(rows: list[asyncpg.Record]) -> list[asyncpg.Record]:
    """Return the names of sessions that exist; those of `LOCK_SESSIONS_BY_ID` all do."""
    ids = {row[3] for row in rows if row[0] == "locked"}
    return [row for row in rows if row[0] != "locked" and row[3] in ids] if ids else rows


def _in_order(by_kind: dict[str, list[Name]]) -> list[list[str]]:
    """Return the names as the parameters of `LOCK_SESSIONS`."""
    session, turn, key, repeat, rival, below = (by_kind.get(kind, []) for kind in _KINDS)
    return [
        [name.first for name in session],
        [name.first for name in turn],
        [name.first for name in key],
        [name.second for name in key],
        [name.first for name in repeat],
        [name.second for name in repeat],
        [name.first for name in rival],
        [name.first for name in below],
    ]
