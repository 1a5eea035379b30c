"""WAL frames per turn in groups of fixed size, and bytes on disk per turn."""

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path

import msgspec

from benchmarks.counting.profiled import connected
from benchmarks.counting.upstream import Upstream, serving
from benchmarks.http_client import CHAT, Connection, turn_body
from benchmarks.servers import processes

GROUP = 8
QUESTION = (
    "Which of the two proposals did we choose last week, "
    "and what was the reason for it again? Thanks"
)
ANSWER = "The second: it was the cheaper 1"
assert len(QUESTION) == 96
assert len(ANSWER) == 32
_BODY = msgspec.json.encode(turn_body("chat", QUESTION))
_FRAME_HEAD = 24
_QUIET_SECONDS = 0.5
_WARM_UP_GROUPS = 8


class _Pause:
    """Stops the server process while several messages are written, so that it reads all at once."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGCONT)


async def _grouped_turns(
    pid: int, upstream: Upstream, connections: Sequence[Connection], keys: Sequence[str]
) -> None:
    """Run one turn per connection; all are accepted together and answered together."""
    upstream.is_holding = True
    with _Pause(pid):
        for connection, key in zip(connections, keys, strict=True):
            connection.send("POST", CHAT, _BODY, {"x-session-key": key})
            await connection.drain()
    held = [await upstream.held.get() for _ in keys]
    with _Pause(pid):
        for request in held:
            request.answer(ANSWER)
    for connection in connections:
        reply = await connection.receive()
        assert reply.status == 200, reply.body


async def _fill(port: int, sessions: int, clients: int = 32) -> None:
    numbers = iter(range(sessions))

    async def work() -> None:
        async with connected(port) as connection:
            for number in numbers:
                assert await connection.post(CHAT, _BODY, key=_key(number)) == 200

    await asyncio.gather(*(work() for _ in range(clients)))


def _key(number: int) -> str:
    return f"session-{number:06d}"


@contextmanager
def _gateway(folder: Path, store: Path, upstream: int) -> Iterator[processes.Server]:
    url = f"http://127.0.0.1:{upstream}"
    # The search index is written later, in batches, and has a section of its own.
    env = {"HOLDFAST_SEARCH_ENABLED": "false"}
    with processes.gateway(f"sqlite:///{store}", url, folder, api="chat", env=env) as server:
        yield server


@contextmanager
def _wal_kept(store: Path) -> Iterator[None]:
    """Hold an old snapshot, so that SQLite appends to the WAL and never restarts it."""
    with closing(sqlite3.connect(store, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from sqlite_master").fetchone()
        yield


def _frames(store: Path) -> float:
    with closing(sqlite3.connect(store)) as connection:
        (page_size,) = connection.execute("pragma page_size").fetchone()
    wal = Path(f"{store}-wal")
    return wal.stat().st_size / (page_size + _FRAME_HEAD) if wal.exists() else 0.0


def _settled_frames(store: Path) -> float:
    """Return the frames once nothing is written any more: views are written after the log."""
    while True:
        before = _frames(store)
        time.sleep(_QUIET_SECONDS)
        if _frames(store) == before:
            return before


def frames_per_turn(folder: Path, sessions: int, turns: int, seed: int = 1) -> float:
    """Return WAL frames per turn, in groups of 8, over random sessions of a filled store."""
    store = folder / "frames.db"
    port = processes.free_port()
    choose = random.Random(seed)

    async def fill(server: processes.Server) -> None:
        async with serving(Upstream(ANSWER), port):
            await _fill(server.port, sessions)

    async def measure(server: processes.Server, groups: int) -> float:
        async with serving(Upstream(ANSWER), port) as upstream, AsyncExitStack() as stack:
            connections = [
                await stack.enter_async_context(connected(server.port)) for _ in range(GROUP)
            ]

            async def run(count: int) -> float:
                for _ in range(count):
                    keys = [_key(number) for number in choose.sample(range(sessions), GROUP)]
                    await _grouped_turns(server.pid, upstream, connections, keys)
                return _settled_frames(store)

            before = await run(_WARM_UP_GROUPS)
            return (await run(groups) - before) / (groups * GROUP)

    with _gateway(folder, store, port) as server:
        asyncio.run(fill(server))
    with _gateway(folder, store, port) as server, _wal_kept(store):
        return asyncio.run(measure(server, turns // GROUP))


def stored_bytes(store: Path) -> int:
    """Return the size of a store's files."""
    return sum(path.stat().st_size for path in store.parent.glob(store.name + "*"))


def bytes_per_turn(folder: Path, sessions: int = 200, turns: int = 10) -> float:
    """Return bytes on disk per reference turn: 96-byte question, 32-byte answer, no retry key."""
    store = folder / "bytes.db"
    port = processes.free_port()

    async def run(server: processes.Server, rounds: int) -> None:
        async with serving(Upstream(ANSWER), port):
            for _ in range(rounds):
                await _fill(server.port, sessions)

    sizes = []
    for rounds in (1, turns):
        with _gateway(folder, store, port) as server:
            asyncio.run(run(server, rounds))
            server.wait_until_idle()
        # The last connection to close checkpoints the WAL into the database and removes it.
        sizes.append(stored_bytes(store))
    return (sizes[1] - sizes[0]) / (sessions * turns)
