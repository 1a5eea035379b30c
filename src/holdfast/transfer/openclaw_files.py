"""Reader of OpenClaw's session folder: `sessions.json` and one `*.jsonl` transcript per session."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.transfer.imported_conversation import (
    ImportedConversation,
    ImportedSession,
    Item,
    UnreadSource,
    seconds,
)
from holdfast.transfer.openclaw_events import OpenClawTranscript, read_transcript
from holdfast.transfer.source_files import lines_of, whole_of

INDEX = "sessions.json"
_TRANSCRIPT = re.compile(r"^(?P<id>.+?)\.jsonl(?:\.(?P<fate>reset|deleted)\.(?P<when>[^/]+))?$")
_UNPREFIXED_KEYS = frozenset({"global", "unknown"})


def canonical_key(agent: str, key: str) -> str:
    """Return the key that OpenClaw's clients send: `agent:<agent>:<key>`."""
    if key.startswith("agent:") or key in _UNPREFIXED_KEYS:
        return key
    return f"agent:{agent}:{key}"


def recovered_key(agent: str, session_id: str) -> str:
    """Return the key of a transcript that no index lists."""
    return f"agent:{agent}:recovered:{session_id}"


@dataclass(frozen=True, slots=True)
class _FoundSession:
    """A session of the index, or a transcript that no index lists."""

    key: str
    session_id: str
    source: str
    started_at: float
    transcript: OpenClawTranscript | None
    problems: tuple[str, ...] = ()
    updated_at: float = 0.0
    """Used for ordering only, if the start time is unknown; it changes, so ids do not use it."""


def read_folder(
    folder: Path, agent: str, known: frozenset[str] = frozenset()
) -> list[ImportedConversation | UnreadSource]:
    """Return the conversations of a session folder, except sessions that are `known` already.

    If the index cannot be read, its transcripts are recovered like unlisted ones. They get other
    ids, so that a later import with a repaired index assigns the sessions to their keys.
    """
    index, problem = _read_index(folder / INDEX)
    unread = [UnreadSource(problem)] if problem is not None else []
    by_key: dict[str, list[_FoundSession]] = {}
    seen: set[Path] = set()
    for raw_key, entry in index.items():
        session = _indexed_session(folder, agent, raw_key, entry, seen)
        siblings = by_key.setdefault(session.key, [])
        # One conversation may be listed under its raw and under its canonical key.
        is_listed = any(session.session_id == sibling.session_id for sibling in siblings)
        if session.session_id not in known and not is_listed:
            siblings.append(session)
    owners = {session.session_id: key for key, sessions in by_key.items() for session in sessions}
    suffix = "#recovered" if unread else ""
    for session in _unlisted_sessions(folder, agent, owners, seen, suffix=suffix):
        if session.session_id not in known:
            by_key.setdefault(session.key, []).append(session)
    conversations = (_conversation(key, sessions) for key, sessions in by_key.items() if sessions)
    return [*unread, *conversations]


def _read_index(path: Path) -> tuple[dict[str, Item], str | None]:
    """Return the entries of an index, and its problem if it has one."""
    if not path.exists():
        return {}, None
    if not path.is_file():
        return {}, f"{path} is not a file"
    try:
        value = json.loads(whole_of(path))
    except (ValueError, RecursionError) as exc:
        return {}, f"{path} is not JSON: {exc}"
    except OSError as exc:
        return {}, f"{path} cannot be read: {exc.strerror}"
    if not isinstance(value, dict):
        return {}, f"{path} is not an index of sessions"
    entries = {key: entry for key, entry in value.items() if isinstance(entry, dict)}
    invalid = len(value) - len(entries)
    return entries, f"{invalid} entries of {path} could not be read" if invalid else None


def _indexed_session(
    folder: Path, agent: str, raw_key: str, entry: Item, seen: set[Path]
) -> _FoundSession:
    session_id = str(entry.get("sessionId") or raw_key)
    path = _transcript_path(folder, session_id, entry.get("sessionFile"))
    transcript: OpenClawTranscript | None = None
    problems: tuple[str, ...] = ("its transcript is missing",)
    if path is not None:
        seen.add(path)
        transcript, problems = read_file(path)
    started_at = seconds(entry.get("sessionStartedAt"))
    if started_at is None and transcript is not None:
        started_at = transcript.started_at
    return _FoundSession(
        canonical_key(agent, raw_key),
        session_id,
        f"openclaw:{agent}:{session_id}",
        started_at or 0.0,
        transcript,
        problems,
        seconds(entry.get("updatedAt")) or 0.0,
    )


def _transcript_path(folder: Path, session_id: str, file_name: Any) -> Path | None:
    """Return a session's file next to the index, ignoring the directory in the index."""
    indexed_name = Path(file_name).name if isinstance(file_name, str) else ""
    for name in (indexed_name, f"{session_id}.jsonl"):
        if name and "/" not in name and (folder / name).is_file():
            return folder / name
    return None


def _unlisted_sessions(
    folder: Path, agent: str, owners: dict[str, str], seen: set[Path], *, suffix: str
) -> Iterator[_FoundSession]:
    """Yield transcripts that no index lists: forked, orphaned, or archived by a reset."""
    for path in sorted(folder.iterdir()):
        match = _TRANSCRIPT.match(path.name)
        if path in seen or match is None or not path.is_file() or ".trajectory" in path.name:
            continue
        if match["fate"] == "deleted":
            continue  # deleted at the source: do not restore it
        session_id, fate = match["id"], match["fate"]
        transcript, problems = read_file(path)
        source = f"openclaw:{agent}:{session_id}{suffix}"
        source += f"#reset.{match['when']}" if fate else ""
        name = session_id if fate is None else f"{session_id}#reset.{match['when']}"
        key = owners.get(session_id) if fate else None
        yield _FoundSession(
            key or recovered_key(agent, session_id),
            name,
            source,
            transcript.started_at or 0.0,
            transcript,
            problems,
        )


def read_file(path: Path) -> tuple[OpenClawTranscript, tuple[str, ...]]:
    """Return a transcript and its problems; invalid lines are counted and skipped."""
    events: list[Item] = []
    bad_lines = 0
    for line in lines_of(path):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            bad_lines += 1
            continue
        if isinstance(event, dict):
            events.append(event)
    transcript = read_transcript(events)
    problems = list(transcript.problems)
    if bad_lines:
        problems.insert(0, f"{bad_lines} line(s) of {path.name} could not be read")
    return transcript, tuple(problems)


def _conversation(key: str, sessions: list[_FoundSession]) -> ImportedConversation:
    """Return a key's generations by start time; the one that started last is live."""
    ordered = sorted(sessions, key=lambda session: session.started_at or session.updated_at)
    generations = [generation for session in ordered for generation in _generations(session)]
    return ImportedConversation(key=key, generations=tuple(generations))


def _generations(session: _FoundSession) -> list[ImportedSession]:
    segments = session.transcript.segments if session.transcript else []
    metadata = {"openclaw_session_id": session.session_id}
    return segment_sessions(
        segments, session.source, session.started_at, metadata, session.problems
    )


def segment_sessions(
    segments: list[Any],
    source: str,
    started_at: float,
    metadata: dict[str, str],
    problems: tuple[str, ...],
) -> list[ImportedSession]:
    """Return a session's segments as generations; no segment gives one empty generation."""
    generations: list[ImportedSession] = []
    for number, segment in enumerate(segments or [None]):
        turns, hidden = segment.to_turns() if segment is not None else ((), ())
        segment_start = segment.started_at if segment is not None else None
        generations.append(
            ImportedSession(
                source=source if number == 0 else f"{source}#{number}",
                turns=turns,
                hidden=hidden,
                created_at=segment_start if segment_start is not None else started_at,
                metadata=metadata,
                problems=problems if number == 0 else (),
            )
        )
    return generations
