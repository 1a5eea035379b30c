"""When a schedule runs: cron in its zone, a period, or one time."""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast.core.ids import read_key
from holdfast.core.model.schedule import ISOLATED, RESERVED_PREFIX, ScheduleSpec

MISSED_SECONDS = 24 * 3600.0
"""How far back a missed time is made up for."""
LATE_SECONDS = 60.0
"""A due time that is older than this was missed."""
MIN_PERIOD_SECONDS = 1.0
_PERIOD = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def check_spec(spec: ScheduleSpec) -> None:
    """Raise `ValueError` for a schedule that cannot run."""
    if not spec.name or any(character in spec.name for character in "/: \x1f"):
        raise ValueError("name must be a word without '/', ':' and blanks")
    if not spec.prompt.strip():
        raise ValueError("prompt must not be empty")
    if sum(map(bool, (spec.cron, spec.every, spec.at))) != 1:
        raise ValueError("exactly one of cron, every and at is needed")
    if spec.session != ISOLATED:
        read_key(spec.session)
        if spec.session.startswith(RESERVED_PREFIX):
            raise ValueError(f"session must not start with {RESERVED_PREFIX}")
    if spec.timeout_seconds <= 0 or spec.keep_runs < 1:
        raise ValueError("timeout_seconds and keep_runs must be positive")
    next_time(spec, 0.0, created_at=0.0)


def next_time(spec: ScheduleSpec, after: float, *, created_at: float) -> float | None:
    """Return the first time behind `after`; `None` if there is none."""
    if spec.at:
        at = _at(spec)
        return at if at > after else None
    if spec.every:
        period = period_seconds(spec.every)
        count = max(int((after - created_at) // period) + 1, 1)
        return created_at + count * period
    # A time that does not exist runs at the next one that does; a repeated fixed hour runs once.
    start = datetime.fromtimestamp(max(after, 0.0), UTC).astimezone(_zone(spec))
    try:
        found = next(CronSim(spec.cron, start))
    except CronSimError as exc:
        raise ValueError(f"cron: {exc}") from exc
    except StopIteration:
        return None
    return found.timestamp()


def latest_missed(spec: ScheduleSpec, due: float, now: float, *, created_at: float) -> float:
    """Return the last time that is not behind `now`, from a due time on."""
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
    return seconds


def _zone(spec: ScheduleSpec) -> ZoneInfo:
    try:
        return ZoneInfo(spec.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ValueError(f"timezone: {spec.timezone!r} is not an IANA time zone") from exc


def _at(spec: ScheduleSpec) -> float:
    try:
        at = datetime.fromisoformat(spec.at)
    except ValueError as exc:
        raise ValueError(f"at must be a time as ISO 8601, not {spec.at!r}") from exc
    if at.tzinfo is None:
        at = at.replace(tzinfo=_zone(spec))
    return at.timestamp()


def time_name(at: float) -> str:
    """Return a scheduled time as keys and ids contain it."""
    time = datetime.fromtimestamp(at, UTC)
    # Two runs by hand within one second have two names.
    fraction = f".{time.microsecond:06}" if time.microsecond else ""
    return f"{time:%Y-%m-%dT%H:%M:%S}{fraction}Z"
