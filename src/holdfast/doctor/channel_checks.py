"""Checks of channels: dead letters, messages that wait too long, and receivers that fail."""

from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime

from holdfast.core.decisions.channels.access import is_gap
from holdfast.core.model.channels import ReceiverRow
from holdfast.doctor.findings import Finding
from holdfast.ports.store import Store

LATE_SECONDS = 600.0
MAX_UPDATES = 100
STALE_SECONDS = 900.0
"""An older failure was not followed by another attempt, so no gateway runs."""
DAY_SECONDS = 24 * 3600.0


async def check_channels(store: Store, now: float) -> AsyncIterator[Finding]:
    """Yield findings about the outbox, receivers, unreadable updates and paused schedules."""
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
    for finding in check_receivers(await store.channels.receivers(), now):
        yield finding
    for schedule in await store.schedules.schedules():
        if schedule.is_paused and schedule.failures:
            detail = f"{schedule.name}: {schedule.reason}"
            yield Finding(code="schedule_paused", subject=schedule.id, detail=detail)


def check_receivers(receivers: Iterable[ReceiverRow], now: float) -> Iterator[Finding]:
    """Yield the channels that cannot receive, and long gaps of the last day."""
    for row in receivers:
        name = f"{row.channel} ({row.kind})"
        if row.is_failing and row.failed_at is not None and now - row.failed_at < STALE_SECONDS:
            since = utc(row.failing_since)
            detail = f"{name}: {row.reason} (since {since})"
            yield Finding(code="channel_failing", subject=row.channel, detail=detail)
        begin, end = row.gap_from, row.gap_until
        if is_gap(row, now):
            begin, end = row.received_at, None
        if begin is None or now - (end or begin + row.keeps_seconds) > DAY_SECONDS:
            continue
        until = f"until {utc(end)}" if end is not None else "up to now"
        kept = f"the platform keeps messages for {row.keeps_seconds / 60:.0f} min"
        detail = f"{name}: nothing was received from {utc(begin)} {until}; {kept}"
        yield Finding(code="channel_gap", subject=row.channel, detail=detail)


def utc(at: float | None) -> str:
    """Return a time in words, in UTC."""
    return datetime.fromtimestamp(at or 0.0, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
