"""References to stored items: a request may name an item instead of sending it again."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import ItemNotFound
from holdfast.core.ids import Tenant
from holdfast.core.model.items import NewItem
from holdfast.core.model.session import Session
from holdfast.engine.streaming.response_records import shown_records
from holdfast.http.request.responses_request import REFERENCE
from holdfast.http.request.submit_turn import Target
from holdfast.ports.store import ListedItem, Reader


class _Named(msgspec.Struct):
    id: object = None


_read_named = msgspec.json.Decoder(_Named).decode


class References:
    """Finds the items that references name: in the request, in its session, then elsewhere."""

    def __init__(self, read: Reader) -> None:
        self._read = read

    async def resolve(
        self, tenant: Tenant, items: Sequence[NewItem], target: Target, *, param: str = "input"
    ) -> list[NewItem]:
        """Return the items with each reference replaced by what it names."""
        if REFERENCE not in [item.kind for item in items]:
            return list(items)
        session = await self._session(tenant, target)
        found: list[NewItem] = []
        for item in items:
            if item.kind != REFERENCE:
                found.append(item)
                continue
            name = _read_named(item.body).id
            known = await self._find(tenant, name, found, session)
            if known is None:
                raise _unknown(name, param)
            found.append(known)
        return found

    async def _session(self, tenant: Tenant, target: Target) -> Session | None:
        if target.session_id is None and target.key is None:
            return None
        view = await self._read.session(tenant, session_id=target.session_id, key=target.key)
        if view is None or target.parent is None:
            return view.session if view is not None else None
        return shown_records(view.session, target.parent.seq, target.parent.record_no)

    async def _find(
        self, tenant: Tenant, name: object, before: Sequence[NewItem], session: Session | None
    ) -> NewItem | None:
        if not isinstance(name, str) or not name or "\0" in name:
            return None
        for item in before:
            if item.item_id == name:
                return item
        listed = await self._read.item(session, name) if session is not None else None
        if listed is None or listed.hidden_by is not None:
            listed = await self._elsewhere(tenant, name)
        return named(listed) if listed is not None else None

    async def _elsewhere(self, tenant: Tenant, name: str) -> ListedItem | None:
        """Return what an answer of a session without a name said under this id."""
        for session_id in await self._read.item_places(tenant, name):
            view = await self._read.session(tenant, session_id=session_id)
            listed = await self._read.item(view.session, name) if view is not None else None
            if listed is not None and listed.hidden_by is None:
                return listed
        return None


def named(listed: ListedItem) -> NewItem:
    """Return a stored item as one to be sent, under the name that it was found by."""
    return replace(listed.item.anew(), item_id=listed.name)


def _unknown(name: object, param: str) -> ItemNotFound:
    error = ItemNotFound(f"Item with id '{name}' not found.")
    error.param = param
    return error
