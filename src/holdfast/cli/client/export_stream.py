"""The export of a gateway as a stream: lines of sessions, and lines about the stream itself."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

from holdfast.cli.client.gateway_client import (
    GatewayClient,
    GatewayUnreachable,
    RequestRejected,
    Value,
)
from holdfast.cli.output.terminal import CommandFailed

BLOCK_BYTES = 256 * 1024
_ABOUT_STREAM = b'{"object":"session.export'
"""How lines about the stream begin; those of sessions begin with an id."""


class StreamStarted(NamedTuple):
    """The stream begins: how many sessions it will have, as far as is known."""

    total: int


class StreamReached(NamedTuple):
    """Everything before is complete: so many sessions of this stream."""

    sessions: int


class SessionErased(NamedTuple):
    """A session was erased while it was read: its lines, the last ones, are void."""

    session_id: str


class ExportInterrupted(CommandFailed):
    """The stream ended before its last session."""


Piece = bytes | StreamStarted | StreamReached | SessionErased


def export_pieces(client: GatewayClient, **query: Any) -> Iterator[Piece]:
    """Yield the bytes of the lines of sessions, in pieces of any length, and news of the stream.

    Memory does not grow with the length of a line.
    """
    given = {name: value for name, value in query.items() if value is not None}
    path = "/v1/sessions/export" + (f"?{urlencode(given)}" if given else "")
    try:
        with client.request("GET", path) as response:
            for piece in _pieces(iter(lambda: response.read1(BLOCK_BYTES), b"")):
                yield piece
                if isinstance(piece, _Last):
                    return
    except GatewayUnreachable as exc:
        raise ExportInterrupted(exc.message) from exc
    except RequestRejected as exc:
        if exc.status == 404 and "id" not in given:
            raise CommandFailed(f"the gateway at {client.url} is too old to export") from exc
        raise
    raise ExportInterrupted(f"the export of {client.url} ended before its last session")


def export_lines(client: GatewayClient, session_id: str) -> Iterator[Value]:
    """Yield the lines of one session, parsed."""
    rest = b""
    for piece in export_pieces(client, id=session_id):
        if isinstance(piece, SessionErased):
            raise CommandFailed(f"session {session_id} was erased during the export")
        if isinstance(piece, bytes):
            *lines, rest = (rest + piece).split(b"\n")
            yield from map(json.loads, lines)


class _Last(StreamReached):
    """The stream is complete."""


def _pieces(blocks: Iterator[bytes]) -> Iterator[Piece]:
    """Split blocks into the lines of sessions and those about the stream."""
    held, is_inside = b"", False
    for block in blocks:
        # Not `splitlines`: it also ends lines at a carriage return.
        lines = (held + block).split(b"\n")
        last = lines.pop()
        held, passed = b"", list[bytes]()
        for line in [*[line + b"\n" for line in lines], *([last] if last else [])]:
            is_whole = line.endswith(b"\n")
            if is_inside or not _may_be_about_stream(line):
                passed.append(line)
                is_inside = not is_whole
            elif not is_whole:
                held = line
            else:
                if passed:
                    yield b"".join(passed)
                    passed = []
                yield _about_stream(line)
        if passed:
            yield b"".join(passed)


def _may_be_about_stream(line: bytes) -> bool:
    return line.startswith(_ABOUT_STREAM) or _ABOUT_STREAM.startswith(line)


def _about_stream(line: bytes) -> Piece:
    try:
        value = json.loads(line)
        match value["object"]:
            case "session.export":
                return StreamStarted(int(value["total"]))
            case "session.export.erased":
                return SessionErased(str(value["session_id"]))
            case "session.export.cursor":
                kind = StreamReached if value["has_more"] else _Last
                return kind(int(value["sessions"]))
    except (ValueError, KeyError, TypeError):
        pass
    raise CommandFailed(f"unknown line in the export: {line[:100]!r}")
