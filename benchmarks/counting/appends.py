"""Count our calls for one append of the Agents SDK's session, in this process."""

import asyncio
import math
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from holdfast.agents_sdk import HoldfastSession
from holdfast.stores.sqlite import inline_commit

WARM_UP = 5
REPEATS = 15
_PACKAGE = str(Path(holdfast.__file__).parent)
_ITEM: Any = {"role": "user", "content": "a message of ordinary length"}


def calls_per_append(folder: Path) -> float:
    """Return the call events in our packages of one `add_items` on SQLite.

    The fewest of several: the first ones after a slow commit measure how long they wait. All are
    committed on the event loop, however slow the disk is.
    """
    before = inline_commit.QUICK_SECONDS
    setattr(inline_commit, "QUICK_SECONDS", math.inf)  # noqa: B010  # a constant elsewhere
    try:
        return asyncio.run(_count(folder))
    finally:
        setattr(inline_commit, "QUICK_SECONDS", before)  # noqa: B010


async def _count(folder: Path) -> float:
    found: list[int] = []
    async with HoldfastSession("counted", folder / "appends.db") as session:
        for _ in range(WARM_UP):
            await session.add_items([_ITEM])
        for _ in range(REPEATS):
            await asyncio.sleep(0)  # the first append of an iteration is committed at once
            found.append(await _calls(session))
    return min(found)


async def _calls(session: HoldfastSession) -> int:
    calls = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            calls += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        await session.add_items([_ITEM])
    finally:
        sys.setprofile(before)
    return calls
