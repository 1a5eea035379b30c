"""A server as a child process with its own group; line length and error output are bounded."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from holdfast.processes.child import start_child
from holdfast.processes.process_table import kill_group, mark_environment
from holdfast.tools.settings import McpSettings

MAX_LINE_BYTES = 16 * 1024 * 1024
"""The longest message of a server; a server that sends a longer one is killed."""
ERROR_TAIL_BYTES = 4096
INVALID_ANSWER = "the server sent an invalid answer"
"""Our message in place of an answer that cannot be read."""
END_SECONDS = 2.0
"""How long a server may take to exit after its input is closed."""


class ServerProcess:
    """The state of a server's process."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.errors = b""
        """The last bytes of its standard error."""
        self.end = "ended"
        """How it ended, as a part of a sentence."""


@asynccontextmanager
async def open_process(
    settings: McpSettings, state: ServerProcess
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server and yield its streams; on exit, no process of its group is left."""
    process = await start_child(
        [settings.command, *settings.args],
        env=mark_environment(settings.environment()),
        cwd=_workdir(settings),
        max_line_bytes=MAX_LINE_BYTES,
    )
    received, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, sent = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        group.start_soon(_read, process, received, state)
        group.start_soon(_write, process, sent)
        group.start_soon(_read_errors, process, state)
        try:
            yield read_stream, write_stream
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
            for stream in (read_stream, write_stream, received, sent):
                stream.close()
            group.cancel_scope.cancel()


def _workdir(settings: McpSettings) -> Path | None:
    return Path(settings.workdir).expanduser() if settings.workdir else None


async def _read(process: asyncio.subprocess.Process, received: Any, state: ServerProcess) -> None:
    assert process.stdout is not None
    try:
        async with received:
            while line := await process.stdout.readline():
                if line.strip():
                    await received.send(_message(line))
    except ValueError:
        state.end = f"sent a message of more than {MAX_LINE_BYTES >> 20} MiB and was ended"
        kill_group(process.pid)
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        pass
    finally:
        state.ended.set()


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line))
    except ValueError as exc:
        return _repaired(line) or exc


def _repaired(line: bytes) -> SessionMessage | None:
    """Return an answer with invalid characters replaced, or an error in its place.

    Without either, the caller would wait until its timeout.
    """
    try:
        value = json.loads(line.decode("utf-8", "replace"))
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(value, dict)
        or "method" in value
        or not isinstance(value.get("id"), int | str)
    ):
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(text))
    except ValueError:
        error = ErrorData(code=PARSE_ERROR, message=INVALID_ANSWER)
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=value["id"], error=error))


async def _write(process: asyncio.subprocess.Process, sent: Any) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError, anyio.ClosedResourceError, anyio.BrokenResourceError):
        async with sent:
            async for message in sent:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()


async def _read_errors(process: asyncio.subprocess.Process, state: ServerProcess) -> None:
    assert process.stderr is not None
    while piece := await process.stderr.read(ERROR_TAIL_BYTES):
        state.errors = (state.errors + piece)[-ERROR_TAIL_BYTES:]


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process and its children."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    kill_group(process.pid)
    await process.wait()
