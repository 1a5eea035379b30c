"""Store every item of an OpenAI conversation in a log as well, so that losses are detected.

For applications that keep using the provider's own memory. A provider may drop items silently;
reading the history compares it with the log and returns the whole history from the log.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import msgspec
from agents import OpenAIConversationsSession
from agents.items import TResponseInputItem
from agents.memory.openai_conversations_session import start_openai_conversations_session
from openai import APIConnectionError, InternalServerError, NotFoundError, RateLimitError

from holdfast.agents_sdk.item_codec import to_items
from holdfast.agents_sdk.session import HoldfastSession
from holdfast.agents_sdk.shared_store import StoreName
from holdfast.core.errors import InvalidItem
from holdfast.core.model.items import NewItem
from holdfast.engine.logging import log

OnMissing = Callable[["Missing"], None]


class Missing(msgspec.Struct, frozen=True):
    """Items that were added to a provider's conversation and are no longer in it."""

    conversation_id: str
    items: tuple[TResponseInputItem, ...]
    """The lost items, oldest first."""


def guard(
    session: OpenAIConversationsSession,
    store: StoreName | None = None,
    *,
    url: str | None = None,
    api_key: str | None = None,
    key: str | None = None,
    on_missing: OnMissing | None = None,
) -> "GuardedConversation":
    """Wrap an OpenAI conversation so that lost items are detected and still returned.

    Items go to the provider and into the log. `key` names the log; without it the key is derived
    from the conversation's id. `on_missing` is called once per loss.
    """
    return GuardedConversation(
        session, lambda log_key: HoldfastSession(log_key, store, url=url, api_key=api_key),
        on_missing, key,
    )  # fmt: skip


class GuardedConversation(OpenAIConversationsSession):
    """A provider's conversation with a log of its items; a subclass, as the SDK expects one."""

    def __init__(
        self,
        remote: OpenAIConversationsSession,
        open_log: Callable[[str], HoldfastSession],
        on_missing: OnMissing | None,
        key: str | None = None,
    ) -> None:
        super().__init__(
            conversation_id=remote._session_id,
            openai_client=remote._openai_client,
            session_settings=remote.session_settings,
        )
        self._open_log = open_log
        self._key = key
        self._on_missing = on_missing
        self._log: HoldfastSession | None = None
        self._reported: set[str] = set()
        self._lock = asyncio.Lock()
        """Serializes calls: a comparison during an add would see an item on one side only."""
        self.missing: list[Missing] = []
        """Losses detected so far, the latest last."""

    async def log(self) -> HoldfastSession:
        """Return the log of the conversation."""
        if self._log is None:
            self._log = self._open_log(self._key or f"openai:{await self._get_session_id()}")
        return self._log

    # ── the SDK's protocol ──────────────────────────────────────────────────────────────────

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Compare the provider's history with the log, and return the log's.

        An unreachable provider is logged and compared at the next call.
        """
        async with self._lock:
            with self._tolerate_outage():
                await self._check()
            settings = self.session_settings
            if limit is None and settings is not None:
                limit = settings.limit
            return await (await self.log()).get_items(limit)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items to the log, and to the provider if its conversation can be reached."""
        to_items(items)  # raises before anything is sent that the log would reject
        async with self._lock:
            own = await self._open()
            with self._tolerate_outage(), contextlib.suppress(NotFoundError):
                await super().add_items(items)
            await own.add_items(items)

    async def pop_item(self) -> TResponseInputItem | None:
        """Hide the last item in the log, and delete it at the provider if it is the last there."""
        async with self._lock:
            await self._check()
            own = await self._open()
            item, last = await own.get_items(1), await self._remote_items(1) or []
            if item and last and _fingerprints(last) == _fingerprints(item):
                await super().pop_item()
            return await own.pop_item()

    async def clear_session(self) -> None:
        """Delete the provider's conversation and start the log's next generation."""
        async with self._lock:
            own = await self._open() if self._session_id is not None else self._log
            try:
                await super().clear_session()
            except NotFoundError:
                await self._clear_session_id()
            if own is not None:
                await own.clear_session()

    # ── comparison ──────────────────────────────────────────────────────────────────────────

    async def check(self) -> Missing | None:
        """Compare the provider's conversation with the log; return its losses, or None.

        Items that others added to the conversation are copied into the log. A deleted conversation
        has lost everything.
        """
        async with self._lock:
            return await self._check()

    async def _check(self) -> Missing | None:
        own = await self._open()
        local, listed = await own.get_items(-1), await self._remote_items(_NO_LIMIT)
        remote = listed or []
        lost, new = _compare(_fingerprints(local), _fingerprints(remote))
        for item in (remote[index] for index in new):
            # The batch id makes this idempotent when several processes compare at once.
            item_id = item.get("id")
            batch_id = f"guard:{item_id}" if item_id else None
            await own.add_items([_without_id(item)], batch_id=batch_id)
        if not lost:
            return None
        missing = Missing(await self._get_session_id(), tuple(local[index] for index in lost))
        self._report(missing, is_deleted=listed is None)
        return missing

    async def _open(self) -> HoldfastSession:
        """Return the log; a closed one raises before the provider is called."""
        own = await self.log()
        await own.get_items(0)
        return own

    @contextlib.contextmanager
    def _tolerate_outage(self) -> Iterator[None]:
        """Continue with the log alone when the provider does not answer, and log a warning."""
        try:
            yield
        except (APIConnectionError, InternalServerError, RateLimitError) as exc:
            log.warning(
                "conversation.unreachable",
                conversation_id=self._session_id,
                error=type(exc).__name__,
            )

    async def _remote_items(self, limit: int) -> list[TResponseInputItem] | None:
        """Return the provider's last items; None if it has no such conversation."""
        await self._get_session_id()
        try:
            return await super().get_items(limit=limit)
        except NotFoundError:
            return None

    def _report(self, missing: Missing, *, is_deleted: bool) -> None:
        """Report a loss once; report a deleted conversation only once, even if the log grows."""
        items = () if is_deleted else missing.items
        loss_id = msgspec.json.encode((missing.conversation_id, items)).hex()
        if loss_id in self._reported:
            return
        self._reported.add(loss_id)
        self.missing.append(missing)
        log.warning(
            "conversation.unlinked",
            conversation_id=missing.conversation_id,
            items=len(missing.items),
        )
        if self._on_missing is not None:
            self._on_missing(missing)

    async def reseed(self) -> str:
        """Create a new conversation at the provider with the whole history; return its id.

        The old conversation stays unchanged. A log named after the conversation's id continues
        under the new id.
        """
        async with self._lock:
            return await self._reseed()

    async def _reseed(self) -> str:
        await self._check()
        own = await self.log()
        history = await own.get_items(-1)
        self._session_id = await start_openai_conversations_session(self._openai_client)
        if history:
            await super().add_items(list(history))
        if self._key is None:
            fresh = self._open_log(f"openai:{self._session_id}")
            await fresh.add_items(history, batch_id=f"reseed:{self._session_id}")
            await own.close()
            self._log = fresh
        return self._session_id

    async def close(self) -> None:
        """Close the log; the provider's conversation stays."""
        if self._log is not None:
            await self._log.close()

    async def __aenter__(self) -> "GuardedConversation":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_NO_LIMIT = 2**31 - 1


def _fingerprints(items: Sequence[Any]) -> list[bytes]:
    """Return a fingerprint of each item that ignores the id the provider gave it."""
    return [_fingerprint(item) for item in items]


def _fingerprint(item: Any) -> bytes:
    try:
        new_item: NewItem = to_items([item])[0]
    except InvalidItem:
        return b""
    return new_item.fingerprint


def _compare(local: list[bytes], remote: list[bytes]) -> tuple[list[int], list[int]]:
    """Return the indexes of local items missing remotely, and of remote items unknown here.

    Among equal items, those outside the longest matching blocks count as missing. Reasoning has
    no fingerprint: it belongs to the provider and is never reported.
    """
    if local == remote:
        return [], []
    missing, unknown = Counter(local), Counter(remote)
    missing.subtract(remote)
    unknown.subtract(local)
    blocks = SequenceMatcher(None, local, remote, autojunk=False).get_matching_blocks()
    matched_local = {block.a + n for block in blocks for n in range(block.size)}
    matched_remote = {block.b + n for block in blocks for n in range(block.size)}
    return _pick(local, missing, matched_local), _pick(remote, unknown, matched_remote)


def _pick(fingerprints: list[bytes], counts: Counter[bytes], matched: set[int]) -> list[int]:
    """Return `counts` indexes of each fingerprint, unmatched ones first."""
    picked: list[int] = []
    order = sorted(range(len(fingerprints)), key=lambda index: (index in matched, index))
    for index in order:
        fingerprint = fingerprints[index]
        if fingerprint and counts[fingerprint] > 0:
            counts[fingerprint] -= 1
            picked.append(index)
    return sorted(picked)


def _without_id(item: Any) -> Any:
    return {name: value for name, value in item.items() if name not in ("id", "status")}
