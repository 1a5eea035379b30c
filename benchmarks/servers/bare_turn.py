"""The minimum work of a durable turn: a request, two synced commits, one upstream call, an answer.

It has no sessions, fences or checks; it shows the cost of sockets and commits on this machine.
Commits of one loop iteration are one transaction, as in the gateway. Turns of one key follow each
other: one that arrives meanwhile is committed with the end of another. `python -m
benchmarks.servers.bare_turn PORT UPSTREAM_PORT PATH DATABASE`.
"""

import asyncio
import sqlite3
import sys
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools
import uvloop

_INSERT = "insert into log (key, kind, body) values (?, ?, ?)"


class Committer:
    """Writes the rows of one event loop iteration in one durable transaction."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("pragma synchronous = full")
        self._database.execute(
            "create table log (pos integer primary key, key blob, kind integer, body blob)"
        )
        self._rows: list[tuple[bytes, int, bytes]] = []
        self._waiting: list[Callable[[], None]] = []

    def add(self, row: tuple[bytes, int, bytes], done: Callable[[], None]) -> None:
        """Add a row to the next commit; call `done` when it is durable."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._commit)
        self._rows.append(row)
        self._waiting.append(done)

    def add_to_next(self, row: tuple[bytes, int, bytes]) -> None:
        """Add a row to the next commit that another row causes."""
        self._rows.append(row)

    def _commit(self) -> None:
        rows, waiting = self._rows, self._waiting
        self._rows, self._waiting = [], []
        self._database.execute("begin immediate")
        self._database.executemany(_INSERT, rows)
        self._database.execute("commit")
        for done in waiting:
            done()


class Upstream(asyncio.Protocol):
    """One connection to the upstream with at most one request in flight."""

    def __init__(self, pool: deque["Upstream"]) -> None:
        self._pool = pool
        self._done: Callable[[bytes], None] | None = None
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have no common class with asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        done, body = self._done, self._body
        self._done, self._body = None, b""
        self._pool.append(self)
        if done is not None:
            done(body)

    def send(self, path: bytes, body: bytes, done: Callable[[bytes], None]) -> None:
        """Send a request; call `done` with the body of its answer."""
        self._done = done
        self._transport.write(
            b"POST %b HTTP/1.1\r\nhost: upstream\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (path, len(body), body)
        )


Lanes = dict[bytes, deque[Callable[[], None]]]
"""The keys that have a turn in progress, each with the turns that wait behind it."""


class Client(asyncio.Protocol):
    """One client connection: each request is committed, forwarded, committed and answered."""

    def __init__(
        self, committer: Committer, take: Callable[[], Upstream], path: bytes, lanes: Lanes
    ) -> None:
        self._committer, self._take, self._path, self._lanes = committer, take, path, lanes
        self._key = self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have no common class with asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-session-key":
            self._key = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        if not body:
            self._answer(b"{}")
            return
        row, waiting = (self._key, 0, body), self._lanes.get(self._key)
        if waiting is None:
            self._lanes[self._key] = deque()
            self._committer.add(row, lambda: self._call(body))
        else:
            waiting.append(lambda: self._call(body))
            self._committer.add_to_next(row)

    def _call(self, body: bytes) -> None:
        self._take().send(self._path, body, self._keep)

    def _keep(self, answer: bytes) -> None:
        self._committer.add((self._key, 1, answer), lambda: self._end(answer))

    def _end(self, answer: bytes) -> None:
        self._answer(answer)
        waiting = self._lanes[self._key]
        if waiting:
            waiting.popleft()()
        else:
            del self._lanes[self._key]

    def _answer(self, body: bytes) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )


async def main(port: int, upstream_port: int, path: str, database: str) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    pool: deque[Upstream] = deque()
    for _ in range(256):
        _, connection = await loop.create_connection(
            lambda: Upstream(pool), "127.0.0.1", upstream_port
        )
        pool.append(connection)
    committer = Committer(database)
    lanes: Lanes = {}
    server = await loop.create_server(
        lambda: Client(committer, pool.popleft, path.encode(), lanes), "127.0.0.1", port
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
