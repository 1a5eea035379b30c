"""Count the calls of Holdfast's own functions."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def own_calls(work: Callable[[], object]) -> int:
    """Return how many Python functions of Holdfast a piece of work calls."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and "holdfast" in frame.f_code.co_filename

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
