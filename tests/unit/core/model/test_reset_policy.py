"""When a session rolls over by policy, in every zone's own time."""

from datetime import datetime, time
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.core.errors import InvalidSetting
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from tests.unit.core.builders import NOW


def at(zone: str, text: str) -> float:
    """Return a moment written with its offset, checked against the zone."""
    moment = datetime.fromisoformat(text)
    assert moment.utcoffset() == moment.astimezone(ZoneInfo(zone)).utcoffset(), "wrong offset"
    return moment.timestamp()


def daily(zone: str, hour: int, minute: int = 0) -> ResetPolicy:
    return ResetPolicy(mode="daily", at=time(hour, minute), zone=ZoneInfo(zone))


def test_the_default_is_never() -> None:
    assert NEVER.judge(0.0, NOW) is None


def test_a_session_without_user_activity_never_rolls_over() -> None:
    assert ResetPolicy(mode="idle", idle_seconds=1).judge(None, NOW) is None
    assert daily("UTC", 4).judge(None, NOW) is None


@pytest.mark.parametrize(("idle", "verdict"), [(59.9, None), (60.0, "soft"), (10**9, "soft")])
def test_idle_is_judged_to_the_second_and_is_soft(idle: float, verdict: str | None) -> None:
    assert ResetPolicy(mode="idle", idle_seconds=60).judge(NOW - idle, NOW) == verdict


def test_daily_is_hard_by_default() -> None:
    day = 86_400
    assert daily("UTC", 4).judge(NOW - day, NOW) == "hard"
    soft = ResetPolicy(mode="daily", rollover="soft")
    assert soft.judge(NOW - day, NOW) == "soft"
    assert ResetPolicy(mode="idle", idle_seconds=1, rollover="hard").judge(NOW - 2, NOW) == "hard"


def test_daily_rolls_over_once_the_zones_clock_has_shown_the_hour() -> None:
    policy = daily("Europe/Berlin", 4)
    evening = at("Europe/Berlin", "2026-03-10T22:00:00+01:00")
    assert policy.judge(evening, at("Europe/Berlin", "2026-03-11T03:59:59+01:00")) is None
    assert policy.judge(evening, at("Europe/Berlin", "2026-03-11T04:00:00+01:00")) == "hard"


def test_activity_at_the_very_boundary_belongs_to_the_new_day() -> None:
    policy = daily("Europe/Berlin", 4)
    boundary = at("Europe/Berlin", "2026-03-11T04:00:00+01:00")
    assert policy.judge(boundary, boundary + 3600) is None
    assert policy.judge(boundary - 0.001, boundary) == "hard"


SKIPPED = [
    ("America/New_York", time(2, 30), "2026-03-08T03:00:00-04:00"),
    ("Europe/Berlin", time(2, 0), "2026-03-29T03:00:00+02:00"),
    ("Australia/Lord_Howe", time(2, 15), "2026-10-04T02:30:00+11:00"),
    ("America/Nuuk", time(23, 30), "2026-03-29T00:00:00-01:00"),
]


@pytest.mark.parametrize(("zone", "hour", "jump"), SKIPPED, ids=[zone for zone, _, _ in SKIPPED])
def test_an_hour_that_the_clock_skips_falls_where_it_jumps_to(
    zone: str, hour: time, jump: str
) -> None:
    policy = ResetPolicy(mode="daily", at=hour, zone=ZoneInfo(zone))
    moment = at(zone, jump)
    assert policy.last_boundary(moment) == moment
    assert policy.last_boundary(moment + 3600) == moment
    assert policy.last_boundary(moment - 1) < moment - 80_000, "the day before's"


REPEATED = [
    ("America/New_York", time(1, 30), "2026-11-01T01:30:00-04:00", 3600),
    ("Europe/Berlin", time(2, 30), "2026-10-25T02:30:00+02:00", 3600),
    ("Australia/Lord_Howe", time(1, 45), "2026-04-05T01:45:00+11:00", 1800),
]


@pytest.mark.parametrize(("zone", "hour", "first", "later"), REPEATED, ids=[r[0] for r in REPEATED])
def test_an_hour_that_the_clock_repeats_counts_the_first_time(
    zone: str, hour: time, first: str, later: int
) -> None:
    policy = ResetPolicy(mode="daily", at=hour, zone=ZoneInfo(zone))
    moment = at(zone, first)
    assert policy.last_boundary(moment) == moment
    assert policy.last_boundary(moment + later) == moment, "not a second time"


def test_a_day_that_a_zone_leaves_out_has_one_boundary_all_the_same() -> None:
    policy = daily("Pacific/Apia", 12)
    before = at("Pacific/Apia", "2011-12-29T12:00:00-10:00")
    after = at("Pacific/Apia", "2011-12-31T12:00:00+14:00")
    assert policy.last_boundary(after) == after
    assert before < policy.last_boundary(after - 1) <= after - 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "hourly"}, {"rollover": "firm"}, {"idle_seconds": 0}, {"idle_seconds": "60"},
        {"idle_seconds": float("nan")}, {"at": "04:00"}, {"zone": "Europe/Berlin"},
    ],
    ids=str,
)  # fmt: skip
def test_a_policy_that_means_nothing_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match="reset"):
        ResetPolicy(**wrong)
