"""What turns cost in the shapes that real clients send: calls, modules, changes of package.

`python -m benchmarks.counting shapes` prints them as a table.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.counting.profiled import (
    WARM_UP,
    ProfiledGateway,
    connected,
    profiled_gateway,
)
from benchmarks.counting.upstream import Upstream, serving
from benchmarks.http_client import CHAT, RESPONSES, Connection
from benchmarks.servers import processes
from benchmarks.servers.stub import STREAM_HEAD

REPEATS = 5
WORDS = 6
SYSTEM = {"role": "system", "content": "You are brief."}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
Ask = Callable[[Connection, Upstream, int], Awaitable[None]]
"""Sends the nth request of a shape and reads the answer."""


class ShapeCost(msgspec.Struct, frozen=True, order=True):
    """The least that a turn of one shape cost."""

    calls: int
    """Call events of functions, coroutines and generators in our packages."""
    modules: int
    """Modules that these functions are in."""
    package_changes: int
    """How often a call was in another package than the call before it."""


def shape_costs(folder: Path) -> dict[str, ShapeCost]:
    """Return the cost of a turn of each shape, on a known, idle lane, over a Chat upstream."""
    port = processes.free_port()

    async def measure(gateway: ProfiledGateway) -> dict[str, ShapeCost]:
        found = {}
        async with serving(Upstream(), port) as upstream, connected(gateway.port) as connection:
            for name, ask in _shapes().items():
                found[name] = await _cost(gateway, connection, upstream, ask)
        return found

    with profiled_gateway(folder, folder / "shapes.db", "chat", port) as gateway:
        return asyncio.run(measure(gateway))


def table(costs: dict[str, ShapeCost]) -> list[str]:
    """Return the costs as lines of a Markdown table."""
    lines = ["| turn | own calls | modules | package changes |", "|---|---|---|---|"]
    for name, cost in costs.items():
        lines.append(f"| {name} | {cost.calls:,} | {cost.modules} | {cost.package_changes} |")
    return lines


async def _cost(
    gateway: ProfiledGateway, connection: Connection, upstream: Upstream, ask: Ask
) -> ShapeCost:
    """Return the least cost of several turns after a warm-up; timers may fall into some."""
    found: list[ShapeCost] = []
    for number in range(WARM_UP + REPEATS):
        before, calls = await gateway.counts(), await gateway.functions()
        await ask(connection, upstream, number)
        after, later = await gateway.counts(), await gateway.functions()
        used = [name for name, count in later.items() if count > calls.get(name, 0)]
        more = after.minus(before)
        modules = {name.partition(":")[0] for name in used}
        found.append(ShapeCost(int(more.calls), len(modules), int(more.package_changes)))
    return min(found[WARM_UP:])


def _shapes() -> dict[str, Ask]:
    return {
        "keyed Chat, one user text": _whole("plain"),
        "+ system message and temperature": _whole("system", [SYSTEM], {"temperature": 0.5}),
        "+ Idempotency-Key": _whole("once", [SYSTEM], {"temperature": 0.5}, has_key=True),
        "whole history": _whole("history", has_history=True),
        "whole history + system + tools": _whole(
            "tools", [SYSTEM], {"tools": [TOOL]}, has_history=True
        ),
        f"streamed Responses, {WORDS} words": _streamed,
    }


def _whole(
    key: str,
    first: list[Any] | None = None,
    more: dict[str, Any] | None = None,
    *,
    has_key: bool = False,
    has_history: bool = False,
) -> Ask:
    """Return what asks for a whole completion, with all that was said before if `has_history`."""
    history: list[Any] = []

    async def ask(connection: Connection, _: Upstream, number: int) -> None:
        question = {"role": "user", "content": f"What is the weather like in {number}?"}
        messages = [*(first or []), *history, question]
        headers = {"x-session-key": key}
        if has_key:
            headers["idempotency-key"] = f"once-{number}"
        body = msgspec.json.encode({"model": "stub", "messages": messages, **(more or {})})
        reply = await connection.request("POST", CHAT, body, headers)
        if reply.status != 200:
            raise RuntimeError(f"{reply.status} {reply.body[:500]!r}")
        if has_history:
            answer = reply.json()["choices"][0]["message"]["content"]
            history.extend((question, {"role": "assistant", "content": answer}))

    return ask


async def _streamed(connection: Connection, upstream: Upstream, _: int) -> None:
    """Ask for a streamed response; its events come in one piece, so that they are read at once."""
    upstream.is_holding = True
    body = msgspec.json.encode({"model": "stub", "input": "Count.", "stream": True})
    connection.send("POST", RESPONSES, body, {"x-session-key": "streamed"})
    request = await upstream.held.get()
    events = b"".join(request.events(WORDS))
    request.transport.write(STREAM_HEAD + events + b"0\r\n\r\n")
    reply = await connection.receive()
    if b"response.completed" not in reply.body:
        raise RuntimeError(f"{reply.status} {reply.body[-500:]!r}")
