"""A profiled gateway process and the counts of single operations on it."""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks.counting.upstream import Upstream, serving
from benchmarks.http_client import PATHS, Connection, turn_body
from benchmarks.servers import processes
from benchmarks.servers.stub import STREAM_HEAD, TEXT

REPEATS = 7
WARM_UP = 3
QUESTION = "What is the weather like today?"
Operation = Callable[[int], Awaitable[Any]]
Result = TypeVar("Result")


class Counts(msgspec.Struct, frozen=True):
    """Work of one operation, or of the whole process so far."""

    calls: float
    """Call events of functions, coroutines and generators in our packages."""
    lines: float
    """Lines that our packages executed; loops without calls show here."""
    statements: float
    """SQL statements."""
    steps: float
    """Tens of instructions of SQLite's virtual machine; scans show here."""
    package_changes: float
    """How often a call was in another package than the call before it."""

    def minus(self, other: "Counts") -> "Counts":
        """Return the difference."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Counts(*(value - base for value, base in pairs))


class _Snapshot(msgspec.Struct):
    totals: Counts
    functions: dict[str, int]


class ProfiledGateway:
    """A running gateway whose counters can be read."""

    def __init__(self, port: int, control: Path) -> None:
        self.port = port
        self._control = str(control)

    def _read(self) -> _Snapshot:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._control)
            data = b""
            while piece := connection.recv(2**16):
                data += piece
        return msgspec.json.decode(data, type=_Snapshot)

    async def counts(self) -> Counts:
        """Return the counters once the gateway is idle."""
        return (await asyncio.to_thread(self._read)).totals

    async def functions(self) -> dict[str, int]:
        """Return the calls of each of our functions so far."""
        return (await asyncio.to_thread(self._read)).functions

    async def cost(self, operation: Operation, repeats: int = REPEATS) -> Counts:
        """Return the lower quartile of the counts of an operation after a warm-up.

        The work that follows an answer is counted with it. The quartile drops timers, which fall
        into many of the intervals on a slow machine.
        """
        found: list[Counts] = []
        for number in range(WARM_UP + repeats):
            before = await self.counts()
            await operation(number)
            found.append((await self.counts()).minus(before))
        columns = zip(*map(msgspec.structs.astuple, found[WARM_UP:]), strict=True)
        return Counts(*(sorted(column)[len(column) // 4] for column in columns))


@contextmanager
def profiled_gateway(folder: Path, store: Path, api: str, port: int) -> Iterator[ProfiledGateway]:
    """Run a profiled gateway on a store, in front of an upstream port.

    It has no search index: a store that was filled before has a backlog, and the gateway would
    index it in the background while operations are counted.
    """
    env = {"HOLDFAST_SEARCH_ENABLED": "false"}
    control = folder / f"control-{processes.free_port()}"
    launcher = ("-m", "benchmarks.counting.profiled_serve", str(control))
    upstream = f"http://127.0.0.1:{port}"
    url = f"sqlite:///{store}"
    with processes.gateway(url, upstream, folder, api=api, launcher=launcher, env=env) as server:
        yield ProfiledGateway(server.port, control)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    """Open a connection for the length of a block."""
    connection = await Connection.open(port)
    try:
        yield connection
    finally:
        await connection.close()


def turn_counts(folder: Path, api: str, *, is_first: bool = False) -> Counts:
    """Return the counts of a keyed, whole turn: on a known, idle lane, or the first of its key."""
    return _with_turns(folder, api, lambda gateway, turn: gateway.cost(turn, 15), is_first=is_first)


def turn_functions(folder: Path, api: str, *, is_first: bool = False) -> dict[str, int]:
    """Return the calls of each of our functions during one such turn."""
    return _with_turns(folder, api, _functions_of, is_first=is_first)


async def _functions_of(gateway: ProfiledGateway, turn: Operation) -> dict[str, int]:
    for number in range(WARM_UP):
        await turn(number)
    before = await gateway.functions()
    await turn(WARM_UP)
    after = await gateway.functions()
    found = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in found.items() if count}


def _with_turns(
    folder: Path,
    api: str,
    measure: Callable[[ProfiledGateway, Operation], Awaitable[Result]],
    *,
    is_first: bool,
) -> Result:
    """Run `measure` with a gateway and the operation that runs a turn.

    It runs in one session, or with `is_first` in a new one each time.
    """
    port = processes.free_port()
    name = "first" if is_first else "turn"

    async def run(gateway: ProfiledGateway) -> Result:
        async with serving(Upstream(), port), connected(gateway.port) as connection:

            async def turn(number: int) -> None:
                key = f"new {number}" if is_first else "known"
                # Different people do not ask the same.
                asked = f"What is the weather like in {number}?" if is_first else QUESTION
                await connection.call("POST", PATHS[api], turn_body(api, asked), key=key)

            return await measure(gateway, turn)

    with profiled_gateway(folder, folder / f"{name}-{api}.db", api, port) as gateway:
        return asyncio.run(run(gateway))


QUEUE_CLIENTS = 8
"""Clients that share one session key; all but one of them wait."""


def queued_turn_counts(folder: Path, api: str, *, is_same: bool = False) -> Counts:
    """Return the counts of a whole turn that waits behind others for its lane.

    Each client sends its next turn when it has its answer. The turn before one ends in the commit
    that accepts the turn behind it, as under load. With `is_same`, all bodies are equal.
    """
    return _with_queue(folder, api, lambda gateway, turn: gateway.cost(turn, 15), is_same=is_same)


def queued_turn_functions(folder: Path, api: str) -> dict[str, int]:
    """Return the calls of each of our functions during one such turn."""
    return _with_queue(folder, api, _functions_of)


def _with_queue(
    folder: Path,
    api: str,
    measure: Callable[[ProfiledGateway, Operation], Awaitable[Result]],
    *,
    is_same: bool = False,
) -> Result:
    """Run `measure` with a gateway and the operation that runs the next turn of a full lane."""
    port = processes.free_port()

    async def run(gateway: ProfiledGateway) -> Result:
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(serving(Upstream(), port))
            upstream.is_holding = True
            lane = _Lane(upstream, api, is_same=is_same)
            for _ in range(QUEUE_CLIENTS):
                lane.ask(await stack.enter_async_context(connected(gateway.port)))
                await gateway.counts()  # the order of the queue is that of the clients
            return await measure(gateway, lane.advance)

    with profiled_gateway(folder, folder / f"queue-{api}.db", api, port) as gateway:
        return asyncio.run(run(gateway))


class _Lane:
    """Clients with turns of one session, in the order in which they wait."""

    def __init__(self, upstream: Upstream, api: str, *, is_same: bool) -> None:
        self._upstream = upstream
        self._api = api
        self._is_same = is_same
        self._clients: deque[Connection] = deque()
        self._asked = 0

    def ask(self, client: Connection) -> None:
        """Send the next turn of a client, by default with a text of its own."""
        self._asked += not self._is_same
        body = msgspec.json.encode(turn_body(self._api, f"Question {self._asked:06d}?"))
        client.send("POST", PATHS[self._api], body, {"x-session-key": "queue"})
        self._clients.append(client)

    async def advance(self, _: int) -> None:
        """Answer the turn that has the lane; its client sends the next one."""
        (await self._upstream.held.get()).answer()
        client = self._clients.popleft()
        reply = await client.receive()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status} {reply.body[:500]!r}")
        self.ask(client)


CHUNKS = 64
_STREAMS = 12
_FIRST_DELTA = 8
"""Deltas before the count starts."""
_START = f'" word{_FIRST_DELTA - 1}"'.encode()


class StreamCalls(msgspec.Struct, frozen=True, order=True):
    """Our calls for a streamed turn."""

    beside_chunks: float
    """Calls of the whole turn, without those of its text deltas."""
    per_chunk: float
    """Calls for one text delta."""


def stream_calls(folder: Path, api: str, client: str) -> StreamCalls:
    """Return our calls for a stream, with the APIs that the upstream and the client use."""
    port = processes.free_port()

    async def measure(gateway: ProfiledGateway) -> StreamCalls:
        async with serving(Upstream(), port) as upstream, connected(gateway.port) as connection:
            upstream.is_holding = True
            found = [await _stream(gateway, upstream, connection, client) for _ in range(_STREAMS)]
            return StreamCalls(min(found).beside_chunks, min(each.per_chunk for each in found))

    with profiled_gateway(folder, folder / f"stream-{api}-{client}.db", api, port) as gateway:
        return asyncio.run(measure(gateway))


async def _stream(
    gateway: ProfiledGateway, upstream: Upstream, connection: Connection, client: str
) -> StreamCalls:
    """Stream an answer in lock-step: each delta is sent when the one before has arrived.

    What comes before the first delta is sent with it, and what comes after the last one at once:
    sent one by one, these events would be read in a different number of pieces each time.
    """
    before = await gateway.counts()
    body = msgspec.json.encode(turn_body(client, "Count.", stream=True))
    connection.send("POST", PATHS[client], body, {"x-session-key": "stream"})
    request = await upstream.held.get()
    counts: dict[bytes, Counts] = {}
    last = f'" word{_FIRST_DELTA + CHUNKS - 1}"'.encode()
    is_open, unsent = False, STREAM_HEAD
    for event in request.events(_FIRST_DELTA + CHUNKS):
        unsent += event
        mark = _delta_mark(event)
        if mark is None:
            continue
        request.transport.write(unsent)
        unsent = b""
        if not is_open:
            await connection.receive_head()
            is_open = True
        while mark not in await connection.receive_chunk():
            pass
        if mark in (_START, last):
            counts[mark] = await gateway.counts()
    request.transport.write(unsent + b"0\r\n\r\n")
    while await connection.receive_chunk():
        pass
    per_chunk = counts[last].minus(counts[_START]).calls / CHUNKS
    total = (await gateway.counts()).minus(before).calls
    return StreamCalls(total - per_chunk * (_FIRST_DELTA + CHUNKS), per_chunk)


def _delta_mark(event: bytes) -> bytes | None:
    """Return the text that shows that a delta has arrived, None for other events."""
    for field in (b'"delta":" word', b'"content":" word'):
        _, found, rest = event.partition(field)
        if found:
            return b'" word' + rest.partition(b'"')[0] + b'"'
    return None


async def fill_turns(store: Path, key: str, turns: int) -> str:
    """Append exchanges to a session through the Python API; return its id."""
    import holdfast

    async with holdfast.open(f"sqlite:///{store}") as engine:
        session = await engine.session(key)
        for number in range(turns):
            await session.append(exchange(number))
        return session.id


def exchange(number: int) -> list[dict[str, Any]]:
    """Return the two messages of a turn; every turn has its own text."""
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": f"answer {number}: {TEXT}"},
    ]
