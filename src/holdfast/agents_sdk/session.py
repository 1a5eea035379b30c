"""The SDK's session protocol on our log."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from agents.items import TResponseInputItem
from agents.memory import OpenAIResponsesCompactionArgs, SessionSettings
from agents.run_context import RunContextWrapper

from holdfast.agents_sdk.blocks import Block, block_of, keep_block, meets_first
from holdfast.agents_sdk.compaction import Compaction
from holdfast.agents_sdk.embedded import EmbeddedBackend
from holdfast.agents_sdk.houses import StoreName
from holdfast.agents_sdk.remote import RemoteBackend
from holdfast.agents_sdk.serial import Lane, lane_here
from holdfast.agents_sdk.wire import Read, to_context, to_items, to_values
from holdfast.core.errors import InvalidInput, SessionBusy, SessionClosed, SessionMoved
from holdfast.core.ids import DEFAULT_TENANT, SessionId, read_idempotency_key, read_key, read_tenant
from holdfast.core.model.items import NewItem, item_value
from holdfast.engine.embedded.external_lane import InRetiredGeneration, LaneRequest

Wrapper = RunContextWrapper[Any] | None
RunCompaction = Callable[..., Awaitable[None]]


class HoldfastSession:
    """A conversation that keeps everything: `Runner.run(agent, "hi", session=HoldfastSession(…))`.

    `session_id` is the key of the conversation. `store` is where it lives: a store's URL, the path
    of a SQLite file, `memory:`, or what `holdfast.open` gave. With `url` it lives on a gateway.
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
        self._place = f"{self._backend.place}\0{self._tenant}\0{self._key}"
        self._compaction = compaction
        self._loose: Block | None = None
        """Where what belongs to no run is added, one after the other."""
        self._is_closed = False

    def _backend_at(
        self, store: StoreName | None, url: str | None, api_key: str | None
    ) -> EmbeddedBackend | RemoteBackend:
        if (store is None) == (url is None):
            raise InvalidInput("a session lives in a store or behind the url of a gateway: say one")
        if store is not None:
            return EmbeddedBackend(self._key, self._tenant, store)
        if self._tenant != DEFAULT_TENANT:
            raise InvalidInput("at a gateway, the api_key says whose the session is")
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
        # Whoever asks for another number than usual compares the end with what it has in hand.
        is_usual = last == self._limit(None)
        is_begin = is_usual and wrapper is not None and meets_first(wrapper, self._place)
        lane = lane_here(self._place)
        if lane is not None:
            seen = await self._backend.transcript(lane.session_id, last)
            return to_context(seen.listed, is_begin=is_begin)  # type: ignore[return-value] # plain dicts
        block = block_of(wrapper, self._place) if wrapper is not None else None
        bound = block.session_id if block is not None else None
        seen = await self._backend.transcript(bound, last)
        if wrapper is None:
            return to_values(seen.listed)  # type: ignore[return-value] # plain dicts, as they were added
        if block is None:
            # What the run saw is what it goes on with, whatever is cleared meanwhile.
            met = seen.session_id or await self._backend.reserve()
            keep_block(wrapper, self._place, await self._backend.new_block(met))
        return to_context(seen.listed, is_begin=is_begin)  # type: ignore[return-value] # plain dicts

    async def add_items(
        self,
        items: Sequence[TResponseInputItem],
        *,
        wrapper: Wrapper = None,
        batch_id: str | None = None,
    ) -> None:
        """Append items, all or nothing, durable on return; of a `batch_id`, once."""
        self._check_open()
        if not items:
            return
        if batch_id is not None:
            read_idempotency_key(batch_id)
        batch = to_items(items)
        lane = lane_here(self._place)
        if lane is not None:
            await lane.add(batch, batch_id)
            return
        block = await self._block(wrapper, batch_id)
        async with block.adding:
            block.number(batch)
            try:
                await self._backend.add(block, batch, batch_id)
                block.settle()
            except BaseException:
                self._loose = None  # whether it was added is not known: another block is begun
                raise

    async def pop_item(self, *, wrapper: Wrapper = None) -> TResponseInputItem | None:
        """Take the last item out of the view and return it; the log keeps it."""
        self._check_open()
        lane = lane_here(self._place)
        block = block_of(wrapper, self._place) if wrapper is not None else None
        writer = lane or block
        body = await self._backend.pop(writer.session_id if writer is not None else None)
        return item_value(body) if body is not None else None  # type: ignore[return-value]

    async def clear_session(self, *, wrapper: Wrapper = None) -> None:  # noqa: ARG002
        """Begin the next generation, empty; the one before stays readable and can be restored."""
        self._check_open()
        await self._backend.clear()

    @property
    def run_compaction(self) -> RunCompaction:
        """Shorten the history if it is time, or at once with `force`; nothing is lost by it.

        Only a session that was given a `compaction` has this, and the SDK asks for it.
        """
        if self._compaction is None:
            raise AttributeError("this session has no compaction; give it one")
        return self._run_compaction

    async def _run_compaction(
        self, args: OpenAIResponsesCompactionArgs | None = None, *, wrapper: Wrapper = None
    ) -> None:
        self._check_open()
        is_forced = bool(args and args.get("force"))
        lane = lane_here(self._place)
        if lane is not None:
            # A run in its lane may still say something; what it hides must be all of it.
            lane.afterwards = lambda: self._shorten(None, is_forced=is_forced)
            return
        block = block_of(wrapper, self._place) if wrapper is not None else None
        bound = block.session_id if block is not None else None
        await self._shorten(bound, is_forced=is_forced)

    async def _shorten(self, session_id: SessionId | None, *, is_forced: bool) -> None:
        seen = await self._backend.transcript(session_id, None)
        items = to_values(seen.listed)
        if self._compaction is None or not self._compaction.is_due(items, is_forced=is_forced):
            return
        shorter = to_items(await self._compaction.shorten(items))
        try:
            await self._replace(seen, shorter)
        except (SessionMoved, SessionBusy):
            return  # others have written meanwhile; it is tried again after the next run

    async def _replace(self, seen: Read, items: tuple[NewItem, ...]) -> None:
        block = await self._backend.new_block(seen.session_id)
        await self._backend.add(block, items, replaces_upto=seen.head_seq)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Put items in the place of all others; by this the SDK's own compaction loses nothing."""
        self._check_open()
        await self._replace(await self._backend.transcript(None, 0), to_items(items))
        return True

    async def history(self) -> list[TResponseInputItem]:
        """Return all that was said in this generation, also what a compaction hides."""
        self._check_open()
        return [item_value(body) for body in await self._backend.history()]  # type: ignore[misc]

    # ── beyond it ───────────────────────────────────────────────────────────────────────────

    def serial(self, *, run_id: str | None = None) -> Lane:
        """Return the session's lane, for `async with`: runs inside wait for those before them.

        Inside, this session object and others of the same id write in the lane. With a `run_id`,
        a run that was torn off is begun anew in the place of what it left, and one that is done
        is refused.
        """
        if run_id is not None:
            read_idempotency_key(run_id)
        return self.lane(run_id=run_id)

    def lane(
        self,
        *,
        run_id: str | None = None,
        asked: bytes = b"",
        is_once: bool = False,
        is_own: bool = False,
        resumes: tuple[str, ...] = (),
    ) -> Lane:
        """Return the session's lane for a run; `asked` is what a repeat of it must ask again."""
        self._check_open()
        wanted = LaneRequest(
            tenant=self._tenant,
            key=self._key,
            run_id=run_id,
            body=asked,
            is_once=is_once,
            is_own=is_own,
            resumes=resumes,
        )
        return Lane(self._backend.lane(wanted), self._place)

    def go_on_in(self, elsewhere: InRetiredGeneration, wrapper: Any) -> None:
        """Have the run of `wrapper` go on in a retired generation, in the block it has there."""
        block = Block(elsewhere.turn_id, elsewhere.session_id)
        block.ordinal = elsewhere.ordinal
        keep_block(wrapper, self._place, block)

    def close(self) -> "Closing":
        """Close the session; await what is returned to have the store closed with the last one."""
        self._is_closed = True
        return Closing(self._backend)

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

    async def _block(self, wrapper: Wrapper, batch_id: str | None) -> Block:
        if wrapper is None:
            return await self._loose_block(batch_id)
        block = block_of(wrapper, self._place)
        if block is None:
            block = await self._backend.new_block(None)
            keep_block(wrapper, self._place, block)
        return block

    async def _loose_block(self, batch_id: str | None) -> Block:
        """Return a block for what belongs to no run; what is added at once has one of its own."""
        loose = self._loose
        if loose is not None and batch_id is None and not loose.adding.locked():
            return loose
        block = await self._backend.new_block(None)
        if batch_id is None:
            block.is_loose = True
            self._loose = block
        return block


class Closing:
    """Closes what is left to close when it is awaited, or soon by itself where a loop runs."""

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


def _settings(given: SessionSettings | dict[str, Any] | None) -> SessionSettings:
    if given is None:
        return SessionSettings()
    return given if isinstance(given, SessionSettings) else SessionSettings(**given)
