"""Taking sessions over, one transaction each, and the report of what became of them."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.import_session import session_id_for
from holdfast.core.errors import InvalidSessionKey
from holdfast.core.ids import Key, SessionId, Tenant, read_key
from holdfast.core.model.import_rows import ImportStatus, nameless
from holdfast.core.transaction.commands import Import
from holdfast.ports.store import Store
from holdfast.transfer.conversation import PastLife, PastSession, Unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became of one session."""

    source: str
    key: str | None
    session_id: str
    status: ImportStatus | str
    turns: int
    items: int
    added: int
    problems: tuple[str, ...] = ()


class Taking:
    """Takes lives over into one tenant of a store."""

    def __init__(
        self, store: Store, tenant: Tenant, *, prefix: str = "", is_dry_run: bool = False
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._prefix = prefix
        self._is_dry_run = is_dry_run
        self.counts: Counter[str] = Counter()
        self.unread: list[str] = []
        """What the source has and could not be read."""

    async def take(self, lives: Iterable[PastLife | Unread]) -> AsyncIterator[Taken]:
        """Take every generation of every life over, the oldest first."""
        for life in lives:
            if isinstance(life, Unread):
                self.unread.append(life.problem)
                continue
            follows: list[SessionId] = []
            for number, past in enumerate(life.generations, 1):
                is_live = life.is_live and number == len(life.generations)
                taken = await self._take(life.key, past, tuple(follows), is_live=is_live)
                follows.append(SessionId(taken.session_id))
                self.counts[taken.status] += 1
                yield taken

    async def _take(
        self, name: str | None, past: PastSession, follows: tuple[SessionId, ...], *, is_live: bool
    ) -> Taken:
        own = session_id_for(self._tenant, past.source, past.created_at)
        key: Key | None = None
        if name is not None:
            try:
                key = read_key(self._prefix + name)
            except InvalidSessionKey as exc:
                return _report(name, past, own, "unusable", problems=(exc.message,))
        command = Import(
            tenant=self._tenant,
            session_id=SessionId(past.session_id) if past.session_id is not None else own,
            key=key,
            generation=past.generation,
            turns=past.turns,
            order=past.order,
            hidden=past.hidden,
            follows=follows,
            is_live=is_live,
            metadata=msgspec.json.encode(dict(past.metadata)),
            created_at=past.created_at or None,
            last_user_activity_at=past.last_user_activity_at,
            usage=past.usage,
            is_dry_run=self._is_dry_run,
        )
        done = await self._store.submit(command)
        if done.status == "taken":
            # Another tenant has the session of this export; here all gets ids of its own.
            turns = tuple(nameless(turn) for turn in command.turns)
            done = await self._store.submit(replace(command, session_id=own, turns=turns))
        return _report(key, past, done.session_id, done.status, added=done.added)


def _report(
    key: str | None,
    past: PastSession,
    session_id: str,
    status: str,
    *,
    added: int = 0,
    problems: tuple[str, ...] = (),
) -> Taken:
    return Taken(
        source=past.source,
        key=key,
        session_id=session_id,
        status=status,
        turns=len(past.turns),
        items=sum(len(turn.items) for turn in past.turns),
        added=added,
        problems=(*past.problems, *problems),
    )
