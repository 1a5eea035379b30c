"""Follow the log and write the facts for webhooks to the outbox.

Every process follows the log. The cursor moves in the commit that writes the messages, so each fact
becomes one message. No turn waits for this.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.delivery import Fact, OutboxMessage
from holdfast.core.model.session import Session
from holdfast.core.transaction.changes import Event
from holdfast.core.transaction.commands import QueueFacts
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.store import FeedPlace, ItemQuery, PlacedEvent
from holdfast.webhooks.facts import (
    NO_TEXTS,
    TurnTexts,
    event_fact,
    event_name,
    is_wanted,
    paused_message,
    turn_texts,
)
from holdfast.webhooks.settings import WebhookSettings

BATCH = 50
POLL_SECONDS = 0.5
RETRY_SECONDS = 5.0
MAX_AGE_SECONDS = 24 * 3600.0
"""Older facts are not sent: a webhook that was off for a month does not get that month's facts."""
MAX_ITEMS = 500
MAX_SESSIONS = 4096
START = FeedPlace()


class _Span(msgspec.Struct):
    first_seq: int = 0
    last_seq: int = 0


class WebhookFeed:
    """Follows the facts of every tenant that has webhooks."""

    def __init__(
        self, gateway: Gateway, webhooks: Sequence[WebhookSettings], wake: Callable[[], None]
    ) -> None:
        self._gateway = gateway
        self._webhooks = webhooks
        self._wake = wake
        """Called when the outbox has new messages."""
        self._sessions: OrderedDict[SessionId, Session] = OrderedDict()
        self._reached: dict[Tenant, FeedPlace] = {}
        """Up to where the log has no facts of a tenant after its stored cursor."""

    async def run(self) -> None:
        """Follow the log until cancelled; after a failure continue from the stored cursor."""
        tenants = {Tenant(webhook.tenant) for webhook in self._webhooks}
        async with asyncio.TaskGroup() as group:
            for tenant in tenants:
                group.create_task(self._follow(tenant), name="holdfast-webhooks")

    async def _follow(self, tenant: Tenant) -> None:
        while True:
            try:
                is_behind = await self.step(tenant)
            except HoldfastError as exc:
                log.failed("webhooks.not_read", exc, tenant=tenant)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except Exception:  # noqa: BLE001 - the top of a task that must go on
                log.exception("webhooks.failed", tenant=tenant)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not is_behind:
                await asyncio.sleep(POLL_SECONDS)

    async def step(self, tenant: Tenant) -> bool:
        """Write the next facts to the outbox; return whether there may be more."""
        view = f"webhooks:{tenant}"
        stored = await self._gateway.store.channels.cursor(view)
        read = self._gateway.read
        if stored is None:
            end = await read.log_end()
            upto = (end.txid, end.position)
            await self._gateway.submit(QueueFacts(tenant=tenant, view=view, after=None, upto=upto))
            return True
        end, after = await read.log_end(), max(FeedPlace(*stored), self._reached.get(tenant, START))
        events = await read.feed(tenant, after=after, limit=BATCH) if end > after else []
        if not events:
            self._reached[tenant] = max(end, after)
            return False
        facts = [fact for placed in events for fact in await self._facts(tenant, placed)]
        place = events[-1].place
        is_written = await self._gateway.submit(
            QueueFacts(
                tenant=tenant, view=view, after=stored, upto=(place.txid, place.position),
                facts=tuple(facts),
            )
        )  # fmt: skip
        if facts and is_written:
            self._wake()
        return True

    async def _facts(self, tenant: Tenant, placed: PlacedEvent) -> list[Fact]:
        event = placed.event
        name = event_name(event)
        if not any(name in webhook.events for webhook in self._webhooks):
            return []
        if event.at < self._gateway.clock.now() - MAX_AGE_SECONDS:
            return []
        session = await self._session(tenant, event.session_id)
        if session is None:
            return []
        webhooks = [one for one in self._webhooks if is_wanted(one, event, session.key)]
        texts = NO_TEXTS
        if any(webhook.content for webhook in webhooks) and event.turn_id is not None:
            texts = await self._texts(session, event)
        return [
            event_fact(webhook, event, session.key, texts if webhook.content else NO_TEXTS)
            for webhook in webhooks
        ]

    async def _session(self, tenant: Tenant, session_id: SessionId) -> Session | None:
        """Return a session from the cache; callers use only its immutable fields."""
        session = self._sessions.get(session_id)
        if session is None:
            view = await self._gateway.read.session(tenant, session_id=session_id)
            if view is None:
                return None
            session = self._sessions[session_id] = view.session
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return session

    async def _texts(self, session: Session, event: Event) -> TurnTexts:
        span = msgspec.json.decode(event.body, type=_Span)
        count = span.last_seq - span.first_seq + 1
        if not span.first_seq or count < 1:
            return NO_TEXTS
        query = ItemQuery(after=span.first_seq - 1, limit=min(count, MAX_ITEMS), view="log")
        view = await self._gateway.read.session(session.tenant, session_id=session.id)
        if view is None:
            return NO_TEXTS
        # The record is read first: the commit then notices every erasure after it.
        items = await self._gateway.read.items(view.session, query)
        return turn_texts(items, view.session.record_no)

    def on_paused(self, tenant: Tenant, schedule: str, reason: str) -> tuple[OutboxMessage, ...]:
        """Return the messages to send if a schedule is paused."""
        now = self._gateway.clock.now()
        messages = [
            paused_message(webhook, tenant, schedule, reason, now) for webhook in self._webhooks
        ]
        return tuple(message for message in messages if message is not None)
