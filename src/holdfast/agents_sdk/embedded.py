"""A session's store in this process."""

import hashlib

from holdfast.agents_sdk.blocks import Block
from holdfast.agents_sdk.houses import Lodging, StoreName
from holdfast.agents_sdk.wire import Read
from holdfast.core.errors import InvalidInput, SessionChanged
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.items import NewItem
from holdfast.core.transaction.commands import Continue, Pop, Reserve, Reset
from holdfast.engine.embedded.external_lane import (
    CompletedRun,
    ExternalLane,
    InRetiredGeneration,
    LaneEnd,
    LaneRequest,
)
from holdfast.engine.sessions.active_run import Batch
from holdfast.engine.sessions.appending import append_batch
from holdfast.ports.store import ItemQuery


class EmbeddedBackend:
    """Carries a session's wishes out on a store that is open here."""

    def __init__(self, key: Key, tenant: Tenant, store: StoreName) -> None:
        self.key = key
        self.tenant = tenant
        self.lodging = Lodging(store)
        self.place = self.lodging.name

    async def transcript(self, session_id: SessionId | None, last: int | None) -> Read:
        """Return the end of what is visible, of one session or of the key's live one."""
        gateway = await self.lodging.gateway()
        found = await gateway.read.transcript(
            self.tenant,
            session_id=session_id,
            key=None if session_id is not None else self.key,
            last=last,
        )
        if found is None:
            return Read(None)
        return Read(found.session.id, found.listed, found.session.head_seq)

    async def history(self) -> list[bytes]:
        """Return all that was said in the live generation, what is summed up included."""
        gateway = await self.lodging.gateway()
        view = await gateway.read.session(self.tenant, key=self.key)
        if view is None:
            return []
        listed = await gateway.read.listing(view.session, ItemQuery(view="log"))
        return [
            one.item.body
            for one in listed
            if one.hidden_by is None or one.hidden_by.kind == "replace"
        ]

    async def reserve(self) -> SessionId:
        """Return the key's live session, made if there is none."""
        gateway = await self.lodging.gateway()
        session = await gateway.submit(
            Reserve(tenant=self.tenant, candidate_id=gateway.new_session_id(), key=self.key)
        )
        return session.id

    async def new_block(self, session_id: SessionId | None) -> Block:
        """Return a block for a run that begins."""
        gateway = await self.lodging.gateway()
        return Block(TurnId(gateway.ids.new("turn")), session_id)

    async def add(
        self,
        block: Block,
        items: tuple[NewItem, ...],
        batch_id: str | None = None,
        *,
        replaces_upto: int | None = None,
    ) -> None:
        """Add a batch to a block, once."""
        gateway = await self.lodging.gateway()
        # Ids that were not needed are as good as new ones; of those that may be in use, none is.
        candidate_id, block.candidate_id = block.candidate_id or gateway.new_session_id(), None
        if block.spare_turn_id is None and block.is_loose and block.ordinal:
            block.spare_turn_id = TurnId(gateway.ids.new("turn"))
        command = Continue(
            tenant=self.tenant,
            turn_id=block.turn_id,
            ordinal=block.ordinal,
            worker=gateway.worker.id,
            candidate_id=candidate_id,
            key=self.key if block.session_id is None or block.is_loose else None,
            session_id=None if block.is_loose else block.session_id,
            spare_turn_id=block.spare_turn_id,
            known=block.known,
            items=items,
            idempotency_key=batch_id,
            body_hash=_hash(self.key, items) if batch_id is not None else None,
            replaces_upto=replaces_upto,
        )
        # What replaces a history is of no use once others have written; all else may wait.
        if replaces_upto is None:
            appended = await append_batch(gateway, command)
        else:
            appended = await gateway.submit(command)
        block.session_id = appended.session.id
        if appended.session.id != candidate_id:
            block.candidate_id = candidate_id
        if block.turn_id != appended.turn.id:
            block.turn_id, block.spare_turn_id = appended.turn.id, None
        block.ordinal = appended.turn.step + 1 if block.is_loose else block.ordinal + 1
        block.known = appended

    async def pop(self, session_id: SessionId | None) -> bytes | None:
        """Take the last item out of the view and return it."""
        gateway = await self.lodging.gateway()
        if session_id is None:
            view = await gateway.read.session(self.tenant, key=self.key)
            if view is None:
                return None
            session_id = view.session.id
        popped = await gateway.submit(
            Pop(tenant=self.tenant, session_id=session_id, pop_id=gateway.ids.new("pop"))
        )
        return popped.item.body if popped.item is not None else None

    async def clear(self) -> None:
        """Begin the key's next generation, if it has one to retire."""
        gateway = await self.lodging.gateway()
        while True:
            view = await gateway.read.session(self.tenant, key=self.key)
            if view is None:
                return
            try:
                await gateway.submit(
                    Reset(
                        tenant=self.tenant,
                        session_id=view.session.id,
                        new_id=gateway.new_session_id(),
                        reason="clear_session",
                    )
                )
            except SessionChanged:
                continue  # somebody else began another one meanwhile; that one is cleared now
            return

    def lane(self, asked: LaneRequest) -> "EmbeddedLane":
        """Return a lane that can be taken."""
        return EmbeddedLane(self.lodging, asked)

    async def close(self) -> None:
        """Let go of the store."""
        await self.lodging.leave()


class EmbeddedLane:
    """Holds a lane through the engine in this process."""

    def __init__(self, lodging: Lodging, asked: LaneRequest) -> None:
        self._lodging = lodging
        self._asked = asked
        self._held: ExternalLane | None = None

    @property
    def session_id(self) -> SessionId:
        """The generation that the run has its place in."""
        return self._lane().run.session.id

    @property
    def elsewhere(self) -> InRetiredGeneration | None:
        """Where a parked run goes on, if its generation was retired."""
        return self._lane().elsewhere

    def _lane(self) -> ExternalLane:
        if self._held is None:
            raise InvalidInput("the lane is not taken: async with session.serial()")
        return self._held

    async def take(self) -> CompletedRun | None:
        """Wait for the lane; it is held afterwards, unless a run of this id is done."""
        gateway = await self._lodging.gateway(started=True)
        self._held = ExternalLane(gateway, self._asked)
        return await self._held.acquire()

    async def add(self, items: tuple[NewItem, ...], batch_id: str | None = None) -> None:
        """Append to the run's block; of a `batch_id`, once."""
        batch = Batch(batch_id, _hash(self._asked.key, items)) if batch_id is not None else None
        await self._lane().add(items, batch)

    async def end(self, end: LaneEnd) -> None:
        """End the run and give the lane back."""
        await self._lane().end(end)


def _hash(key: Key, items: tuple[NewItem, ...]) -> bytes:
    digest = hashlib.blake2b(key.encode(), digest_size=16)
    for item in items:
        digest.update(b"\0" + item.body)
    return digest.digest()
