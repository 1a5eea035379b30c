"""When schedules run: zones, gaps, folds, periods and missed times."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.core.model.schedule import DeliverTo, ScheduleSpec
from holdfast.schedules.times import check_spec, latest_missed, next_time, period_seconds

BERLIN = ZoneInfo("Europe/Berlin")


def _spec(**values: Any) -> ScheduleSpec:
    values = {"name": "report", "prompt": "go", "timezone": "Europe/Berlin", **values}
    return ScheduleSpec(**values)


def _times(spec: ScheduleSpec, start: str, count: int) -> list[str]:
    """Return the next times, as Berlin's clocks show them."""
    at: float | None = datetime.fromisoformat(start).replace(tzinfo=BERLIN).timestamp()
    found = []
    for _ in range(count):
        assert at is not None
        at = next_time(spec, at, created_at=0.0)
        assert at is not None
        found.append(datetime.fromtimestamp(at, BERLIN).strftime("%d %H:%M%z"))
    return found


def test_a_time_that_does_not_exist_runs_at_the_next_one_that_does() -> None:
    assert _times(_spec(cron="30 2 * * *"), "2026-03-28T12:00", 2) == [
        "29 03:00+0200",
        "30 02:30+0200",
    ]


def test_over_a_fold_a_fixed_hour_runs_once_and_hourly_twice() -> None:
    assert _times(_spec(cron="30 2 * * *"), "2026-10-24T12:00", 2) == [
        "25 02:30+0200",
        "26 02:30+0100",
    ]
    assert _times(_spec(cron="0 * * * *"), "2026-10-25T01:30", 3) == [
        "25 02:00+0200", "25 02:00+0100", "25 03:00+0100",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("*/30 2 * * *", ["29 03:00+0200", "30 02:00+0200", "30 02:30+0200"]),
        ("* 2 29 * *", ["29 03:00+0200", "29 02:00+0200", "29 02:01+0200"]),
        ("0 */2 * * *", ["28 14:00+0100", "28 16:00+0100", "28 18:00+0100"]),
        ("0 */2 29 3 *", ["29 00:00+0100", "29 03:00+0200", "29 04:00+0200"]),
        ("*/30 * 29 3 *", ["29 00:00+0100", "29 00:30+0100", "29 01:00+0100"]),
        ("0,30 2,3 * * *", ["29 03:00+0200", "29 03:30+0200", "30 02:00+0200"]),
    ],
)  # fmt: skip
def test_repeated_minutes_of_an_hour_that_does_not_exist_run_once(
    cron: str, expected: list[str]
) -> None:
    assert _times(_spec(cron=cron), "2026-03-28T12:00", 3) == expected


def test_frequent_times_run_once_at_the_end_of_a_gap() -> None:
    assert _times(_spec(cron="*/20 * * * *"), "2026-03-29T01:30", 3) == [
        "29 01:40+0100", "29 03:00+0200", "29 03:20+0200",
    ]  # fmt: skip


def test_repeated_minutes_of_a_fixed_hour_run_once_over_a_fold() -> None:
    assert _times(_spec(cron="*/30 2 * * *"), "2026-10-24T12:00", 3) == [
        "25 02:00+0200", "25 02:30+0200", "26 02:00+0100",
    ]  # fmt: skip
    # Also for somebody who asks in the second of the two hours.
    second = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1).timestamp()
    following = next_time(_spec(cron="*/30 2 * * *"), second, created_at=0.0)
    assert following == datetime(2026, 10, 26, 2, tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize("cron", ["0 0 9 * * *", "* * * *", "@daily", ""])
def test_a_cron_expression_has_five_fields(cron: str) -> None:
    with pytest.raises(ValueError, match="cron"):
        check_spec(_spec(cron=cron))


def test_periods_are_counted_from_the_beginning() -> None:
    spec = _spec(every="15m")
    assert next_time(spec, 1000.0, created_at=100.0) == 1900.0
    assert period_seconds("2h") == 7200.0


def test_one_time_comes_once() -> None:
    spec = _spec(at="2026-05-01T09:00")
    due = next_time(spec, 0.0, created_at=0.0)
    assert due == datetime(2026, 5, 1, 9, tzinfo=BERLIN).timestamp()
    assert next_time(spec, due, created_at=0.0) is None


def test_only_the_latest_missed_time_of_a_day_is_made_up_for() -> None:
    spec = _spec(every="1h")
    assert latest_missed(spec, 3600.0, 4 * 3600.0 + 5, created_at=0.0) == 4 * 3600.0
    week = 7 * 86400.0
    assert latest_missed(spec, 3600.0, week + 5, created_at=0.0) == week


@pytest.mark.parametrize(
    "when",
    [
        {}, {"cron": "61 * * * *"}, {"every": "soon"}, {"every": "0.1s"}, {"at": "later"},
        {"cron": "0 9 * * *", "every": "1h"},
    ],
)  # fmt: skip
def test_a_schedule_that_cannot_run_is_rejected(when: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"cron|every|at"):
        check_spec(_spec(**when))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"name": "a\nb"}, "name"), ({"name": "a\x00"}, "name"), ({"name": "a" * 65}, "name"),
        ({"every": "99999999999999999999h"}, "at most 366 days"),
        ({"every": "9" * 400 + "d"}, "at most"),
        ({"every": "", "at": "9999-12-31T23:59:59"}, "at must be before"),
        ({"timezone": "Mars/Olympus"}, "timezone"), ({"timeout_seconds": float("inf")}, "timeout"),
        ({"keep_runs": 10**9}, "keep_runs"), ({"prompt": " "}, "prompt"),
        ({"prompt": "x" * 100_001}, "prompt has 100,001 characters"),
        ({"instructions": "x" * 100_001}, "instructions has"),
        ({"deliver": DeliverTo(channel="a", to="\0")}, "deliver"),
    ],
)  # fmt: skip
def test_values_out_of_bounds_are_rejected(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_spec(_spec(**{"every": "1h", **values}))


def test_one_time_that_does_not_exist_is_the_next_one_that_does() -> None:
    due = next_time(_spec(at="2026-03-29T02:30"), 0.0, created_at=0.0)
    assert due == datetime(2026, 3, 29, 3, tzinfo=BERLIN).timestamp()
