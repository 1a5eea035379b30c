"""When a session rolls over automatically: by default never.

Only the last activity of a user counts; heartbeats and cron neither delay nor cause it.
"""

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Literal

import msgspec

from holdfast.core.errors import InvalidSetting

ResetMode = Literal["none", "idle", "daily"]
Rollover = Literal["soft", "hard"]


class ResetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`soft` ends the runtime and keeps everything; `hard` starts the next generation."""

    mode: ResetMode = "none"
    idle_seconds: float = 3600.0
    at: time = time(4, 0)
    zone: tzinfo = UTC
    rollover: Rollover | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("none", "idle", "daily"):
            raise InvalidSetting(f"reset.mode must be none, idle or daily, not {self.mode!r}")
        if self.rollover not in (None, "soft", "hard"):
            raise InvalidSetting(f"reset.rollover must be soft or hard, not {self.rollover!r}")
        if not isinstance(self.idle_seconds, int | float) or not self.idle_seconds > 0:
            raise InvalidSetting("reset.idle_seconds must be a positive number")
        if not isinstance(self.at, time) or not isinstance(self.zone, tzinfo):
            raise InvalidSetting("reset.at must be a time of day, reset.zone a time zone")

    def judge(self, last_user_activity_at: float | None, now: float) -> Rollover | None:
        """Return the rollover that is due now, if any."""
        if last_user_activity_at is None:
            return None
        if self.mode == "idle" and now - last_user_activity_at >= self.idle_seconds:
            return self.rollover or "soft"
        if self.mode == "daily" and last_user_activity_at < self.last_boundary(now):
            return self.rollover or "hard"
        return None

    def last_boundary(self, now: float) -> float:
        """Return the latest moment, not after `now`, at which the zone's clock showed `at`.

        A boundary that a DST change skips falls on the moment of the change; if the clock shows it
        twice, the first time counts.
        """
        day = datetime.fromtimestamp(now, self.zone).date()
        for back in range(3):
            moment = self._boundary(day - timedelta(days=back))
            if moment <= now:
                return moment
        raise AssertionError("a boundary lies within every three days")

    def _boundary(self, day: date) -> float:
        local = datetime.combine(day, self.at, self.zone)
        # Interpret the time with the UTC offsets before and after a possible clock change.
        moment, other = local.timestamp(), local.replace(fold=1).timestamp()
        if other >= moment:
            return moment
        # The clock never shows this time. Search for the second at which the clock jumps.
        before, after = int(other), int(moment)
        while after - before > 1:
            middle = (before + after) // 2
            if _offset(middle, self.zone) == _offset(before, self.zone):
                before = middle
            else:
                after = middle
        return float(after)


def _offset(moment: int, zone: tzinfo) -> timedelta | None:
    return datetime.fromtimestamp(moment, zone).utcoffset()


NEVER = ResetPolicy()
