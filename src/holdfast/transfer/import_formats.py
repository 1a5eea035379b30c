"""Which of the known formats a file or folder is in, and its reader."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from holdfast.transfer import (
    agents_database,
    chat_files,
    openclaw_database,
    openclaw_files,
    own_lines,
)
from holdfast.transfer.conversation import PastLife, Unread, UnreadableSource
from holdfast.transfer.sqlite_source import columns_of, is_sqlite, open_read_only

Format = Literal["auto", "holdfast", "openclaw", "agents", "chat"]
OPENCLAW_DATABASE = "openclaw-agent.sqlite"
DEFAULT_AGENT = "main"


def read_source(
    path: Path, form: Format = "auto", key: str | None = None
) -> Iterator[PastLife | Unread]:
    """Return the lives in a file or folder, and what in a folder could not be read."""
    if not path.exists():
        raise UnreadableSource(f"{path} does not exist")
    found = recognise(path) if form == "auto" else form
    match found:
        case "openclaw":
            return _openclaw(path)
        case "agents":
            return agents_database.read_database(path)
        case "holdfast":
            return own_lines.read_lines(path)
        case _:
            return chat_files.read_chat(path, key)


def recognise(path: Path) -> Format:
    """Return the format of a file or folder, by what is in it."""
    if path.is_dir():
        return "openclaw"
    if is_sqlite(path):
        return _recognise_database(path)
    if path.name == openclaw_files.INDEX:
        return "openclaw"
    first = _first_value(path)
    if isinstance(first, dict) and str(first.get("object", "")).startswith("session"):
        return "holdfast"
    if isinstance(first, dict) and first.get("type") == "session":
        return "openclaw"
    return "chat"


def _recognise_database(path: Path) -> Format:
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
    with path.open("rb") as lines:
        for line in lines:
            if line.strip():
                try:
                    return json.loads(line)
                except (ValueError, RecursionError):
                    return None
    return None


def _openclaw(path: Path) -> Iterator[PastLife | Unread]:
    """Return the lives of a whole state folder, of one agent, or of one file."""
    unread: list[str] = []
    is_anything = False
    for found in _openclaw_file(path) if path.is_file() else _openclaw_folder(path):
        if isinstance(found, Unread):
            unread.append(found.problem)
        else:
            is_anything = True
        yield found
    if not is_anything:
        raise UnreadableSource("; ".join(unread) or f"{path} holds no sessions of OpenClaw")


def _openclaw_folder(path: Path) -> Iterator[PastLife | Unread]:
    agents = sorted((path / "agents").iterdir()) if (path / "agents").is_dir() else [path]
    for folder in agents:
        try:
            yield from _openclaw_agent(folder)
        except UnreadableSource as exc:
            # Without its database, the older files would come to life in place of what it says.
            yield Unread(exc.message)
        except OSError as exc:
            yield Unread(f"{exc.filename or folder} cannot be read: {exc.strerror}")


def _openclaw_file(path: Path) -> Iterator[PastLife | Unread]:
    if is_sqlite(path):
        yield from openclaw_database.read_database(path, _agent_of(path.parent.parent))
    elif path.name == openclaw_files.INDEX:
        yield from openclaw_files.read_folder(path.parent, _agent_of(path.parent.parent))
    else:
        raise UnreadableSource(f"name the folder of {path.name}, so that its key can be found")


def _openclaw_agent(folder: Path) -> Iterator[PastLife | Unread]:
    agent = _agent_of(folder if folder.name != "sessions" else folder.parent)
    known: set[str] = set()
    for database in (folder / "agent" / OPENCLAW_DATABASE, folder / OPENCLAW_DATABASE):
        if database.is_file():
            for life in openclaw_database.read_database(database, agent):
                known.update(one.metadata["openclaw_session_id"] for one in life.generations)
                yield life
    for place in (folder / "sessions", folder):
        if (place / openclaw_files.INDEX).is_file() or list(place.glob("*.jsonl")):
            yield from openclaw_files.read_folder(place, agent, frozenset(known))


def _agent_of(folder: Path) -> str:
    """Return the agent that a folder under `agents/` is named after."""
    return folder.name if folder.parent.name == "agents" else DEFAULT_AGENT
