"""The daily hour, against a walk along the clock on the wall: gaps, folds, lost days.

A day's boundary is the first moment at which the wall shows that day's hour, or is past it.
"""

from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.model.reset_policy import ResetPolicy

QUARTER = timedelta(minutes=15)
CHANGES = {
    "America/New_York": [(2026, 3, 8), (2026, 11, 1)],
    "Australia/Lord_Howe": [(2026, 4, 5), (2026, 10, 4)],
    "America/Nuuk": [(2026, 3, 28), (2026, 10, 24), (2023, 3, 25)],
    "Europe/Berlin": [(2026, 3, 29), (2026, 10, 25)],
    "Pacific/Apia": [(2011, 12, 30), (2012, 4, 1)],
    "Asia/Kathmandu": [(2026, 5, 5)],
    "UTC": [(2026, 1, 1)],
}
changes = st.sampled_from([(zone, day) for zone, days in CHANGES.items() for day in days])
hours = st.integers(0, 95).map(lambda n: time(n // 4, n % 4 * 15))


@cache
def day_boundary(zone: str, day: date, at: time) -> datetime:
    """Return the first quarter of an hour at which the wall is not before the day's hour."""
    wanted = datetime.combine(day, at)
    moment = datetime.combine(day, time(0), UTC) - timedelta(hours=40)
    while moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None) < wanted:
        moment += QUARTER
    return moment


def last_boundary(zone: str, at: time, now: datetime) -> datetime:
    """Return the latest boundary of the days around that is not after now."""
    today = now.astimezone(ZoneInfo(zone)).date()
    days = [today + timedelta(days=offset) for offset in range(-3, 3)]
    return max(found for day in days if (found := day_boundary(zone, day, at)) <= now)


@given(changes, hours, st.integers(-150, 150), st.integers(0, 899))
@example(("America/New_York", (2026, 3, 8)), time(2, 30), 30, 0)
@example(("Australia/Lord_Howe", (2026, 10, 4)), time(2, 15), -30, 0)
@example(("Pacific/Apia", (2011, 12, 30)), time(4, 0), 60, 0)
def test_the_boundary_is_the_first_moment_of_the_hour_however_clocks_are_set(
    change: tuple[str, tuple[int, int, int]], at: time, quarters: int, seconds: int
) -> None:
    zone, day = change
    noon = datetime(*day, 12, tzinfo=UTC)
    now = noon + quarters * QUARTER + timedelta(seconds=seconds)
    policy = ResetPolicy(mode="daily", at=at, zone=ZoneInfo(zone))
    found = datetime.fromtimestamp(policy.last_boundary(now.timestamp()), UTC)
    assert found == last_boundary(zone, at, now)


@given(changes, hours, st.lists(st.integers(0, 300), min_size=2, max_size=6))
def test_boundaries_never_run_backwards(
    change: tuple[str, tuple[int, int, int]], at: time, quarters: list[int]
) -> None:
    zone, day = change
    policy = ResetPolicy(mode="daily", at=at, zone=ZoneInfo(zone))
    start = datetime(*day, tzinfo=UTC) - timedelta(days=1)
    moments = [(start + n * QUARTER).timestamp() for n in sorted(quarters)]
    found = [policy.last_boundary(moment) for moment in moments]
    assert found == sorted(found)


@given(st.floats(1, 1e6), st.floats(0, 2e6))
def test_idle_rolls_over_exactly_when_the_time_is_up(idle: float, passed: float) -> None:
    policy = ResetPolicy(mode="idle", idle_seconds=idle)
    verdict = policy.judge(1e9, 1e9 + passed)
    assert (verdict is not None) == (1e9 + passed - 1e9 >= idle)


@pytest.mark.parametrize("mode", ["none", "idle", "daily"])
def test_a_session_nobody_spoke_in_never_rolls_over(mode: str) -> None:
    policy = ResetPolicy(mode=mode)  # type: ignore[arg-type]
    assert policy.judge(None, 4e9) is None
