"""Real processes that share one store, controlled and killed by tests."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PATIENCE_SECONDS = 60.0
"""How long a test waits for something that must happen; how soon it happens does not matter."""

Event = dict[str, Any]


class ActorProcess:
    """One process; its events are kept until a test reads them."""

    def __init__(self, orders: Event) -> None:
        self._orders = orders
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._is_over = False
        self._orders_given = 0
        self.events: list[Event] = []
        self.said: dict[str, list[Event]] = defaultdict(list)

    async def start(self) -> None:
        """Start the process in a group of its own, and wait until it is ready."""
        await self.launch()
        await self.expect("ready")

    async def launch(self) -> None:
        """Start the process, which may die before it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.crash.actor", json.dumps(self._orders),
            cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self._listening = asyncio.create_task(self._listen(self._process))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            event = json.loads(line)
            self.events.append(event)
            self.said[event["event"]].append(event)
            async with self._news:
                self._news.notify_all()
        await process.wait()
        self._is_over = True
        async with self._news:
            self._news.notify_all()

    def tell(self, do: str, **order: Any) -> str:
        """Send it a command; return the id in the events about it."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._orders_given += 1
        order.setdefault("id", f"{do}{self._orders_given}")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
        return str(order["id"])

    def heard(self, event: str, id: str | None = None) -> Event | None:  # noqa: A002
        """Return an event that was already reported, or None."""
        found = (one for one in self.said[event] if id is None or one.get("id") == id)
        return next(found, None)

    async def expect(self, event: str, id: str | None = None) -> Event:  # noqa: A002
        """Return an event; wait for it if necessary."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            while (found := self.heard(event, id)) is None:
                assert not self._is_over, f"died before {event} {id}: {self.events}"
                await self._news.wait()
        return found

    async def turn(self, key: str, text: str, **more: Any) -> Event:
        """Run a turn and return its result."""
        name = self.tell("turn", key=key, text=text, **more)
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            while True:
                found = self.heard("done", name) or self.heard("failed", name)
                if found is not None:
                    return found
                assert not self._is_over, f"died during {text}"
                await self._news.wait()

    async def history(self, key: str) -> Event:
        """Return the current history of a conversation."""
        return await self.expect("history", self.tell("history", key=key))

    async def until_dead(self) -> None:
        """Wait until the process has ended by itself."""
        assert self._listening is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._listening

    async def kill(self) -> None:
        """Kill the process and its group; do nothing if it has ended."""
        if self._process is None or self._listening is None:
            return
        if self._process.returncode is None:
            self._send(signal.SIGKILL)
        await self._listening
        if self._process.stdin is not None:
            self._process.stdin.close()

    def freeze(self) -> None:
        """Suspend the process."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the process."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@contextlib.asynccontextmanager
async def actors(*orders: Event) -> AsyncIterator[list[ActorProcess]]:
    """Run one process for each of `orders`; all are killed at the end of the block."""
    cast = [ActorProcess(order) for order in orders]
    try:
        await asyncio.gather(*(actor.start() for actor in cast))
        yield cast
    finally:
        for actor in cast:
            await actor.kill()


@contextlib.asynccontextmanager
async def an_actor(**orders: Any) -> AsyncIterator[ActorProcess]:
    """Run one process for the length of a block."""
    async with actors(orders) as (actor,):
        yield actor
