"""Import of sessions, one transaction each, with a report per session."""

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
from holdfast.transfer.imported_conversation import (
    ImportedConversation,
    ImportedSession,
    UnreadSource,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """The result of importing one session."""

    source: str
    key: str | None
    session_id: str
    status: ImportStatus | str
    turns: int
    items: int
    added: int
    problems: tuple[str, ...] = ()


class Importer:
    """Imports conversations into one tenant of a store."""

    def __init__(
        self, store: Store, tenant: Tenant, *, prefix: str = "", is_dry_run: bool = False
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._prefix = prefix
        self._is_dry_run = is_dry_run
        self.counts: Counter[str] = Counter()
        self.unread: list[str] = []
        """Problems of sources that could not be read."""

    async def run(
        self, conversations: Iterable[ImportedConversation | UnreadSource]
    ) -> AsyncIterator[ImportReport]:
        """Import every generation of every conversation, oldest first."""
        for conversation in conversations:
            if isinstance(conversation, UnreadSource):
                self.unread.append(conversation.problem)
                continue
            follows: list[SessionId] = []
            last = len(conversation.generations)
            for number, session in enumerate(conversation.generations, 1):
                is_live = conversation.is_live and number == last
                report = await self._import(
                    conversation.key, session, tuple(follows), is_live=is_live
                )
                follows.append(SessionId(report.session_id))
                self.counts[report.status] += 1
                yield report

    async def _import(
        self,
        name: str | None,
        session: ImportedSession,
        follows: tuple[SessionId, ...],
        *,
        is_live: bool,
    ) -> ImportReport:
        derived_id = session_id_for(self._tenant, session.source, session.created_at)
        key: Key | None = None
        if name is not None:
            try:
                key = read_key(self._prefix + name)
            except InvalidSessionKey as exc:
                return _report(name, session, derived_id, "unusable", problems=(exc.message,))
        session_id = SessionId(session.session_id) if session.session_id is not None else derived_id
        command = Import(
            tenant=self._tenant,
            session_id=session_id,
            key=key,
            generation=session.generation,
            turns=session.turns,
            order=session.order,
            hidden=session.hidden,
            follows=follows,
            is_live=is_live,
            metadata=msgspec.json.encode(dict(session.metadata)),
            created_at=session.created_at or None,
            last_user_activity_at=session.last_user_activity_at,
            usage=session.usage,
            is_dry_run=self._is_dry_run,
        )
        result = await self._store.submit(command)
        if result.status == "taken":
            # Another tenant owns this session id: import a copy with new ids.
            turns = tuple(nameless(turn) for turn in command.turns)
            result = await self._store.submit(replace(command, session_id=derived_id, turns=turns))
        return _report(key, session, result.session_id, result.status, added=result.added)


def _report(
    key: str | None,
    session: ImportedSession,
    session_id: str,
    status: str,
    *,
    added: int = 0,
    problems: tuple[str, ...] = (),
) -> ImportReport:
    return ImportReport(
        source=session.source,
        key=key,
        session_id=session_id,
        status=status,
        turns=len(session.turns),
        items=sum(len(turn.items) for turn in session.turns),
        added=added,
        problems=(*session.problems, *problems),
    )
