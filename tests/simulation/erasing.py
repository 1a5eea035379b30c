"""Clients that erase items, and search for them."""

import random
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.ids import Key, SessionId, Tenant
from holdfast.core.transaction.commands import Hide
from holdfast.ports.search import SearchQuery
from holdfast.ports.store import ItemQuery
from tests.simulation.plan import Op
from tests.simulation.replica import Replica

if TYPE_CHECKING:
    from tests.simulation.clients import Clients


class ErasedItem(msgspec.Struct, frozen=True):
    """An item that a client has erased."""

    session_id: SessionId
    seq: int


class FoundItem(msgspec.Struct, frozen=True):
    """An item that a search has found."""

    session_id: SessionId
    seq: int
    text: str


async def erase(clients: "Clients", op: Op, rng: random.Random) -> None:
    """Erase one of the last visible items of a session, or two at once, as the API does."""

    async def work(replica: Replica) -> ErasedItem | None:
        gateway, tenant = replica.gateway, Tenant(op.tenant)
        view = await gateway.read.session(tenant, key=Key(op.key))
        if view is None:
            return None
        listed = await gateway.read.listing(view.session, ItemQuery())
        own = [entry.item.seq for entry in listed if entry.item.session_id == view.session.id]
        if not own:
            return None
        index = len(own) - 1 - op.choice % len(own)
        seq = own[index]
        erasure = Hide(
            tenant=tenant,
            session_id=view.session.id,
            from_seq=seq,
            to_seq=seq,
            erase=True,
            also=tuple(own[index - 1 : index]) if op.choice % 2 else (),
        )
        await gateway.submit(erasure)
        return ErasedItem(view.session.id, seq)

    await clients.ask(op, rng, work)


async def search(clients: "Clients", op: Op, rng: random.Random) -> None:
    """Search for what another op said."""

    async def work(replica: Replica) -> tuple[FoundItem, ...]:
        query = SearchQuery(text=op.same_as or op.key, include_hidden=op.expects)
        page = await replica.store.search.search(Tenant(op.tenant), query)
        return tuple(FoundItem(hit.session_id, hit.seq, hit.snippet) for hit in page.hits)

    await clients.ask(op, rng, work)
