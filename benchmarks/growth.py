"""What a turn costs as its session and its store grow, and how much it leaves on the disk.

A long history costs its upstream, too: what counts is what we add to the same body sent straight
to it.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks import processes
from benchmarks.load import QUESTION, Line
from benchmarks.processes import Server
from benchmarks.report import Report
from benchmarks.stub import TEXT
from holdfast.core.model.items import NewItem, message
from holdfast.engine.clock import SystemClock
from holdfast.stores.open import open_store
from holdfast.testing.caller import Caller

TURNS = (1, 5, 50, 200, 1000, 5000)
SESSIONS = (1, 1000, 100_000)
REPEATS = 60
_MAKERS = 64


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure turns of ever longer sessions, then turns in ever fuller stores."""
    turns = (1, 5) if is_short else TURNS
    repeats = 3 if is_short else REPEATS
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        asyncio.run(_fill_turns(folder / "turns.db", turns))
        with (
            processes.stub(folder) as stub,
            processes.gateway(f"sqlite:///{folder}/turns.db", stub.url, folder) as server,
        ):
            for count in turns:
                _measure_turns(report, server, stub, count, repeats)
    for count in (1, 10) if is_short else SESSIONS:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            _measure_sessions(report, Path(name), count, repeats)


def _exchange() -> tuple[NewItem, ...]:
    return (message("user", QUESTION), message("assistant", TEXT))


async def _append(caller: Caller, key: str) -> None:
    await caller.submit(msgspec.structs.replace(caller.batch(key=key), items=_exchange()))


async def _fill_turns(path: Path, turns: tuple[int, ...]) -> None:
    """Make a session of each length, the last turn still to come."""
    store = await open_store(f"sqlite:///{path}", clock=SystemClock())
    try:
        caller = Caller(store, "fill")
        for count in turns:
            for _ in range(count - 1):
                await _append(caller, f"long-{count}")
    finally:
        await store.close()


def _measure_turns(report: Report, server: Server, stub: Server, count: int, repeats: int) -> None:
    asked = msgspec.json.encode({"model": "stub", "input": QUESTION})
    items = [msgspec.Raw(item.body) for _ in range(count) for item in _exchange()]
    whole = msgspec.json.encode({"model": "stub", "input": items[:-1]})
    times = asyncio.run(_times(server, asked, f"long-{count}", repeats))
    before = server.cpu_seconds()
    times = asyncio.run(_times(server, asked, f"long-{count}", repeats))
    cpu_us = (server.cpu_seconds() - before) / repeats * 1e6
    straight = asyncio.run(_times(stub, whole, None, repeats))
    # What sending so many bytes costs anybody: a client that does nothing else.
    sending = _sending_us(stub, whole, repeats)
    report.add(
        "growth",
        turns=count,
        p50_ms=statistics.median(times),
        straight_p50_ms=statistics.median(straight),
        added_ms=statistics.median(times) - statistics.median(straight),
        cpu_us=cpu_us,
        added_cpu_us=max(cpu_us - sending, 1.0),
    )


async def _times(server: Server, body: bytes, key: str | None, repeats: int) -> list[float]:
    line = await Line.open(server.port)
    times = []
    try:
        for _ in range(repeats):
            began = time.perf_counter()
            status = await line.post("/v1/responses", body, key=key)
            times.append((time.perf_counter() - began) * 1000)
            assert status == 200, status
    finally:
        await line.close()
    return times


def _sending_us(stub: Server, body: bytes, repeats: int) -> float:
    before = time.process_time()
    asyncio.run(_times(stub, body, None, repeats))
    return (time.process_time() - before) / repeats * 1e6


async def _fill_sessions(path: Path, count: int) -> None:
    store = await open_store(f"sqlite:///{path}", clock=SystemClock())
    numbers = iter(range(count))

    async def make(maker: int) -> None:
        caller = Caller(store, f"fill{maker}_")
        for number in numbers:
            await _append(caller, f"key-{number}")

    try:
        await asyncio.gather(*(make(maker) for maker in range(_MAKERS)))
    finally:
        await store.close()


def _measure_sessions(report: Report, folder: Path, count: int, repeats: int) -> None:
    path = folder / "sessions.db"
    asyncio.run(_fill_sessions(path, count))
    with (
        processes.stub(folder) as stub,
        processes.gateway(f"sqlite:///{path}", stub.url, folder) as server,
    ):
        asyncio.run(_one_after_another(server, count, repeats))
        before = server.cpu_seconds()
        times = asyncio.run(_one_after_another(server, count, repeats))
        cpu = (server.cpu_seconds() - before) / len(times) * 1e6
        report.add("growth", sessions=count, p50_ms=statistics.median(times), cpu_us=cpu)
        if count == 1000:
            size = _stored(path)
            times = asyncio.run(_one_after_another(server, count, count))
            report.add("growth", case="RSS after a turn in each of 1,000 sessions",
                       mb=server.rss_mb())  # fmt: skip
            each = (_stored(path) - size) / len(times)
            report.add("growth", case="bytes on disk for each turn", bytes=each)


def _stored(path: Path) -> int:
    return sum(one.stat().st_size for one in path.parent.glob(path.name + "*"))


async def _one_after_another(server: Server, sessions: int, turns: int) -> list[float]:
    asked = msgspec.json.encode({"model": "stub", "input": QUESTION})
    line = await Line.open(server.port)
    times = []
    try:
        for number in range(turns):
            key = f"key-{number % sessions}"
            began = time.perf_counter()
            status = await line.post("/v1/responses", asked, key=key)
            times.append((time.perf_counter() - began) * 1000)
            assert status == 200, status
    finally:
        await line.close()
    return times
