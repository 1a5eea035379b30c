"""Checks of channels: dead letters, messages that wait too long, and receivers that fail."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from holdfast.doctor.findings import Finding
from holdfast.ports.store import Store

LATE_SECONDS = 600.0
MAX_UPDATES = 100
HEALTHY_STATES = frozenset({"starting", "receiving", "webhook", "another worker receives"})


async def check_channels(store: Store, now: float) -> AsyncIterator[Finding]:
    """Yield findings about the outbox, unreadable updates and paused schedules."""
    for count in await store.channels.counts():
        oldest = now - count.oldest_at
        if count.state == "dead":
            detail = f"{count.channel}: {count.count} messages were given up"
            yield Finding(code="outbox_dead", subject=count.channel, detail=detail)
        elif count.state in ("pending", "sending") and oldest > LATE_SECONDS:
            detail = f"{count.channel}: {count.count} wait, the oldest for {oldest / 60:.0f} min"
            yield Finding(code="outbox_late", subject=count.channel, detail=detail)
    for update in await store.channels.dead_updates(MAX_UPDATES):
        detail = f"{update.channel}: update {update.update_id}: {update.reason}"
        subject = f"{update.channel}/{update.update_id}"
        yield Finding(code="update_dead", subject=subject, detail=detail)
    for schedule in await store.schedules.schedules():
        if schedule.is_paused and schedule.failures:
            detail = f"{schedule.name}: {schedule.reason}"
            yield Finding(code="schedule_paused", subject=schedule.id, detail=detail)


def check_receivers(listed: Iterable[dict[str, Any]]) -> Iterator[Finding]:
    """Yield the channels of a gateway that cannot receive, with the reason."""
    for channel in listed:
        if channel["state"] not in HEALTHY_STATES:
            detail = f"{channel['name']} ({channel['kind']}): {channel['state']}"
            yield Finding(code="channel_failing", subject=str(channel["name"]), detail=detail)
