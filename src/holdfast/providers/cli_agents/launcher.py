"""Start agents: which program, in which environment, under which isolation.

The environment of an agent is built only here: the variables that the settings name and those that
the agent needs, nothing else of the gateway's environment.
"""

import asyncio
import os
import re
import shutil
import time
from pathlib import Path

from holdfast.core.errors import InvalidSetting, ProviderFailure
from holdfast.providers.cli_agents.agent import Agent, AgentRequest, home_file
from holdfast.providers.cli_agents.failures import agent_not_started
from holdfast.providers.cli_agents.isolation import (
    Sandbox,
    find_closed,
    read_accounts,
    refuse_readable,
)
from holdfast.providers.cli_agents.process import AgentProcess, Launch
from holdfast.providers.settings import UpstreamSettings

VERSION_SECONDS = 10.0
"""How long a program may take to tell its version."""
REMEMBERED_SECONDS = 30.0
"""How long a program that did not start is not started again; a change of its file ends it."""
_VERSION = re.compile(r"\d+(?:\.\d+)+")


_ProgramFile = tuple[str, int, int]
"""A program's path, and what changes with its content."""


class Launcher:
    """Starts the processes of one upstream."""

    def __init__(self, settings: UpstreamSettings, agent: Agent) -> None:
        self._settings = settings
        self._agent = agent
        self.accounts = read_accounts(settings.run_as)
        self._version: tuple[_ProgramFile, str] | None = None
        self._failed: tuple[_ProgramFile, str, float] | None = None
        """The program that did not start, why, and until when this is remembered."""
        self._reading_version = asyncio.Lock()

    @property
    def program(self) -> Path:
        """The program's file; raise if it is not found."""
        command = self._settings.command or self._agent.program
        if not command:
            raise InvalidSetting(f"upstream {self._settings.name}: command is missing")
        program = shutil.which(command, path=self._path)
        if program is None:
            raise ProviderFailure(
                f"upstream {self._settings.name}: the program {command} was not found",
                failure_class="terminal",
                status=502,
                provider_code="agent_not_found",
            )
        return Path(program).absolute()

    @property
    def credentials(self) -> Path | None:
        """The credentials file that is linked into each session, if there is one."""
        if self._settings.credentials:
            return Path(self._settings.credentials).expanduser().absolute()
        path = home_file(Path.home(), self._agent)
        return path if self._agent.credentials[0] and path.is_file() else None

    @property
    def _path(self) -> str:
        return self._settings.runtime.environment.get("PATH") or os.defpath

    async def version(self) -> str:
        """Return the program's version; empty if the agent tells it when it runs.

        It is read again only if its file changes. A program that did not start is not started again
        for a while: its failure is raised at once.
        """
        program = self.program
        key = _program_file(program)
        # Many turns may start at once: only one of them reads it.
        async with self._reading_version:
            if self._failed is not None:
                failed, message, until = self._failed
                if failed == key and time.monotonic() < until:
                    raise agent_not_started(message)
            if not self._agent.oldest_version:
                return ""
            if self._version is None or self._version[0] != key:
                try:
                    self._version = key, await self._read_version(program)
                except ProviderFailure as failure:
                    self.note_failure(failure)
                    raise
            return self._version[1]

    def note_failure(self, failure: ProviderFailure) -> None:
        """Remember why the program did not start."""
        until = time.monotonic() + REMEMBERED_SECONDS
        self._failed = _program_file(self.program), failure.message, until

    async def _read_version(self, program: Path) -> str:
        env = {"PATH": self._path, "HOME": "/nonexistent"}
        cwd = Path("/")
        process = await AgentProcess.start(
            Launch(command=[str(program), "--version"], env=env, cwd=cwd)
        )
        try:
            async with asyncio.timeout(VERSION_SECONDS):
                line = await process.read_line()
        except TimeoutError:
            line = None
        finally:
            await asyncio.shield(process.kill())
        match = _VERSION.search(line.decode("utf-8", "replace")) if line else None
        if match is None:
            raise agent_not_started(
                f"{program} --version did not tell its version within {VERSION_SECONDS:g} s"
            )
        return match[0]

    async def start(self, request: AgentRequest) -> AgentProcess:
        """Start an agent for a session."""
        directory = request.directory
        credentials = self.credentials
        if credentials is not None:
            directory.link_config(self._agent.credentials[1], credentials)
        invocation = self._agent.invocation(request)
        temporary = directory.make_config_folder("tmp")
        env = {
            "PATH": self._path,
            "HOME": str(directory.config),
            "LANG": "C.UTF-8",
            "TMPDIR": str(temporary),
            **self._passed(),
            **invocation.variables,
        }
        command = [str(self.program), *self._settings.args, *invocation.arguments]
        if self._settings.sandbox:
            sandbox = self._sandbox()
            command = sandbox.wrap(
                command,
                writable=(directory.config, *([directory.work] if self._may_write else [])),
                readable=(directory.work,),
                cwd=directory.work,
            )
        return await AgentProcess.start(
            Launch(
                command=command,
                env=env,
                cwd=directory.work,
                account=directory.account,
                owns_account=directory.owns_account,
            )
        )

    @property
    def _may_write(self) -> bool:
        return self._settings.permissions != "read"

    def _passed(self) -> dict[str, str]:
        """Return the variables that the settings pass on, if they are set."""
        environment = self._settings.runtime.environment
        return {name: environment[name] for name in self._settings.env if name in environment}

    def _sandbox(self) -> Sandbox:
        readable = [self.program, *([self.credentials] if self.credentials else [])]
        return Sandbox(tuple(readable), self._path)

    async def find_closed(self) -> str | None:
        """Return an error text if the agent's user cannot enter its directories."""
        return await find_closed(self._settings, self.accounts[0]) if self.accounts else None

    async def check(self) -> None:
        """Raise `InvalidSetting` if an agent cannot run or could read what is not its own."""
        settings = self._settings
        closed = await self.find_closed()
        if closed is not None:
            raise InvalidSetting(closed)
        if not settings.needs_wall:
            return
        await refuse_readable(
            settings, self._sandbox() if settings.sandbox else None, self.accounts
        )


def _program_file(program: Path) -> _ProgramFile:
    stat = program.resolve().stat()
    return str(program), stat.st_mtime_ns, stat.st_size
