"""Reader of OpenClaw's newer database: nodes, windows and transcript events of one agent."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.transfer.imported_conversation import (
    ImportedConversation,
    ImportedSession,
    Item,
    UnreadableSource,
    seconds,
)
from holdfast.transfer.openclaw_events import read_transcript
from holdfast.transfer.openclaw_files import canonical_key, recovered_key, segment_sessions
from holdfast.transfer.sqlite_source import columns_of, open_read_only

EVENTS = "transcript_events"
NODES = "session_nodes"
WINDOWS = "session_windows"


def read_database(path: Path, agent: str) -> Iterator[ImportedConversation]:
    """Yield the conversations of an agent's database."""
    connection = open_read_only(path)
    try:
        yield from _Database(connection, agent).conversations()
    except sqlite3.DatabaseError as exc:
        raise UnreadableSource(f"{path} cannot be read: {exc}") from exc
    finally:
        connection.close()


class _Database:
    def __init__(self, connection: sqlite3.Connection, agent: str) -> None:
        self._connection = connection
        self._agent = agent
        self._has_zstd = "event_zstd" in columns_of(connection, EVENTS)

    def conversations(self) -> Iterator[ImportedConversation]:
        live_ids = {
            str(key): str(session_id)
            for key, session_id in self._connection.execute(
                f"select session_key, current_session_id from {NODES} order by session_key"
            )
            if session_id
        }
        windows = self._windows()
        seen: set[str] = set()
        for key, live_id in live_ids.items():
            generations = [window for window in windows.get(key, []) if window[0] != live_id]
            generations.append((live_id, self._started_at(windows, key, live_id)))
            seen.update(session_id for session_id, _ in generations)
            yield self._conversation(canonical_key(self._agent, key), generations)
        for session_id in self._sessions_with_events():
            if session_id not in seen:
                key = recovered_key(self._agent, session_id)
                yield self._conversation(key, [(session_id, None)])

    def _windows(self) -> dict[str, list[tuple[str, float | None]]]:
        """Return the sessions of each key with their start times, oldest first."""
        if not columns_of(self._connection, WINDOWS):
            return {}
        windows: dict[str, list[tuple[str, float | None]]] = {}
        for key, session_id, started_at in self._connection.execute(
            f"select session_key, session_id, started_at from {WINDOWS} order by started_at, rowid"
        ):
            windows.setdefault(str(key), []).append((str(session_id), seconds(started_at)))
        return windows

    @staticmethod
    def _started_at(
        windows: dict[str, list[tuple[str, float | None]]], key: str, session_id: str
    ) -> float | None:
        return next(
            (started_at for other, started_at in windows.get(key, []) if other == session_id), None
        )

    def _sessions_with_events(self) -> list[str]:
        rows = self._connection.execute(
            f"select distinct session_id from {EVENTS} order by session_id"
        )
        return [str(row[0]) for row in rows]

    def _conversation(
        self, key: str, sessions: list[tuple[str, float | None]]
    ) -> ImportedConversation:
        generations = [
            generation
            for session_id, started_at in sessions
            for generation in self._read(session_id, started_at)
        ]
        return ImportedConversation(key=key, generations=tuple(generations))

    def _read(self, session_id: str, started_at: float | None) -> list[ImportedSession]:
        problems: list[str] = []
        transcript = read_transcript(list(self._events(session_id, problems)))
        return segment_sessions(
            transcript.segments,
            f"openclaw:{self._agent}:{session_id}",
            started_at if started_at is not None else transcript.started_at or 0.0,
            {"openclaw_session_id": session_id},
            (*problems, *transcript.problems),
        )

    def _events(self, session_id: str, problems: list[str]) -> Iterator[Item]:
        zstd_column = "event_zstd" if self._has_zstd else "null"
        for plain, compressed in self._connection.execute(
            f"select event_json, {zstd_column} from {EVENTS} where session_id = ? order by seq",
            (session_id,),
        ):
            raw: Any = plain if plain is not None else decompress(compressed)
            try:
                event = json.loads(raw)
            except (ValueError, TypeError, RecursionError):
                problems.append("an event is not valid JSON")
                continue
            if isinstance(event, dict):
                yield event


def decompress(compressed: bytes) -> bytes:
    """Decompress Zstandard data."""
    try:
        import zstandard
    except ModuleNotFoundError as exc:
        raise UnreadableSource(
            "this database has compressed events; pip install 'holdfast[zstd]' to read them"
        ) from exc
    try:
        data: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(compressed)
    except zstandard.ZstdError as exc:
        raise UnreadableSource(f"a compressed event cannot be decompressed: {exc}") from exc
    return data
