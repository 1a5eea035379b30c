"""Item references: a request may name a stored item instead of sending it again."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import ItemNotFound
from holdfast.core.ids import Tenant
from holdfast.core.model.items import NewItem
from holdfast.core.model.session import Session
from holdfast.http.request.responses_request import REFERENCE
from holdfast.http.request.submit_turn import SessionTarget
from holdfast.ports.store import ListedItem, Reader


class _ItemReference(msgspec.Struct):
    id: object = None


_read_reference = msgspec.json.Decoder(_ItemReference).decode


class ReferenceResolver:
    """Find referenced items: in the request, in its session, then in keyless sessions."""

    def __init__(self, read: Reader) -> None:
        self._read = read

    async def resolve(
        self,
        tenant: Tenant,
        items: Sequence[NewItem],
        target: SessionTarget,
        *,
        param: str = "input",
    ) -> list[NewItem]:
        """Return the items with each reference replaced by the item that it names."""
        if REFERENCE not in [item.kind for item in items]:
            return list(items)
        session = await self._session(tenant, target)
        resolved: list[NewItem] = []
        for item in items:
            if item.kind != REFERENCE:
                resolved.append(item)
                continue
            name = _read_reference(item.body).id
            referenced = await self._find(tenant, name, resolved, session)
            if referenced is None:
                raise _not_found(name, param)
            resolved.append(referenced)
        return resolved

    async def _session(self, tenant: Tenant, target: SessionTarget) -> Session | None:
        if target.session_id is None and target.key is None:
            return None
        session = await self._read.find_session(
            tenant, session_id=target.session_id, key=target.key
        )
        if session is None or target.parent is None:
            return session
        return session.as_of(target.parent.seq, target.parent.record_no)

    async def _find(
        self, tenant: Tenant, name: object, earlier: Sequence[NewItem], session: Session | None
    ) -> NewItem | None:
        if not isinstance(name, str) or not name or "\0" in name:
            return None
        for item in earlier:
            if item.item_id == name:
                return item
        listed = await self._read.item(session, name) if session is not None else None
        if listed is None or listed.hidden_by is not None:
            listed = await self._find_in_keyless_sessions(tenant, name)
        return to_new_item(listed) if listed is not None else None

    async def _find_in_keyless_sessions(self, tenant: Tenant, name: str) -> ListedItem | None:
        """Return a visible item with this id from the answers of keyless sessions."""
        for session_id in await self._read.item_places(tenant, name):
            session = await self._read.find_session(tenant, session_id=session_id)
            listed = await self._read.item(session, name) if session is not None else None
            if listed is not None and listed.hidden_by is None:
                return listed
        return None


def to_new_item(listed: ListedItem) -> NewItem:
    """Return a stored item as a new one that keeps its public id."""
    return replace(listed.item.as_new(), item_id=listed.name)


def _not_found(name: object, param: str) -> ItemNotFound:
    error = ItemNotFound(f"Item with id '{name}' not found.")
    error.param = param
    return error
