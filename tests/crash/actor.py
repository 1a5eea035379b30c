"""A process that uses a store and executes commands, one line of JSON at a time.

Run by tests as `python -m tests.crash.actor '{"url": …}'`. It reports events on its standard
output; its model waits to be released if a turn asks for that, so that a test can kill it there.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import DEFAULT_TENANT, TurnId
from holdfast.core.model.items import message
from holdfast.core.model.reset_policy import NEVER
from holdfast.core.transaction.commands import Command, Finish
from holdfast.engine.clock import RandomIds
from holdfast.engine.embedded.api import Holdfast
from holdfast.engine.embedded.turn_handle import Item
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import LaneSettings
from holdfast.stores.commit.executors import ThreadExecutor
from holdfast.stores.commit.group_commit import Result
from holdfast.stores.open import open_store, sqlite_path
from holdfast.stores.postgres import open_postgres
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.worker_locks import FileTokens
from holdfast.stores.sqlite.connection import DatabaseFile
from holdfast.stores.sqlite.driver import SqliteDriver


def tell(**event: Any) -> None:
    """Report an event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def die() -> None:
    """Kill this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingDriver(SqliteDriver):
    """The real driver, which kills the process just before or just after its n-th commit."""

    left = 0
    is_after = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.commit_then = None  # every batch goes through `commit` below

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        """Commit, or die before or after it without reporting the result."""
        self.left -= 1
        if self.left == 0 and not self.is_after:
            die()
        results = await super().commit(commands)
        if self.left == 0:
            die()
        return results


class SettableClock:
    """The system's clock, set by as many seconds as a file says."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def now(self) -> float:
        """Return the time now."""
        offset = float(self._path.read_text()) if self._path is not None else 0.0
        return time.time() + offset


class Actor:
    """One process's Holdfast, and its turns in progress."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders
        self._hf: Holdfast
        self._held: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        """Execute commands until the input ends or the process is killed."""
        clock_file = self._orders.get("clock_file")
        clock = SettableClock(Path(clock_file) if clock_file else None)
        store = await self._open(clock)
        settings = LaneSettings(
            lease_seconds=self._orders.get("lease_seconds", 10.0),
            max_attempts=self._orders.get("max_attempts", 3),
        )
        handler = self._handle if self._orders.get("handles", False) else None
        gateway = Gateway(
            store,
            clock=clock,
            ids=RandomIds(),
            settings=settings,
            limits=settings.limits(can_run_again=handler is not None),
        )
        await gateway.start(handler)
        self._hf = Holdfast(gateway, DEFAULT_TENANT, NEVER)
        tell(event="ready")
        try:
            await self._obey()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await gateway.stop()
            await store.close()

    async def _open(self, clock: SettableClock) -> SqlStore:
        url = self._orders["url"]
        if "clock_file" in self._orders and url.startswith("postgresql:"):
            return await open_postgres(url, clock=clock)  # in place of the database's clock
        if "die_at" not in self._orders:
            return await open_store(url, clock=clock)
        path = sqlite_path(url)
        file = DatabaseFile(str(path))
        driver = DyingDriver(
            file.connect, identity=file.identity, clock=clock,
            writer=ThreadExecutor("writer"), reader=ThreadExecutor("reader"),
        )  # fmt: skip
        driver.left = self._orders["die_at"]
        driver.is_after = self._orders["is_after"]
        await driver.migrate()
        return SqlStore(driver, FileTokens(path.with_name(path.name + "-workers")))

    async def _obey(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            match order.pop("do"):
                case "turn":
                    self._start(self._turn(**order))
                case "release":
                    self._held.setdefault(order["id"], asyncio.Event()).set()
                case "history":
                    self._start(self._history(**order))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _turn(
        self,
        id: str,  # noqa: A002
        key: str,
        text: str,
        *,
        holds: bool = False,
        **more: Any,
    ) -> None:
        async def model(items: list[Item]) -> str:
            tell(event="model", id=id, seen=[text_of(item) for item in items])
            if holds:
                await self._held.setdefault(id, asyncio.Event()).wait()
            return f"re: {text}"

        try:
            session = await self._hf.session(key)
            handle = session.turn(text, **more)
            self._start(self._tell_accepted(id, handle.id))
            async with handle as turn:
                if not turn.is_done:
                    turn.add(await model(await turn.context()))
            answer = [text_of(item) for item in await turn.output()]
        except HoldfastError as exc:
            tell(event="failed", id=id, code=exc.code)
        else:
            tell(event="done", id=id, answer=answer, session=session.id)

    async def _tell_accepted(self, id: str, turn_id: str) -> None:  # noqa: A002
        """Report when a turn is durable, whether it has its lane or not."""
        read = self._hf.gateway.read
        while await read.turn(DEFAULT_TENANT, TurnId(turn_id)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        tell(event="accepted", id=id)

    async def _handle(self, run: ActiveRun) -> None:
        """Execute a turn that nobody waits for, or die during it."""
        text = text_of(json.loads((await run.context())[-1]))
        tell(event="handled", text=text, attempts=run.turn.attempts)
        if "poison" in text:
            die()
        items = (message("assistant", f"re: {text}"),)
        await run.finish(Finish(fence=run.fence, outcome="completed", items=items))

    async def _history(self, id: str, key: str) -> None:  # noqa: A002
        session = await self._hf.session(key)
        view = await session.view()
        tell(
            event="history",
            id=id,
            session=session.id,
            texts=[text_of(item) for item in await session.items()],
            log=[text_of(item) for item in await session.items(view="log")],
            turns=[
                [turn.turn.number, turn.status, turn.turn.error_code, turn.turn.attempts]
                for turn in reversed(await session.turns(limit=200))
            ],
            status=view.status,
            sessions=len(await self._hf.sessions(generations=True)),
        )


def text_of(item: Item) -> str:
    """Return the text of a message."""
    text: str = item["content"][0]["text"]
    return text


if __name__ == "__main__":
    asyncio.run(Actor(json.loads(sys.argv[1])).live())
