"""Session backend on a store in this process."""

import hashlib

from holdfast.agents_sdk.item_codec import TranscriptPage
from holdfast.agents_sdk.run_block import RunBlock
from holdfast.agents_sdk.shared_store import StoreHandle, StoreName
from holdfast.core.errors import InvalidInput, SessionChanged
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.items import NewItem
from holdfast.core.transaction.commands import AppendBatch, Pop, Reserve, Reset
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
    """Reads and writes one session in a store that this process has open."""

    def __init__(self, key: Key, tenant: Tenant, store: StoreName) -> None:
        self.key = key
        self.tenant = tenant
        self.store_handle = StoreHandle(store)
        self.scope = self.store_handle.name

    async def transcript(self, session_id: SessionId | None, last: int | None) -> TranscriptPage:
        """Return the last visible items, of one session or of the key's live one."""
        gateway = await self.store_handle.gateway()
        transcript = await gateway.read.transcript(
            self.tenant,
            session_id=session_id,
            key=None if session_id is not None else self.key,
            last=last,
        )
        if transcript is None:
            return TranscriptPage(None)
        session = transcript.session
        return TranscriptPage(session.id, transcript.listed, session.head_seq)

    async def history(self) -> list[bytes]:
        """Return every item of the live generation, compacted ones included."""
        gateway = await self.store_handle.gateway()
        view = await gateway.read.session(self.tenant, key=self.key)
        if view is None:
            return []
        entries = await gateway.read.listing(view.session, ItemQuery(view="log"))
        return [
            entry.item.body
            for entry in entries
            if entry.hidden_by is None or entry.hidden_by.kind == "replace"
        ]

    async def reserve(self) -> SessionId:
        """Return the id of the key's live session; create it if there is none."""
        gateway = await self.store_handle.gateway()
        session = await gateway.submit(
            Reserve(tenant=self.tenant, candidate_id=gateway.new_session_id(), key=self.key)
        )
        return session.id

    async def new_block(self, session_id: SessionId | None) -> RunBlock:
        """Return a block for a new run."""
        gateway = await self.store_handle.gateway()
        return RunBlock(TurnId(gateway.ids.new("turn")), session_id)

    async def add(
        self,
        block: RunBlock,
        items: tuple[NewItem, ...],
        batch_id: str | None = None,
        *,
        replaces_upto: int | None = None,
    ) -> None:
        """Append a batch to a block exactly once."""
        gateway = await self.store_handle.gateway()
        # An unused id may be offered again; drop it first, as this append may use it.
        candidate_id, block.candidate_id = block.candidate_id or gateway.new_session_id(), None
        if block.spare_turn_id is None and block.is_standalone and block.ordinal:
            block.spare_turn_id = TurnId(gateway.ids.new("turn"))
        command = AppendBatch(
            tenant=self.tenant,
            turn_id=block.turn_id,
            ordinal=block.ordinal,
            worker=gateway.worker.id,
            candidate_id=candidate_id,
            key=self.key if block.session_id is None or block.is_standalone else None,
            session_id=None if block.is_standalone else block.session_id,
            spare_turn_id=block.spare_turn_id,
            known=block.last_append,
            items=items,
            idempotency_key=batch_id,
            body_hash=_hash(self.key, items) if batch_id is not None else None,
            replaces_upto=replaces_upto,
        )
        # A replacement is obsolete once others have written, so it must not wait and retry.
        if replaces_upto is None:
            appended = await append_batch(gateway, command)
        else:
            appended = await gateway.submit(command)
        block.session_id = appended.session.id
        if appended.session.id != candidate_id:
            block.candidate_id = candidate_id
        if block.turn_id != appended.turn.id:
            block.turn_id, block.spare_turn_id = appended.turn.id, None
        block.ordinal = appended.turn.step + 1 if block.is_standalone else block.ordinal + 1
        block.last_append = appended

    async def pop(self, session_id: SessionId | None) -> bytes | None:
        """Hide the last item and return it."""
        gateway = await self.store_handle.gateway()
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
        """Start the key's next generation, if it has a live one."""
        gateway = await self.store_handle.gateway()
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
                continue  # somebody else reset it first; clear the new generation
            return

    def lane(self, request: LaneRequest) -> "EmbeddedLane":
        """Return a lane for `take`."""
        return EmbeddedLane(self.store_handle, request)

    async def close(self) -> None:
        """Release the store."""
        await self.store_handle.release()


class EmbeddedLane:
    """Holds a lane through the engine in this process."""

    def __init__(self, store_handle: StoreHandle, request: LaneRequest) -> None:
        self._store_handle = store_handle
        self._request = request
        self._held: ExternalLane | None = None

    @property
    def session_id(self) -> SessionId:
        """The generation that the run writes to."""
        return self._lane().run.session.id

    @property
    def elsewhere(self) -> InRetiredGeneration | None:
        """Where an interrupted run continues if its generation was retired."""
        return self._lane().elsewhere

    def _lane(self) -> ExternalLane:
        if self._held is None:
            raise InvalidInput("the lane is not held; use `async with session.serial()`")
        return self._held

    async def take(self) -> CompletedRun | None:
        """Wait for the lane and hold it, unless a run of this id is done already."""
        gateway = await self._store_handle.gateway(started=True)
        self._held = ExternalLane(gateway, self._request)
        return await self._held.acquire()

    async def add(self, items: tuple[NewItem, ...], batch_id: str | None = None) -> None:
        """Append to the run's block, at most once per `batch_id`."""
        batch = Batch(batch_id, _hash(self._request.key, items)) if batch_id is not None else None
        await self._lane().add(items, batch)

    async def end(self, end: LaneEnd) -> None:
        """End the run and release the lane."""
        await self._lane().end(end)


def _hash(key: Key, items: tuple[NewItem, ...]) -> bytes:
    digest = hashlib.blake2b(key.encode(), digest_size=16)
    for item in items:
        digest.update(b"\0" + item.body)
    return digest.digest()
