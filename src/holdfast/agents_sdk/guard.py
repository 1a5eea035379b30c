"""OpenAI's Conversations, watched over: every item is also kept here, and nothing is missed twice.

For those who stay with the provider's own memory. A provider that unlinks what was said, without a
word, is noticed when the history is read; what is returned is the whole of it, from our log.
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

from holdfast.agents_sdk.houses import StoreName
from holdfast.agents_sdk.session import HoldfastSession
from holdfast.agents_sdk.wire import to_items
from holdfast.core.errors import InvalidItem
from holdfast.core.model.items import NewItem
from holdfast.engine.logging import log

OnMissing = Callable[["Missing"], None]


class Missing(msgspec.Struct, frozen=True):
    """What a provider's conversation no longer has of what was added to it."""

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
    """Return a conversation of OpenAI's that loses nothing.

    What is added goes to the provider and into the log; `key` names the log, and is best given:
    else it follows the conversation's id. `on_missing` is told once of each loss.
    """
    return GuardedConversation(
        session, lambda name: HoldfastSession(name, store, url=url, api_key=api_key),
        on_missing, key,
    )  # fmt: skip


class GuardedConversation(OpenAIConversationsSession):
    """A provider's conversation and our log of it; to the SDK it is the former."""

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
        self._told: set[str] = set()
        self._one_at_a_time = asyncio.Lock()
        """What is on its way to both would else be taken for somebody else's."""
        self.missing: list[Missing] = []
        """Losses that were noticed, the latest last."""

    async def log(self) -> HoldfastSession:
        """Return the log of the conversation."""
        if self._log is None:
            self._log = self._open_log(self._key or f"openai:{await self._get_session_id()}")
        return self._log

    # ── the SDK's protocol ──────────────────────────────────────────────────────────────────

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the whole history, from the log, once the provider's was compared with it.

        A provider that cannot be reached now is compared with it another time.
        """
        async with self._one_at_a_time:
            with self._out_of_reach():
                await self._check()
            settings = self.session_settings
            if limit is None and settings is not None:
                limit = settings.limit
            return await (await self.log()).get_items(limit)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the provider, if it and its conversation are there, and to the log."""
        to_items(items)  # what the log would refuse is not sent either
        async with self._one_at_a_time:
            own = await self._open()
            with self._out_of_reach(), contextlib.suppress(NotFoundError):
                await super().add_items(items)
            await own.add_items(items)

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the last item out of the log's view, and away from the provider if it has it."""
        async with self._one_at_a_time:
            await self._check()
            own = await self._open()
            item, last = await own.get_items(1), await self._there(1) or []
            if item and last and _marks(last) == _marks(item):
                await super().pop_item()
            return await own.pop_item()

    async def clear_session(self) -> None:
        """Delete the provider's conversation, and begin the log's next generation."""
        async with self._one_at_a_time:
            own = await self._open() if self._session_id is not None else self._log
            try:
                await super().clear_session()
            except NotFoundError:
                await self._clear_session_id()
            if own is not None:
                await own.clear_session()

    # ── watching over it ────────────────────────────────────────────────────────────────────

    async def check(self) -> Missing | None:
        """Compare the provider's conversation with the log; return what it has lost, if anything.

        What others added to the conversation is taken into the log. One that is gone has lost all.
        """
        async with self._one_at_a_time:
            return await self._check()

    async def _check(self) -> Missing | None:
        own = await self._open()
        here, found_there = await own.get_items(-1), await self._there(_EVERYTHING)
        there = found_there or []
        lost, new = _compare(_marks(here), _marks(there))
        for item in (there[place] for place in new):
            # By its id it is taken once, also where several look at the same time.
            name = item.get("id")
            await own.add_items([_without_id(item)], batch_id=f"guard:{name}" if name else None)
        if not lost:
            return None
        found = Missing(await self._get_session_id(), tuple(here[place] for place in lost))
        self._tell(found, is_gone=found_there is None)
        return found

    async def _open(self) -> HoldfastSession:
        """Return the log; one that is closed says so before anything is done at the provider."""
        own = await self.log()
        await own.get_items(0)
        return own

    @contextlib.contextmanager
    def _out_of_reach(self) -> Iterator[None]:
        """Go on with the log alone where the provider does not answer, and say so."""
        try:
            yield
        except (APIConnectionError, InternalServerError, RateLimitError) as exc:
            log.warning(
                "conversation.unreachable",
                conversation_id=self._session_id,
                error=type(exc).__name__,
            )

    async def _there(self, limit: int) -> list[TResponseInputItem] | None:
        """Return the last items that the provider has; none, if it has no such conversation."""
        await self._get_session_id()
        try:
            return await super().get_items(limit=limit)
        except NotFoundError:
            return None

    def _tell(self, found: Missing, *, is_gone: bool) -> None:
        items = () if is_gone else found.items
        name = msgspec.json.encode((found.conversation_id, items)).hex()
        if name in self._told:
            return
        self._told.add(name)
        self.missing.append(found)
        log.warning(
            "conversation.unlinked", conversation_id=found.conversation_id, items=len(found.items)
        )
        if self._on_missing is not None:
            self._on_missing(found)

    async def reseed(self) -> str:
        """Begin a new conversation at the provider with the whole history; return its id.

        The one that lost items is left as it is. Where the log follows the conversation's id, it
        goes on under the new one.
        """
        async with self._one_at_a_time:
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
        """Close the log; the conversation stays."""
        if self._log is not None:
            await self._log.close()

    async def __aenter__(self) -> "GuardedConversation":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_EVERYTHING = 2**31 - 1


def _marks(items: Sequence[Any]) -> list[bytes]:
    """Return what tells items apart, whatever ids a provider gave them."""
    return [_mark(item) for item in items]


def _mark(item: Any) -> bytes:
    try:
        read: NewItem = to_items([item])[0]
    except InvalidItem:
        return b""
    return read.fingerprint


def _compare(here: list[bytes], there: list[bytes]) -> tuple[list[int], list[int]]:
    """Return the places here that are missing there, and the places there that are not from here.

    Of equal ones, those are missing that stand out of line. Reasoning has no mark, is the
    provider's own, and is not missed.
    """
    if here == there:
        return [], []
    lacking, surplus = Counter(here), Counter(there)
    lacking.subtract(there)
    surplus.subtract(here)
    matched = SequenceMatcher(None, here, there, autojunk=False).get_matching_blocks()
    in_line_here = {block.a + n for block in matched for n in range(block.size)}
    in_line_there = {block.b + n for block in matched for n in range(block.size)}
    return _those(here, lacking, in_line_here), _those(there, surplus, in_line_there)


def _those(marks: list[bytes], count: Counter[bytes], in_line: set[int]) -> list[int]:
    """Return so many places of each mark, those that are not in line first."""
    found: list[int] = []
    places = sorted(range(len(marks)), key=lambda place: (place in in_line, place))
    for place in places:
        mark = marks[place]
        if mark and count[mark] > 0:
            count[mark] -= 1
            found.append(place)
    return sorted(found)


def _without_id(item: Any) -> Any:
    return {name: value for name, value in item.items() if name not in ("id", "status")}
