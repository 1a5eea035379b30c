"""Which rows a batch will decide on, locked in one order before anything is read.

Every process locks sessions in the order of their ids, so no two of them wait for each other,
and the facts of a decision stand still while it is made. The version in each row stays the
fence: a session that takes its key between the look-up and the lock is caught by it.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.core import commands as cmd
from holdfast.core.commands import Command
from holdfast.core.turn import Fence

# The time is told outside: once for each row, after it was locked.
_THEN_THE_TIME = "select extract(epoch from clock_timestamp())::double precision from locked"

LOCK_BY_ID = f"""
with locked as (
  select id from sessions where id = any($1::text[]) order by id for update
) {_THEN_THE_TIME}
"""

# Sessions by id, by key, by turn, by repeat; the live one beside one that is to be retired or
# restored; and everything below one that is to be erased.
LOCK_BY_ANYTHING = f"""
with recursive named(id) as (
  select unnest($1::text[]) collate "C"
  union select t.session_id from turns t where t.id = any($2::text[])
  union select s.id from unnest($3::text[], $4::text[]) as k(tenant, key)
    join sessions s on s.tenant = k.tenant and s.key = k.key and s.is_live = 1
  union select t.session_id from unnest($5::text[], $6::text[]) as r(tenant, key)
    join idempotency i on i.tenant = r.tenant and i.key = r.key join turns t on t.id = i.turn_id
  union select r.id from sessions s join sessions r
    on r.tenant = s.tenant and r.key = s.key and r.is_live = 1 where s.id = any($7::text[])
), below(id) as (
  select unnest($8::text[]) collate "C"
  union select c.id from below b join sessions c on c.parent_id = b.id and c.deleted_at is null
), locked as (
  select id from sessions
  where id in (select id from named union select id from below) order by id for update
) {_THEN_THE_TIME}
"""

LOCK_WORKERS = "select 1 from workers where id = any($1::text[]) order by id for update"

Lock = tuple[str, tuple[Any, ...]]


class _Names:
    """What the commands of a batch call their sessions by."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.turns: set[str] = set()
        self.keys: set[tuple[str, str]] = set()
        self.repeats: set[tuple[str, str]] = set()
        self.rivals: set[str] = set()
        self.erased: set[str] = set()
        self.workers: set[str] = set()

    def add(self, command: Command[Any]) -> None:
        match command:
            case cmd.Accept() | cmd.Append():
                self._add_arrival(command)
            case cmd.Reserve(key=str(key)):
                self.keys.add((command.tenant, key))
            case cmd.Deliver():
                self.turns.update(turn_id for turn_id, _ in command.steps)
            case cmd.Delete():
                self.erased.add(command.session_id)
            case cmd.Renew() | cmd.Bury():
                self.workers.add(command.worker)
            case _:
                self._add_named(command)

    def _add_named(self, command: Command[Any]) -> None:
        """Every other command is about what its fence, its session id or its turn id names."""
        fence: Fence | None = getattr(command, "fence", None)
        if fence is not None:
            self.sessions.add(fence.session_id)
        if hasattr(command, "session_id"):
            self.sessions.add(command.session_id)
        if hasattr(command, "turn_id"):
            self.turns.add(command.turn_id)
        if isinstance(command, cmd.Reset | cmd.Restore):
            self.rivals.add(command.session_id)

    def _add_arrival(self, command: cmd.Accept | cmd.Append) -> None:
        if command.session_id is not None:
            self.sessions.add(command.session_id)
        elif command.key is not None:
            self.keys.add((command.tenant, command.key))
        if command.idempotency_key is not None:
            self.repeats.add((command.tenant, command.idempotency_key))
        if command.again:
            self.turns.add(command.turn_id)

    @property
    def are_all_sessions(self) -> bool:
        return not (self.turns or self.keys or self.repeats or self.rivals or self.erased)


def locks(commands: Sequence[Command[Any]]) -> tuple[Lock | None, Lock | None]:
    """Return the statements that lock what `commands` are about: sessions, then workers."""
    names = _Names()
    for command in commands:
        names.add(command)
    sessions: Lock | None = None
    if not names.are_all_sessions:
        sessions = (
            LOCK_BY_ANYTHING,
            (
                list(names.sessions),
                list(names.turns),
                [tenant for tenant, _ in names.keys],
                [key for _, key in names.keys],
                [tenant for tenant, _ in names.repeats],
                [key for _, key in names.repeats],
                list(names.rivals),
                list(names.erased),
            ),
        )
    elif names.sessions:
        sessions = LOCK_BY_ID, (list(names.sessions),)
    workers = (LOCK_WORKERS, (list(names.workers),)) if len(names.workers) > 1 else None
    return sessions, workers
