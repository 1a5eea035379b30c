"""Counts of operations on sessions of different size: long, often rewound, deeply forked, full.

Each axis creates one session per size, runs the same operations on each and returns the counts.
Work that does not depend on the size has the same counts everywhere.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.counting.profiled import (
    Counts,
    Operation,
    ProfiledGateway,
    connected,
    exchange,
    fill_turns,
    profiled_gateway,
)
from benchmarks.counting.upstream import Upstream, serving
from benchmarks.http_client import PATHS, Connection, Reply, turn_body
from benchmarks.servers import processes

LENGTHS = (10, 1000)
REWINDS = (10, 300)
DEPTHS = (5, 100)
ITEMS = (200, 4000)
BATCH = 20
PAGE = 20
NOISE = 20.0
"""Smaller differences are noise: the width of a number or the fill of a page."""
Result = dict[str, dict[int, Counts]]
"""Operation to size to counts."""


def ratio(counts: dict[int, Counts]) -> tuple[float, str]:
    """Return how much the counts grow from the smallest to the largest size, and which of them."""
    small, large = (msgspec.to_builtins(counts[size]) for size in (min(counts), max(counts)))
    return max(((large[name] + NOISE) / (small[name] + NOISE), name) for name in small)


async def take_turn(
    connection: Connection, api: str, text: str, *, session: str | None = None, key: str = ""
) -> Reply:
    """Run a turn in a session, by id or by key."""
    headers = {"x-session-id": session} if session else {"x-session-key": key}
    body = msgspec.json.encode(turn_body(api, text))
    reply = await connection.request("POST", PATHS[api], body, headers)
    assert reply.status == 200, reply.body
    return reply


def tail(api: str, turns: int) -> bytes:
    """Return a request that asks for the last answer again.

    It repeats the last question and the answer before it, so its size does not depend on the
    length of the history.
    """
    messages = [exchange(turns - 2)[1], exchange(turns - 1)[0]]
    name = "messages" if api == "chat" else "input"
    return msgspec.json.encode({"model": "stub", name: messages})


async def regenerate(connection: Connection, api: str, key: str, turns: int) -> None:
    """Ask for the last answer of a session again."""
    body = tail(api, turns)
    reply = await connection.request("POST", PATHS[api], body, {"x-session-key": key})
    assert reply.status == 200, reply.body


class _Lab:
    """A profiled gateway, a connection to it and the session under test."""

    def __init__(self, gateway: ProfiledGateway, connection: Connection, api: str) -> None:
        self.gateway = gateway
        self.connection = connection
        self.api = api

    def pages(self, session: str) -> dict[str, Operation]:
        """Return the operations that read a session."""

        async def page(_: int) -> None:
            path = f"/v1/sessions/{session}/items?limit={PAGE}"
            reply = (await self.connection.call("GET", path)).json()
            await self.connection.call("GET", f"{path}&after={reply['last_id']}")

        async def view(_: int) -> None:
            await self.connection.call("GET", f"/v1/sessions/{session}")

        return {"page": page, "view": view}

    def turn(self, **where: str) -> Operation:
        """Return the operation that runs a turn."""
        return lambda n: take_turn(self.connection, self.api, f"again {n}", **where)

    def fork(self, session: str) -> Operation:
        """Return the operation that forks a session."""
        return lambda _: self.connection.call("POST", f"/v1/sessions/{session}/fork", {})

    def append(self, session: str, count: int) -> Operation:
        """Return the operation that adds items to a conversation."""
        path = f"/v1/conversations/conv_{session.removeprefix('ses_')}/items"
        items = [
            {"type": "message", "role": "user", "content": f"note {number}"}
            for number in range(count)
        ]
        return lambda _: self.connection.call("POST", path, {"items": items})

    async def costs(self, operations: dict[str, Operation]) -> dict[str, Counts]:
        """Return the counts of each operation."""
        return {name: await self.gateway.cost(operation) for name, operation in operations.items()}


Measure = Callable[[_Lab], Awaitable[dict[str, Counts]]]


def _profile(folder: Path, store: Path, api: str, measure: Measure) -> dict[str, Counts]:
    port = processes.free_port()

    async def run(gateway: ProfiledGateway) -> dict[str, Counts]:
        async with serving(Upstream(), port), connected(gateway.port) as connection:
            return await measure(_Lab(gateway, connection, api))

    with profiled_gateway(folder, store, api, port) as gateway:
        return asyncio.run(run(gateway))


def _add(result: Result, size: int, counts: dict[str, Counts]) -> None:
    for name, found in counts.items():
        result.setdefault(name, {})[size] = found


@contextmanager
def _plain_gateway(folder: Path, store: Path, api: str, port: int) -> Iterator[processes.Server]:
    upstream = f"http://127.0.0.1:{port}"
    with processes.gateway(f"sqlite:///{store}", upstream, folder, api=api) as server:
        yield server


def _fill(folder: Path, store: Path, api: str, work: Callable[[Connection], Awaitable[Any]]) -> Any:
    """Prepare a session through a gateway without counters; return the result of `work`."""
    port = processes.free_port()

    async def run(server: processes.Server) -> Any:
        async with serving(Upstream(), port), connected(server.port) as connection:
            return await work(connection)

    with _plain_gateway(folder, store, api, port) as server:
        return asyncio.run(run(server))


def by_length(folder: Path, api: str, sizes: tuple[int, ...] = LENGTHS) -> Result:
    """Return the counts of operations on sessions with these numbers of turns."""
    result: Result = {}
    for size in sizes:
        store = folder / f"length-{api}-{size}.db"
        session = asyncio.run(fill_turns(store, "long", size))

        async def measure(lab: _Lab, session: str = session, size: int = size) -> dict[str, Counts]:
            async def again(_: int) -> None:
                await regenerate(lab.connection, lab.api, "long", size)

            found = await lab.costs({"regenerate": again})
            body = turn_body("responses", "one to read")
            stored = (
                await lab.connection.call("POST", PATHS["responses"], body, key="long")
            ).json()
            path = f"/v1/responses/{stored['id']}"
            return found | await lab.costs(
                {
                    "turn": lab.turn(key="long"),
                    "append": lab.append(session, 1),
                    "fork": lab.fork(session),
                    "retrieve": lambda _: lab.connection.call("GET", path),
                    **lab.pages(session),
                }
            )

        _add(result, size, _profile(folder, store, api, measure))
    return result


def by_rewinds(folder: Path, api: str, sizes: tuple[int, ...] = REWINDS) -> Result:
    """Return the counts of operations on a short session after these numbers of regenerations."""
    result: Result = {}
    turns = 5
    for size in sizes:
        store = folder / f"rewinds-{api}-{size}.db"
        session = asyncio.run(fill_turns(store, "rewound", turns))

        async def rewind(connection: Connection, size: int = size, session: str = session) -> None:
            for _ in range(size):
                await regenerate(connection, api, "rewound", turns)
            shown = (await connection.call("GET", f"/v1/sessions/{session}")).json()
            # A regenerated answer replaces the previous one.
            assert shown["item_count"] == 2 * turns, shown

        _fill(folder, store, api, rewind)

        async def measure(lab: _Lab, session: str = session) -> dict[str, Counts]:
            async def again(_: int) -> None:
                await regenerate(lab.connection, lab.api, "rewound", turns)

            operations = {"regenerate": again, "turn": lab.turn(key="rewound")}
            return await lab.costs({**operations, **lab.pages(session)})

        _add(result, size, _profile(folder, store, api, measure))
    return result


async def fork_chain(connection: Connection, api: str, depth: int) -> str:
    """Create a chain of forks with one turn in each; return the id of the last session."""
    session = (await take_turn(connection, api, "first", key="root")).headers["x-session-id"]
    for number in range(depth):
        forked = await connection.call("POST", f"/v1/sessions/{session}/fork", {})
        session = forked.json()["id"]
        await take_turn(connection, api, f"turn {number}", session=session)
    return session


def by_depth(folder: Path, api: str, sizes: tuple[int, ...] = DEPTHS) -> Result:
    """Return the counts of operations at the end of fork chains of these depths.

    Every chain has as many turns as the longest, so that only the depth differs.
    """
    result: Result = {}
    for size in sizes:
        store = folder / f"depth-{api}-{size}.db"

        async def chain(connection: Connection, size: int = size) -> str:
            for number in range(max(sizes) - size):
                await take_turn(connection, api, f"root {number}", key="root")
            return await fork_chain(connection, api, size)

        session = _fill(folder, store, api, chain)

        async def measure(lab: _Lab, session: str = session) -> dict[str, Counts]:
            operations = {"turn": lab.turn(session=session), "fork": lab.fork(session)}
            return await lab.costs({**operations, **lab.pages(session)})

        _add(result, size, _profile(folder, store, api, measure))
    return result


def by_items(folder: Path, api: str, sizes: tuple[int, ...] = ITEMS) -> Result:
    """Return the counts of batches of items added to conversations with these numbers of items."""
    result: Result = {}
    for size in sizes:
        store = folder / f"items-{api}-{size}.db"
        session = asyncio.run(_fill_items(store, size))

        async def measure(lab: _Lab, session: str = session) -> dict[str, Counts]:
            operations = {"batch": lab.append(session, BATCH), "turn": lab.turn(session=session)}
            return await lab.costs({**operations, **lab.pages(session)})

        _add(result, size, _profile(folder, store, api, measure))
    return result


async def _fill_items(store: Path, count: int) -> str:
    import holdfast

    async with holdfast.open(f"sqlite:///{store}") as engine:
        session = await engine.session("full")
        for begin in range(0, count, BATCH):
            await session.append(
                [{"role": "user", "content": f"note {begin + n}"} for n in range(BATCH)]
            )
        return session.id


AXES: dict[str, Callable[[Path, str], Result]] = {
    "length": by_length,
    "rewinds": by_rewinds,
    "depth": by_depth,
    "items": by_items,
}
