"""Count WAL frames and bytes on disk per turn."""

from pathlib import Path

import pytest
from benchmarks.counting.disk import bytes_per_turn, frames_per_turn

from tests.counts.limits import LIMITS


def test_a_turn_in_a_group_of_eight_writes_no_more_frames_than_its_limit(tmp_path: Path) -> None:
    frames = frames_per_turn(tmp_path, sessions=2000, turns=1000)
    assert 0 < frames <= LIMITS["WAL frames per turn, 2,000 sessions"].limit


@pytest.mark.soak
def test_frames_per_turn_stay_within_the_limit_over_many_sessions(tmp_path: Path) -> None:
    frames = frames_per_turn(tmp_path, sessions=100_000, turns=4000)
    assert 0 < frames <= LIMITS["WAL frames per turn, 100,000 sessions"].limit


def test_the_reference_turn_takes_no_more_bytes_than_its_limit(tmp_path: Path) -> None:
    assert 0 < bytes_per_turn(tmp_path) <= LIMITS["bytes on disk per turn"].limit
