"""Compute when a schedule runs: cron in its time zone, a period, or one time."""

import re
from datetime import UTC, datetime, timedelta, tzinfo

from holdfast.core.ids import read_key
from holdfast.core.model.schedule import ISOLATED, RESERVED_PREFIX, ScheduleSpec, next_period

MISSED_SECONDS = 24 * 3600.0
"""Missed times older than this are not run."""
LATE_SECONDS = 60.0
"""A due time older than this was missed."""
MIN_PERIOD_SECONDS = 1.0
MAX_PERIOD_SECONDS = 366 * 86400.0
MAX_NAME = 64
MAX_TEXT = 100_000
"""Characters of a prompt or of instructions; the scheduler reads them with every look."""
MAX_TIMEOUT_SECONDS = 30 * 86400.0
MAX_KEEP_RUNS = 10_000
CRON_FIELDS = 5
HOUR_FIELD = 2
"""Index among the six fields of cronsim, which begin with the seconds."""
_PERIOD = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def check_spec(spec: ScheduleSpec) -> None:
    """Raise `ValueError` for a schedule that cannot run."""
    if not _is_name(spec.name):
        raise ValueError(
            f"name must be a word of at most {MAX_NAME} characters without '/', ':' and blanks"
        )
    _check_texts(spec)
    to = spec.deliver
    if to is not None and not all(map(str.isprintable, (to.channel, to.to, to.thread))):
        raise ValueError("deliver must have no control characters")
    if sum(map(bool, (spec.cron, spec.every, spec.at))) != 1:
        raise ValueError("exactly one of cron, every and at is needed")
    if spec.cron and len(spec.cron.split()) != CRON_FIELDS:
        raise ValueError(f"cron must have five fields, not {len(spec.cron.split())}")
    if spec.session != ISOLATED:
        read_key(spec.session)
        if spec.session.startswith(RESERVED_PREFIX):
            raise ValueError(f"session must not start with {RESERVED_PREFIX}")
    if not 0 < spec.timeout_seconds <= MAX_TIMEOUT_SECONDS:
        raise ValueError(f"timeout_seconds must be from 0 to {MAX_TIMEOUT_SECONDS:.0f}")
    if not 1 <= spec.keep_runs <= MAX_KEEP_RUNS:
        raise ValueError(f"keep_runs must be from 1 to {MAX_KEEP_RUNS}")
    _zone(spec)
    next_time(spec, 0.0, created_at=0.0)


def _check_texts(spec: ScheduleSpec) -> None:
    if not spec.prompt.strip():
        raise ValueError("prompt must not be empty")
    for name, text in (("prompt", spec.prompt), ("instructions", spec.instructions)):
        if len(text) > MAX_TEXT:
            raise ValueError(f"{name} has {len(text):,} characters; at most {MAX_TEXT:,}")


def _is_name(name: str) -> bool:
    has_reserved = any(character in "/:" or character.isspace() for character in name)
    return 0 < len(name) <= MAX_NAME and name.isprintable() and not has_reserved


def next_time(spec: ScheduleSpec, after: float, *, created_at: float) -> float | None:
    """Return the first time after `after`; `None` if there is none."""
    if spec.at:
        at = _at(spec)
        return at if at > after else None
    if spec.every:
        return next_period(created_at, period_seconds(spec.every), after)
    return _next_cron(spec, max(after, 0.0))


def _next_cron(spec: ScheduleSpec, after: float) -> float | None:
    """Return the next time of a cron expression.

    A time that does not exist (the gap in spring) runs at the next one that does, once for all
    times of the gap. When an hour repeats in autumn, named hours run once and every hour (`*`) runs
    twice. cronsim also decides by the minutes, and has no run for `*/30 2 * * *` in a gap, so it is
    asked for wall times.
    """
    zone = _zone(spec)
    start = datetime.fromtimestamp(after, UTC).astimezone(zone)
    # Most gateways have no schedules, so import this only with the first one.
    from cronsim import CronSim, CronSimError

    try:
        walls = CronSim(spec.cron, start.replace(tzinfo=None, fold=0))
        if not walls.parts[HOUR_FIELD].startswith("*"):
            return next((at for wall in walls if (at := _existing(wall, zone)) > after), None)
        wall, timestamp = next(walls), next(CronSim(spec.cron, start)).timestamp()
    except CronSimError as exc:
        raise ValueError(f"cron: {exc}") from exc
    except StopIteration:
        return None
    at = _existing(wall, zone)
    return at if after < at < timestamp else timestamp


def latest_missed(spec: ScheduleSpec, due: float, now: float, *, created_at: float) -> float:
    """Return the latest scheduled time from `due` on that is not after `now`."""
    latest = due
    if now - due > MISSED_SECONDS:
        first = next_time(spec, now - MISSED_SECONDS, created_at=created_at)
        if first is None or first > now:
            return due
        latest = first
    while True:
        following = next_time(spec, latest, created_at=created_at)
        if following is None or following > now:
            return latest
        latest = following


def period_seconds(every: str) -> float:
    """Return the seconds of a period such as `15m`."""
    match = _PERIOD.fullmatch(every.strip())
    if match is None:
        raise ValueError(f"every must be a number and s, m, h or d, not {every!r}")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds < MIN_PERIOD_SECONDS:
        raise ValueError("every must be at least one second")
    if seconds > MAX_PERIOD_SECONDS:
        raise ValueError("every must be at most 366 days")
    return seconds


def _zone(spec: ScheduleSpec) -> tzinfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(spec.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ValueError(f"timezone: {spec.timezone!r} is not an IANA time zone") from exc


def _at(spec: ScheduleSpec) -> float:
    try:
        at = datetime.fromisoformat(spec.at)
    except ValueError as exc:
        raise ValueError(f"at must be a time as ISO 8601, not {spec.at!r}") from exc
    if at.year >= 2200:
        raise ValueError(f"at must be before the year 2200, not {spec.at!r}")
    if at.tzinfo is not None:
        return at.timestamp()
    return _existing(at, _zone(spec))


def _existing(local: datetime, zone: tzinfo) -> float:
    """Return the timestamp of a wall time; one that does not exist becomes the next that does.

    Of two equal wall times in autumn it is the first.
    """
    while (time := local.replace(tzinfo=zone).timestamp()) and not _exists(local, time, zone):
        local = local.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return time


def _exists(local: datetime, time: float, zone: tzinfo) -> bool:
    return datetime.fromtimestamp(time, zone).replace(tzinfo=None, fold=0) == local.replace(fold=0)


def time_name(at: float) -> str:
    """Return a scheduled time in the form used in keys and ids."""
    time = datetime.fromtimestamp(at, UTC)
    # Two manual runs within one second need different names.
    fraction = f".{time.microsecond:06}" if time.microsecond else ""
    return f"{time:%Y-%m-%dT%H:%M:%S}{fraction}Z"
