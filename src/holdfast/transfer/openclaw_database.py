"""OpenClaw's newer database: nodes, windows and transcript events of one agent."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.transfer.conversation import Item, PastLife, PastSession, UnreadableSource, seconds
from holdfast.transfer.openclaw_events import read_transcript
from holdfast.transfer.openclaw_files import canonical_key, recovered_key, segment_sessions
from holdfast.transfer.sqlite_source import columns_of, open_read_only

EVENTS = "transcript_events"
NODES = "session_nodes"
WINDOWS = "session_windows"


def read_database(path: Path, agent: str) -> Iterator[PastLife]:
    """Return the lives in an agent's database."""
    connection = open_read_only(path)
    try:
        yield from _Database(connection, agent).lives()
    except sqlite3.DatabaseError as exc:
        raise UnreadableSource(f"{path} cannot be read: {exc}") from exc
    finally:
        connection.close()


class _Database:
    def __init__(self, connection: sqlite3.Connection, agent: str) -> None:
        self._connection = connection
        self._agent = agent
        self._has_zstd = "event_zstd" in columns_of(connection, EVENTS)

    def lives(self) -> Iterator[PastLife]:
        current = {
            str(key): str(session_id)
            for key, session_id in self._connection.execute(
                f"select session_key, current_session_id from {NODES} order by session_key"
            )
            if session_id
        }
        windows = self._windows()
        seen: set[str] = set()
        for key, live_id in current.items():
            line = [one for one in windows.get(key, []) if one[0] != live_id]
            line.append((live_id, self._began(windows, key, live_id)))
            seen.update(session_id for session_id, _ in line)
            yield self._life(canonical_key(self._agent, key), line)
        for session_id in self._sessions_with_events():
            if session_id not in seen:
                key = recovered_key(self._agent, session_id)
                yield self._life(key, [(session_id, None)])

    def _windows(self) -> dict[str, list[tuple[str, float | None]]]:
        """Return what each key has been, the oldest first."""
        if not columns_of(self._connection, WINDOWS):
            return {}
        found: dict[str, list[tuple[str, float | None]]] = {}
        for key, session_id, began in self._connection.execute(
            f"select session_key, session_id, started_at from {WINDOWS} order by started_at, rowid"
        ):
            found.setdefault(str(key), []).append((str(session_id), seconds(began)))
        return found

    @staticmethod
    def _began(
        windows: dict[str, list[tuple[str, float | None]]], key: str, session_id: str
    ) -> float | None:
        return next((began for one, began in windows.get(key, []) if one == session_id), None)

    def _sessions_with_events(self) -> list[str]:
        rows = self._connection.execute(
            f"select distinct session_id from {EVENTS} order by session_id"
        )
        return [str(row[0]) for row in rows]

    def _life(self, key: str, line: list[tuple[str, float | None]]) -> PastLife:
        generations = [past for session_id, began in line for past in self._read(session_id, began)]
        return PastLife(key=key, generations=tuple(generations))

    def _read(self, session_id: str, began: float | None) -> list[PastSession]:
        problems: list[str] = []
        transcript = read_transcript(list(self._events(session_id, problems)))
        return segment_sessions(
            transcript.segments,
            f"openclaw:{self._agent}:{session_id}",
            began if began is not None else transcript.began_at or 0.0,
            {"openclaw_session_id": session_id},
            (*problems, *transcript.problems),
        )

    def _events(self, session_id: str, problems: list[str]) -> Iterator[Item]:
        packed = "event_zstd" if self._has_zstd else "null"
        for plain, zstd in self._connection.execute(
            f"select event_json, {packed} from {EVENTS} where session_id = ? order by seq",
            (session_id,),
        ):
            raw: Any = plain if plain is not None else unpack(zstd)
            try:
                event = json.loads(raw)
            except (ValueError, TypeError, RecursionError):
                problems.append("an event could not be read")
                continue
            if isinstance(event, dict):
                yield event


def unpack(packed: bytes) -> bytes:
    """Return what was compressed with Zstandard."""
    try:
        import zstandard
    except ModuleNotFoundError as exc:
        raise UnreadableSource(
            "this database holds compressed events; pip install 'holdfast[zstd]' to read them"
        ) from exc
    try:
        data: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    except zstandard.ZstdError as exc:
        raise UnreadableSource(f"a compressed event cannot be read: {exc}") from exc
    return data
