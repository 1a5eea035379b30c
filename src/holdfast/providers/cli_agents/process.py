"""One process of an agent: its own group, bounded output, and a complete cleanup at its end."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.processes.child import UnixAccount, start_child
from holdfast.processes.process_table import ProcessIdentity, identify, kill_group, kill_user

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_TURN_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 16 * 1024
"""How many bytes of the end of standard error are kept."""
MAX_UNREADABLE_BYTES = 1000
"""How many bytes of the end of output that is not of the protocol are kept."""
EXIT_SECONDS = 3.0
"""How long a process may take to exit after its input was closed."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What to start: the command, its whole environment, and its working directory."""

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    account: UnixAccount | None = None
    owns_account: bool = False
    """Whether this process alone uses the account, so that all processes of it end with this
    one."""


class AgentProcess:
    """A running agent that reads and writes lines."""

    def __init__(self, process: asyncio.subprocess.Process, own_uid: int | None = None) -> None:
        self._process = process
        self._own_uid = own_uid
        self.identity: ProcessIdentity = identify(process.pid)
        self._errors: deque[bytes] = deque()
        self._error_bytes = 0
        self._turn_bytes = 0
        self._unreadable = b""
        self.exceeds_memory = False
        """Set by the watcher before it ends a process that uses too much memory."""
        self._is_ended = False
        self._reading_errors = asyncio.create_task(self._read_errors())

    @classmethod
    async def start(cls, launch: Launch) -> "AgentProcess":
        """Start the process in its own session and process group."""
        try:
            process = await start_child(
                launch.command,
                env=launch.env,
                cwd=launch.cwd,
                max_line_bytes=MAX_LINE_BYTES,
                account=launch.account,
            )
        except OSError as exc:
            raise ProviderFailure(
                f"{launch.command[0]} cannot be started: {exc.strerror or exc}",
                failure_class="terminal",
                status=502,
                provider_code="agent_not_started",
            ) from exc
        account = launch.account if launch.owns_account else None
        return cls(process, account.uid if account is not None else None)

    @property
    def is_running(self) -> bool:
        """Whether the process has not exited."""
        return self._process.returncode is None

    @property
    def stdin(self) -> asyncio.StreamWriter:
        """The process's input."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        """The process's output."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def errors(self) -> str:
        """The end of the process's standard error."""
        return b"".join(self._errors).decode("utf-8", "replace").strip()

    @property
    def unreadable(self) -> str:
        """The end of the output that was not of the agent's protocol."""
        return self._unreadable.decode("utf-8", "replace")

    def note_unreadable(self, line: bytes) -> None:
        """Keep a line that is not of the agent's protocol: it may say why there is no answer."""
        kept = b"%b\n%b" % (self._unreadable, line[-MAX_UNREADABLE_BYTES:])
        self._unreadable = kept[-MAX_UNREADABLE_BYTES:].strip()

    def begin_turn(self) -> None:
        """Start counting the output of a turn."""
        self._turn_bytes = 0

    async def write_line(self, line: bytes) -> None:
        """Write a line. If the process has exited, the next read reports it."""
        with contextlib.suppress(ConnectionError):
            self.stdin.write(line + b"\n")
            await self.stdin.drain()

    async def read_line(self) -> bytes | None:
        """Return the next line that is not empty, or None at the end of the output."""
        while True:
            try:
                line = await self.stdout.readline()
            except ValueError as exc:
                raise _too_much("a line", MAX_LINE_BYTES) from exc
            if not line:
                return None
            self._turn_bytes += len(line)
            if self._turn_bytes > MAX_TURN_BYTES:
                raise _too_much("a turn", MAX_TURN_BYTES)
            if line := line.strip():
                return line

    async def exit_code(self) -> int | None:
        """Return the exit code of a process whose output has ended, or None if it does not exit."""
        with contextlib.suppress(TimeoutError):
            # A child process may keep the pipes open for longer.
            async with asyncio.timeout(EXIT_SECONDS):
                await self._process.wait()
                await asyncio.shield(self._reading_errors)
        return self._process.returncode

    async def finish(self) -> None:
        """Close the input, so that the process exits by itself, then `kill`."""
        if self._is_ended:
            return
        self.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), EXIT_SECONDS)
        await self.kill()

    async def kill(self) -> None:
        """Kill the whole group and wait until the process has exited."""
        if self._is_ended:
            return
        self._is_ended = True
        kill_group(self._process.pid)
        if self._own_uid is not None:
            await asyncio.to_thread(kill_user, self._own_uid)
        self.stdin.close()
        # The process counts as exited only after its output was read to the end. A process that
        # left the group may keep the pipe open; it is not waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                while await self.stdout.read(MAX_ERROR_BYTES):
                    pass
                await self._process.wait()
        self._reading_errors.cancel()
        await asyncio.gather(self._reading_errors, return_exceptions=True)
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()

    def kill_now(self) -> None:
        """Kill the group without waiting; the user of the process notices its end."""
        if self.is_running:
            kill_group(self._process.pid)

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(4096):
            self._errors.append(piece)
            self._error_bytes += len(piece)
            while self._error_bytes > MAX_ERROR_BYTES and len(self._errors) > 1:
                self._error_bytes -= len(self._errors.popleft())


def _too_much(content: str, limit: int) -> ProviderFailure:
    return ProviderFailure(
        f"the agent wrote more than {limit // (1024 * 1024)} MiB in {content}",
        failure_class="terminal",
        status=502,
        provider_code="agent_output_too_large",
    )
