"""CPU time of the requests that real clients send, at 32 clients.

One text per key is the cheapest flow. Chat interfaces and agents send their whole history each
time, chains name the response that they continue, and others read what is stored. Each client runs
one dialogue, so the histories that are sent have half of `TURNS` turns on average.
"""

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.http_client import CHAT, RESPONSES, Connection
from benchmarks.report import Report
from benchmarks.servers import processes
from benchmarks.servers.processes import Server
from benchmarks.spin import Spin

CLIENTS = 32
TURNS = 40
WARM_UP_TURNS = 5
ROUNDS = 3
MODEL = {"model": "stub"}


class Dialogue:
    """What one client knows of its own dialogue."""

    _numbers = itertools.count()

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.key = f"dialogue {next(self._numbers)}"
        self.history: list[dict[str, Any]] = []
        self.name = ""
        """The last response, or the conversation."""

    def ask(self) -> dict[str, Any]:
        """Return the next question, different from all others, and add it to the history."""
        text = f"What will the weather be like in {self.key} after {len(self.history)} days?"
        self.history.append({"role": "user", "content": text})
        return self.history[-1]

    async def call(self, path: str, body: dict[str, Any], key: str | None = None) -> Any:
        """Send a request and return the decoded answer."""
        return (await self.connection.call("POST", path, MODEL | body, key=key)).json()


Step = Callable[[Dialogue], Awaitable[object]]


async def _text_per_key(one: Dialogue) -> None:
    await one.call(CHAT, {"messages": [one.ask()]}, one.key)


async def _chat_with_key(one: Dialogue) -> None:
    one.ask()
    completion = await one.call(CHAT, {"messages": one.history}, one.key)
    one.history.append(completion["choices"][0]["message"])


async def _chat_without_key(one: Dialogue) -> None:
    one.ask()
    completion = await one.call(CHAT, {"messages": one.history, "store": True})
    one.history.append(completion["choices"][0]["message"])


async def _items(one: Dialogue) -> None:
    one.ask()
    response = await one.call(RESPONSES, {"input": one.history}, one.key)
    one.history += response["output"]


async def _chain(one: Dialogue) -> None:
    parent = {"previous_response_id": one.name} if one.name else {}
    one.name = (await one.call(RESPONSES, {"input": [one.ask()], **parent}))["id"]


async def _conversation(one: Dialogue) -> None:
    if not one.name:
        one.name = (await one.connection.call("POST", "/v1/conversations", {})).json()["id"]
    await one.call(RESPONSES, {"input": [one.ask()], "conversation": one.name})


async def _read_response(one: Dialogue) -> None:
    if not one.name:
        await _chain(one)
    await one.connection.call("GET", f"{RESPONSES}/{one.name}")


async def _add_item(one: Dialogue) -> None:
    if not one.name:
        one.name = (await one.connection.call("POST", "/v1/conversations", {})).json()["id"]
    path = f"/v1/conversations/{one.name}/items"
    await one.connection.call("POST", path, {"items": [{"type": "message", **one.ask()}]})


FLOWS: dict[str, dict[str, Step]] = {
    "chat": {
        "one text, key": _text_per_key,
        "whole Chat history, key": _chat_with_key,
        "whole Chat history, stored, no key": _chat_without_key,
    },
    "responses": {
        "whole list of items, key": _items,
        "chain of responses": _chain,
        "turns of a conversation": _conversation,
        "read a response": _read_response,
        "add an item": _add_item,
    },
}
"""The flows by the API of the upstream."""


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure every flow."""
    for api, flows in FLOWS.items():
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            folder = Path(name)
            with (
                processes.stub(folder) as stub,
                processes.gateway(
                    f"sqlite:///{folder}/bench.db", stub.url, folder, api=api
                ) as server,
            ):
                for flow, step in flows.items():
                    asyncio.run(_measure(report, server, flow, step, is_short=is_short))


async def _measure(
    report: Report, server: Server, flow: str, step: Step, *, is_short: bool
) -> None:
    clients, turns, rounds = (2, 2, 1) if is_short else (CLIENTS, TURNS, ROUNDS)
    connections = [await Connection.open(server.port) for _ in range(clients)]
    try:
        await _run(connections, step, min(turns, WARM_UP_TURNS))
        times: list[float] = []
        found: list[float] = []
        for _ in range(rounds):
            spin, before = Spin(), server.cpu_seconds()
            times += await _run(connections, step, turns)
            cpu = server.cpu_seconds() - before
            found.append(cpu / (clients * turns) * 1e6 * spin.factor())
    finally:
        for connection in connections:
            await connection.close()
    report.add(
        "flows", flow=flow, clients=clients, turns=turns, p50_ms=statistics.median(times),
        cpu_us=statistics.median(found),
    )  # fmt: skip


async def _run(connections: list[Connection], step: Step, turns: int) -> list[float]:
    """Run a dialogue on each connection; return the milliseconds of each request."""
    times: list[float] = []

    async def dialogue(connection: Connection) -> None:
        one = Dialogue(connection)
        for _ in range(turns):
            began = time.perf_counter()
            await step(one)
            times.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*map(dialogue, connections))
    return times
