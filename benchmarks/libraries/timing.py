"""The common part of the scripts: append one by one, read all, print JSON for each length."""

import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

TEXT = "a message of ordinary length, as people write them to their agents all day long, " * 3


async def measure(
    prepare: Callable[[int], Awaitable[object]],
    append: Callable[[int], Awaitable[object]],
    read: Callable[[int], Awaitable[object]],
) -> None:
    """Time a session of each length; `prepare` creates a session of that length."""
    appends, reads, *lengths = map(int, sys.argv[2:])
    for length in lengths:
        await prepare(length)
        append_times = [await _timed(append, length) for _ in range(appends)]
        read_times = [await _timed(read, length) for _ in range(reads)]
        found = {
            "length": length,
            "appends_per_second": 1000 * len(append_times) / sum(append_times),
            "append_p50_ms": statistics.median(append_times),
            "read_all_p50_ms": statistics.median(read_times),
        }
        print(json.dumps(found), flush=True)


async def _timed(work: Callable[[int], Awaitable[object]], length: int) -> float:
    began = time.perf_counter()
    await work(length)
    return (time.perf_counter() - began) * 1000
