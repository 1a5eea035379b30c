"""The SDK's session protocol on a durable log."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from agents.items import TResponseInputItem
from agents.memory import OpenAIResponsesCompactionArgs, SessionSettings
from agents.run_context import RunContextWrapper

from holdfast.agents_sdk.compaction import Compaction
from holdfast.agents_sdk.embedded import EmbeddedBackend
from holdfast.agents_sdk.item_codec import TranscriptPage, to_context, to_items, to_values
from holdfast.agents_sdk.lane import SessionLane, current_lane
from holdfast.agents_sdk.remote import RemoteBackend
from holdfast.agents_sdk.run_block import RunBlock, bind_block, find_block, is_first_read
from holdfast.agents_sdk.shared_store import StoreName
from holdfast.core.errors import InvalidInput, SessionBusy, SessionClosed, SessionMoved
from holdfast.core.ids import DEFAULT_TENANT, SessionId, read_idempotency_key, read_key, read_tenant
from holdfast.core.model.items import NewItem, item_value
from holdfast.engine.embedded.external_lane import InRetiredGeneration, LaneRequest

Wrapper = RunContextWrapper[Any] | None
RunCompaction = Callable[..., Awaitable[None]]


class HoldfastSession:
    """A durable session: `Runner.run(agent, "hi", session=HoldfastSession(…))`.

    `session_id` is the key of the conversation. `store` is a store's URL, the path of a SQLite
    file, `memory:`, or the result of `holdfast.open`. `url` names a gateway instead.
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        store: StoreName | None = None,
        *,
        url: str | None = None,
        api_key: str | None = None,
        tenant: str = DEFAULT_TENANT,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = _settings(session_settings)
        self._key, self._tenant = read_key(session_id), read_tenant(tenant)
        self._backend = self._backend_at(store, url, api_key)
        self._scope = f"{self._backend.scope}\0{self._tenant}\0{self._key}"
        self._compaction = compaction
        self._standalone: RunBlock | None = None
        """Block for items that belong to no run."""
        self._is_closed = False

    def _backend_at(
        self, store: StoreName | None, url: str | None, api_key: str | None
    ) -> EmbeddedBackend | RemoteBackend:
        if (store is None) == (url is None):
            raise InvalidInput("give either `store` or the `url` of a gateway, not both or neither")
        if store is not None:
            return EmbeddedBackend(self._key, self._tenant, store)
        if self._tenant != DEFAULT_TENANT:
            raise InvalidInput("`tenant` applies to a store; at a gateway, `api_key` selects it")
        return RemoteBackend(self._key, str(url), api_key or os.environ.get("HOLDFAST_API_KEY"))

    # ── the SDK's protocol ──────────────────────────────────────────────────────────────────

    async def get_items(
        self, limit: int | None = None, *, wrapper: Wrapper = None
    ) -> list[TResponseInputItem]:
        """Return the last `limit` items, or all, oldest first, in whole blocks of runs."""
        self._check_open()
        last = self._limit(limit)
        if last == 0 and wrapper is None:
            return []
        # With another limit than the default, the SDK compares the end with what the run holds.
        is_default = last == self._limit(None)
        is_begin = is_default and wrapper is not None and is_first_read(wrapper, self._scope)
        lane = current_lane(self._scope)
        if lane is not None:
            page = await self._backend.transcript(lane.session_id, last)
            return to_context(page.items_json, is_begin=is_begin)  # type: ignore[return-value] # plain dicts
        block = find_block(wrapper, self._scope) if wrapper is not None else None
        session_id = block.session_id if block is not None else None
        page = await self._backend.transcript(session_id, last)
        if wrapper is None:
            return to_values(page.items_json)  # type: ignore[return-value] # plain dicts, as they were added
        if block is None:
            # The run stays in the generation that it read, even if the session is cleared.
            session_id = page.session_id or await self._backend.reserve()
            bind_block(wrapper, self._scope, await self._backend.new_block(session_id))
        return to_context(page.items_json, is_begin=is_begin)  # type: ignore[return-value] # plain dicts

    async def add_items(
        self,
        items: Sequence[TResponseInputItem],
        *,
        wrapper: Wrapper = None,
        batch_id: str | None = None,
    ) -> None:
        """Append items atomically, durable on return, at most once per `batch_id`."""
        if self._is_closed:
            self._check_open()
        if not items:
            return
        if batch_id is not None:
            read_idempotency_key(batch_id)
        batch = to_items(items)
        lane = current_lane(self._scope)
        if lane is not None:
            await lane.add(batch, batch_id)
            return
        block = self._standalone if wrapper is None and batch_id is None else None
        if block is None or block.append_lock.locked():
            block = await self._block(wrapper, batch_id)
        async with block.append_lock:
            block.assign_ordinal(batch)
            try:
                await self._backend.add(block, batch, batch_id)
                block.confirm()
            except BaseException:
                self._standalone = None  # the batch may be stored or not: use a new block
                raise

    async def pop_item(self, *, wrapper: Wrapper = None) -> TResponseInputItem | None:
        """Hide the last item and return it; the log keeps it."""
        self._check_open()
        lane = current_lane(self._scope)
        block = find_block(wrapper, self._scope) if wrapper is not None else None
        writer = lane or block
        body = await self._backend.pop(writer.session_id if writer is not None else None)
        return item_value(body) if body is not None else None  # type: ignore[return-value]

    async def clear_session(self, *, wrapper: Wrapper = None) -> None:  # noqa: ARG002
        """Start an empty generation; the old one stays readable and can be restored."""
        self._check_open()
        await self._backend.clear()

    @property
    def run_compaction(self) -> RunCompaction:
        """Shorten the history when it is due, or at once with `force`; the log keeps everything.

        The attribute exists only if the session has a `compaction`: the SDK checks for it.
        """
        if self._compaction is None:
            raise AttributeError("this session has no compaction; pass `compaction=`")
        return self._run_compaction

    async def _run_compaction(
        self, args: OpenAIResponsesCompactionArgs | None = None, *, wrapper: Wrapper = None
    ) -> None:
        self._check_open()
        is_forced = bool(args and args.get("force"))
        lane = current_lane(self._scope)
        if lane is not None:
            # The run in the lane may still append; compact its whole output after it.
            lane.after_release = lambda: self._shorten(None, is_forced=is_forced)
            return
        block = find_block(wrapper, self._scope) if wrapper is not None else None
        session_id = block.session_id if block is not None else None
        await self._shorten(session_id, is_forced=is_forced)

    async def _shorten(self, session_id: SessionId | None, *, is_forced: bool) -> None:
        page = await self._backend.transcript(session_id, None)
        items = to_values(page.items_json)
        if self._compaction is None or not self._compaction.is_due(items, is_forced=is_forced):
            return
        replacement = to_items(await self._compaction.shorten(items))
        try:
            await self._replace(page, replacement)
        except (SessionMoved, SessionBusy):
            return  # others have written meanwhile; the next run retries

    async def _replace(self, page: TranscriptPage, items: tuple[NewItem, ...]) -> None:
        block = await self._backend.new_block(page.session_id)
        await self._backend.add(block, items, replaces_upto=page.head_seq)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all visible items; the SDK's own compaction calls this."""
        self._check_open()
        await self._replace(await self._backend.transcript(None, 0), to_items(items))
        return True

    async def history(self) -> list[TResponseInputItem]:
        """Return every item of this generation, compacted ones included."""
        self._check_open()
        return [item_value(body) for body in await self._backend.history()]  # type: ignore[misc]

    # ── lanes ───────────────────────────────────────────────────────────────────────────────

    def serial(self, *, run_id: str | None = None) -> SessionLane:
        """Return the session's lane, for `async with`: the block waits for earlier runs.

        Inside, this session object and others with the same id write in the lane. With a `run_id`,
        an interrupted run restarts and replaces the items that it left; a completed one raises
        `TurnAlreadyDone`.
        """
        if run_id is not None:
            read_idempotency_key(run_id)
        return self.lane(run_id=run_id)

    def lane(
        self,
        *,
        run_id: str | None = None,
        input_hash: bytes = b"",
        is_once: bool = False,
        is_unique: bool = False,
        resumes: tuple[str, ...] = (),
    ) -> SessionLane:
        """Return the session's lane for a run; a repeat must have the same `input_hash`."""
        self._check_open()
        request = LaneRequest(
            tenant=self._tenant,
            key=self._key,
            run_id=run_id,
            body=input_hash,
            is_once=is_once,
            is_own=is_unique,
            resumes=resumes,
        )
        return SessionLane(self._backend.lane(request), self._scope)

    def continue_in(self, elsewhere: InRetiredGeneration, wrapper: Any) -> None:
        """Bind the run of `wrapper` to its block in a retired generation."""
        block = RunBlock(elsewhere.turn_id, elsewhere.session_id)
        block.ordinal = elsewhere.ordinal
        bind_block(wrapper, self._scope, block)

    def close(self) -> "PendingClose":
        """Close the session; await the result to wait until its store is released."""
        self._is_closed = True
        return PendingClose(self._backend)

    async def __aenter__(self) -> "HoldfastSession":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionClosed(f"session {self.session_id!r} is closed")

    def _limit(self, limit: int | None) -> int | None:
        if limit is None and self.session_settings is not None:
            limit = _settings(self.session_settings).limit
        return None if limit is None or limit < 0 else limit

    async def _block(self, wrapper: Wrapper, batch_id: str | None) -> RunBlock:
        """Return the block of a run, or a new one.

        Items that belong to no run share a block; concurrent appends use separate ones.
        """
        block = find_block(wrapper, self._scope) if wrapper is not None else None
        if block is not None:
            return block
        block = await self._backend.new_block(None)
        if wrapper is not None:
            bind_block(wrapper, self._scope, block)
        elif batch_id is None:
            block.is_standalone = True
            self._standalone = block
        return block


class PendingClose:
    """Closes the backend when awaited, or in a separate task if an event loop runs."""

    def __init__(self, backend: EmbeddedBackend | RemoteBackend) -> None:
        self._backend = backend
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._task: asyncio.Task[None] | None = None
        else:
            self._task = loop.create_task(backend.close(), name="holdfast-session-close")

    def __await__(self) -> Generator[Any, None, None]:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._backend.close())
        return asyncio.shield(self._task).__await__()


def _settings(value: SessionSettings | dict[str, Any] | None) -> SessionSettings:
    if value is None:
        return SessionSettings()
    return value if isinstance(value, SessionSettings) else SessionSettings(**value)
