"""kill -9 at every step between a message's arrival and its answer's delivery."""

from pathlib import Path

import pytest

from tests.channel_crash.chats import FILE_METHODS, PLATFORMS, SEND_METHODS
from tests.channel_crash.crashing import KillPoint, crash_and_judge, crash_with_file
from tests.store_urls import sqlite_url

COMMITS = ("RememberChat", "Accept", "Finish", "ClaimDeliveries", "SettleDelivery")
PLACEHOLDER_COMMITS = ("OpenPlaceholder", "KeepPlaceholder")
QUICK_POINTS = (KillPoint("after", "Accept"), KillPoint("before", "KeepPlaceholder"))


def _points(platform: str) -> list[KillPoint]:
    names = [*COMMITS, *SEND_METHODS[platform]]
    if platform != "signal":
        names += PLACEHOLDER_COMMITS
    if platform == "telegram":
        names.append("getUpdates")
    points = [KillPoint(side, name) for name in names for side in ("before", "after")]
    return [*points, KillPoint("before", "Accept", 2), KillPoint("after", "Finish", 2)]


def _file_points(platform: str) -> list[KillPoint]:
    number = 2 if platform == "signal" else 1
    places = [(name, number) for name in FILE_METHODS[platform]]
    places += [("ClaimDeliveries", 2), ("SettleDelivery", 2)]
    points = [KillPoint(side, *place) for place in places for side in ("before", "after")]
    return [*points, KillPoint("after", "QueueMessages")]


EVERY_POINT = [(platform, point) for platform in PLATFORMS for point in _points(platform)]


FILE_POINTS = [(platform, point) for platform in PLATFORMS for point in _file_points(platform)]


@pytest.mark.parametrize("point", QUICK_POINTS, ids=str)
def test_a_gateway_that_is_killed_loses_and_repeats_nothing(
    point: KillPoint, tmp_path: Path
) -> None:
    crash_and_judge(sqlite_url(tmp_path), tmp_path, PLATFORMS["telegram"](), point)


@pytest.mark.soak
@pytest.mark.parametrize(("platform", "point"), EVERY_POINT, ids=str)
def test_a_gateway_that_is_killed_at_any_step_loses_and_repeats_nothing(
    platform: str, point: KillPoint, store_url: str, tmp_path: Path
) -> None:
    crash_and_judge(store_url, tmp_path, PLATFORMS[platform](), point)


def test_a_killed_gateway_sends_the_file_again_with_a_note(tmp_path: Path) -> None:
    point = KillPoint("after", "sendDocument")
    crash_with_file(sqlite_url(tmp_path), tmp_path, PLATFORMS["telegram"](), point)


@pytest.mark.soak
@pytest.mark.parametrize(("platform", "point"), FILE_POINTS, ids=str)
def test_a_gateway_that_is_killed_while_it_sends_a_file_loses_nothing(
    platform: str, point: KillPoint, store_url: str, tmp_path: Path
) -> None:
    crash_with_file(store_url, tmp_path, PLATFORMS[platform](), point)
