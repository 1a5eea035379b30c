"""The processes of one upstream: bounded in number, kept warm between turns, ended when idle."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass

from holdfast.processes.process_table import resident_bytes
from holdfast.providers.cli_agents.agent import AgentSession
from holdfast.providers.cli_agents.process import AgentProcess

_log = logging.getLogger("holdfast.agent")
WATCH_SECONDS = 2.0


@dataclass(slots=True, kw_only=True)
class RunningAgent:
    """A process and its session."""

    process: AgentProcess
    session: AgentSession
    options: tuple[str | None, str]
    token: str = ""
    """Identifies the last turn that it completed, or in which it waits for a permission."""
    asked: str = ""
    """The id of the call that waits for a permission."""
    idle_timer: asyncio.TimerHandle | None = None


class ProcessPool:
    """At most `max_processes` at a time; the least recently used warm process is evicted."""

    def __init__(
        self, max_processes: int, idle_seconds: float, memory_bytes: int, upstream: str = ""
    ) -> None:
        self._upstream = upstream
        self._max_processes = max_processes
        self._idle_seconds = idle_seconds
        self._memory_bytes = memory_bytes
        self._warm: OrderedDict[str, RunningAgent] = OrderedDict()
        self._count = 0
        """Slots in use: by turns, warm processes and processes that are being ended."""
        self._freed = asyncio.Condition()
        self._ending: set[asyncio.Task[None]] = set()
        self._watched: set[AgentProcess] = set()
        self._watching: asyncio.Task[None] | None = None

    async def take(self, name: str) -> RunningAgent | None:
        """Reserve a slot for a turn of a session; return its warm agent, or None.

        The caller must `keep` or `free` the slot.
        """
        while True:
            agent = self._pop(name)
            if agent is not None:
                return agent
            if self._count < self._max_processes:
                self._count += 1
                return None
            oldest = self._oldest()
            if oldest is not None:
                await self.end(oldest)
                continue
            async with self._freed:
                await self._freed.wait()

    def _oldest(self) -> str | None:
        """Return the least recently used warm session; those that wait for a person come last."""
        idle = (name for name, agent in self._warm.items() if not agent.asked)
        return next(idle, next(iter(self._warm), None))

    def keep(self, name: str, agent: RunningAgent, at_least: float = 0.0) -> None:
        """Keep an agent warm after its turn, at least as long as a person may take to answer."""
        loop = asyncio.get_running_loop()
        seconds = max(self._idle_seconds, at_least)
        agent.idle_timer = loop.call_later(seconds, self._end_idle, name, agent)
        self._warm[name] = agent
        self._notify()

    async def free(self) -> None:
        """Release the slot of a turn whose process has ended."""
        self._count -= 1
        async with self._freed:
            self._freed.notify_all()

    def names(self) -> list[str]:
        """Return the sessions that have a warm process."""
        return list(self._warm)

    async def end(self, name: str) -> None:
        """End a session's warm process, if there is one; return when it is gone."""
        agent = self._pop(name)
        if agent is not None:
            try:
                await agent.process.finish()
            finally:
                self.unwatch(agent.process)
                await self.free()

    async def close(self) -> None:
        """End every process."""
        for name in self.names():
            await self.end(name)
        await asyncio.gather(*self._ending)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    def watch(self, process: AgentProcess) -> None:
        """Kill a process if its group exceeds the memory limit."""
        self._watched.add(process)
        self._log(logging.INFO, "agent.started", process)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="holdfast-agent-memory")

    def unwatch(self, process: AgentProcess) -> None:
        """Stop watching a process that has ended."""
        if process in self._watched:
            self._watched.discard(process)
            self._log(logging.INFO, "agent.ended", process)

    def _log(self, level: int, event: str, process: AgentProcess) -> None:
        fields = {"upstream": self._upstream, "pid": process.identity.pid}
        _log.log(level, event, extra=fields)

    def _pop(self, name: str) -> RunningAgent | None:
        agent = self._warm.pop(name, None)
        if agent is not None and agent.idle_timer is not None:
            agent.idle_timer.cancel()
            agent.idle_timer = None
        return agent

    def _end_idle(self, name: str, agent: RunningAgent) -> None:
        if self._warm.get(name) is agent:
            self._start(self.end(name))

    def _notify(self) -> None:
        """Wake a turn that waits for a slot: a warm process can be evicted for it."""

        async def notify() -> None:
            async with self._freed:
                self._freed.notify_all()

        self._start(notify())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if not self._watched:
                continue
            resident = await asyncio.to_thread(resident_bytes)
            for process in list(self._watched):
                if resident.get(process.identity.pid, 0) > self._memory_bytes:
                    process.exceeds_memory = True
                    self._log(logging.WARNING, "agent.out_of_memory", process)
                    process.kill_now()
