"""Detection of a source's format, and the choice of its reader."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from holdfast.transfer import (
    agents_database,
    chat_files,
    export_reader,
    openclaw_database,
    openclaw_files,
)
from holdfast.transfer.imported_conversation import (
    ImportedConversation,
    UnreadableSource,
    UnreadSource,
)
from holdfast.transfer.source_files import check_source, lines_of
from holdfast.transfer.sqlite_source import columns_of, is_sqlite, open_read_only

SourceFormat = Literal["auto", "holdfast", "openclaw", "agents", "chat"]
OPENCLAW_DATABASE = "openclaw-agent.sqlite"
DEFAULT_AGENT = "main"


def read_source(
    path: Path, source_format: SourceFormat = "auto", key: str | None = None
) -> Iterator[ImportedConversation | UnreadSource]:
    """Yield the conversations of a file or folder, and the parts of a folder it cannot read."""
    check_source(path)
    match detect_format(path) if source_format == "auto" else source_format:
        case "openclaw":
            return _openclaw(path)
        case "agents":
            return agents_database.read_database(path)
        case "holdfast":
            return export_reader.read_lines(path)
        case _:
            return chat_files.read_chat(path, key)


def detect_format(path: Path) -> SourceFormat:
    """Return the format of a file or folder, by its content."""
    if path.is_dir():
        return "openclaw"
    if is_sqlite(path):
        return _detect_database(path)
    if path.name == openclaw_files.INDEX:
        return "openclaw"
    first = _first_value(path)
    if isinstance(first, dict) and str(first.get("object", "")).startswith("session"):
        return "holdfast"
    if isinstance(first, dict) and first.get("type") == "session":
        return "openclaw"
    return "chat"


def _detect_database(path: Path) -> SourceFormat:
    connection = open_read_only(path)
    try:
        if columns_of(connection, openclaw_database.EVENTS):
            return "openclaw"
        if agents_database.is_agents_database(connection):
            return "agents"
    except sqlite3.DatabaseError as exc:
        raise UnreadableSource(f"{path} cannot be read: {exc}") from exc
    finally:
        connection.close()
    raise UnreadableSource(f"{path} is neither an OpenClaw nor an Agents SDK database")


def _first_value(path: Path) -> Any:
    for line in lines_of(path):
        if line.strip():
            try:
                return json.loads(line)
            except (ValueError, RecursionError):
                return None
    return None


def _openclaw(path: Path) -> Iterator[ImportedConversation | UnreadSource]:
    """Yield the conversations of a whole state folder, of one agent, or of one file."""
    unread: list[str] = []
    is_empty = True
    for entry in _openclaw_file(path) if path.is_file() else _openclaw_folder(path):
        if isinstance(entry, UnreadSource):
            unread.append(entry.problem)
        else:
            is_empty = False
        yield entry
    if is_empty:
        raise UnreadableSource("; ".join(unread) or f"{path} contains no OpenClaw sessions")


def _openclaw_folder(path: Path) -> Iterator[ImportedConversation | UnreadSource]:
    agents = sorted((path / "agents").iterdir()) if (path / "agents").is_dir() else [path]
    for folder in agents:
        try:
            yield from _openclaw_agent(folder)
        except UnreadableSource as exc:
            # Do not fall back to the older files: they would become live with stale content.
            yield UnreadSource(exc.message)
        except OSError as exc:
            yield UnreadSource(f"{exc.filename or folder} cannot be read: {exc.strerror}")


def _openclaw_file(path: Path) -> Iterator[ImportedConversation | UnreadSource]:
    if is_sqlite(path):
        yield from openclaw_database.read_database(path, _agent_of(path.parent.parent))
    elif path.name == openclaw_files.INDEX:
        yield from openclaw_files.read_folder(path.parent, _agent_of(path.parent.parent))
    else:
        raise UnreadableSource(f"import the folder of {path.name} instead: it contains its key")


def _openclaw_agent(folder: Path) -> Iterator[ImportedConversation | UnreadSource]:
    agent = _agent_of(folder if folder.name != "sessions" else folder.parent)
    known_keys: set[str] = set()
    for database in (folder / "agent" / OPENCLAW_DATABASE, folder / OPENCLAW_DATABASE):
        if database.is_file():
            for conversation in openclaw_database.read_database(database, agent):
                known_keys.update(
                    session.metadata["openclaw_session_id"] for session in conversation.generations
                )
                yield conversation
    for directory in (folder / "sessions", folder):
        if (directory / openclaw_files.INDEX).is_file() or list(directory.glob("*.jsonl")):
            yield from openclaw_files.read_folder(directory, agent, frozenset(known_keys))


def _agent_of(folder: Path) -> str:
    """Return the agent's name: the folder's, if it is under `agents/`."""
    return folder.name if folder.parent.name == "agents" else DEFAULT_AGENT
