"""Count the work of operations on small and large sessions and hold their ratio to a limit."""

from pathlib import Path

import pytest
from benchmarks.counting.growth import AXES, ratio

from tests.counts.limits import LIMITS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize("axis", AXES)
def test_work_grows_no_more_with_size_than_its_limit(axis: str, kind: str, tmp_path: Path) -> None:
    result = AXES[axis](tmp_path, kind)
    expected = {name for name in LIMITS if name.startswith(f"{axis}, {kind}, ")}
    assert {f"{axis}, {kind}, {operation}" for operation in result} == expected
    over = {}
    for operation, counts in result.items():
        found, what = ratio(counts)
        if found > LIMITS[f"{axis}, {kind}, {operation}"].limit:
            over[operation] = (found, what, counts)
    assert not over
