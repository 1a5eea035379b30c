"""When a session rolls over by policy: the default is never.

Judged on the last activity of a user alone; heartbeats and cron neither delay nor cause it.
"""

from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Literal

import msgspec

ResetMode = Literal["none", "idle", "daily"]
Rollover = Literal["soft", "hard"]


class ResetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`soft` ends the runtime and keeps everything; `hard` starts the next generation."""

    mode: ResetMode = "none"
    idle_seconds: float = 3600.0
    at: time = time(4, 0)
    zone: tzinfo = UTC
    rollover: Rollover | None = None

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

        A boundary that a DST change skips falls where the clock jumps to; one that it repeats
        counts the first time.
        """
        day = datetime.fromtimestamp(now, self.zone).date()
        for back in range(3):
            local = datetime.combine(day - timedelta(days=back), self.at, self.zone)
            moment = local.replace(fold=0).timestamp()
            if moment <= now:
                return moment
        raise AssertionError("a boundary lies within every three days")


NEVER = ResetPolicy()
