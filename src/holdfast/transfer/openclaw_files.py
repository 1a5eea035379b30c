"""OpenClaw's folder of sessions: `sessions.json`, and a `*.jsonl` transcript for each session."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.transfer.conversation import Item, PastLife, PastSession, Unread, seconds
from holdfast.transfer.openclaw_events import Transcript, read_transcript

INDEX = "sessions.json"
_TRANSCRIPT = re.compile(r"^(?P<id>.+?)\.jsonl(?:\.(?P<fate>reset|deleted)\.(?P<when>[^/]+))?$")
_AS_THEY_ARE = frozenset({"global", "unknown"})


def canonical_key(agent: str, key: str) -> str:
    """Return a key as OpenClaw's clients are known by here: `agent:<agent>:<key>`."""
    if key.startswith("agent:") or key in _AS_THEY_ARE:
        return key
    return f"agent:{agent}:{key}"


def recovered_key(agent: str, session_id: str) -> str:
    """Return the key of a transcript that no index names."""
    return f"agent:{agent}:recovered:{session_id}"


@dataclass(frozen=True, slots=True)
class _Found:
    """A session of the index, or a file that none names."""

    key: str
    session_id: str
    source: str
    began_at: float
    transcript: Transcript | None
    problems: tuple[str, ...] = ()
    updated_at: float = 0.0
    """Only to put it in order where nothing says when it began: it changes, ids do not."""


def read_folder(
    folder: Path, agent: str, known: frozenset[str] = frozenset()
) -> list[PastLife | Unread]:
    """Return the lives in a folder of sessions, but those of sessions that are `known` already.

    Where the index cannot be read, its transcripts are recovered as those that none names; they
    get other ids, so that the sessions find their keys when the index is mended.
    """
    index, problem = _read_index(folder / INDEX)
    unread = [Unread(problem)] if problem is not None else []
    found: dict[str, list[_Found]] = {}
    seen: set[Path] = set()
    for raw, entry in index.items():
        one = _of_entry(folder, agent, raw, entry, seen)
        same = found.setdefault(one.key, [])
        # One conversation may be listed under its raw and under its canonical key.
        if one.session_id not in known and all(one.session_id != s.session_id for s in same):
            same.append(one)
    owners = {one.session_id: key for key, line in found.items() for one in line}
    for one in _of_strays(folder, agent, owners, seen, mark="#recovered" if unread else ""):
        if one.session_id not in known:
            found.setdefault(one.key, []).append(one)
    return [*unread, *(_life(key, line) for key, line in found.items() if line)]


def _read_index(path: Path) -> tuple[dict[str, Item], str | None]:
    """Return the entries of an index, and what is wrong with it."""
    if not path.exists():
        return {}, None
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as exc:
        return {}, f"{path} is not JSON: {exc}"
    except OSError as exc:
        return {}, f"{path} cannot be read: {exc.strerror}"
    if not isinstance(value, dict):
        return {}, f"{path} is not an index of sessions"
    entries = {key: entry for key, entry in value.items() if isinstance(entry, dict)}
    lost = len(value) - len(entries)
    return entries, f"{lost} entries of {path} could not be read" if lost else None


def _of_entry(folder: Path, agent: str, raw: str, entry: Item, seen: set[Path]) -> _Found:
    session_id = str(entry.get("sessionId") or raw)
    path = _transcript_path(folder, session_id, entry.get("sessionFile"))
    transcript: Transcript | None = None
    problems: tuple[str, ...] = ("its transcript is missing",)
    if path is not None:
        seen.add(path)
        transcript, problems = read_file(path)
    began = seconds(entry.get("sessionStartedAt"))
    if began is None and transcript is not None:
        began = transcript.began_at
    return _Found(
        canonical_key(agent, raw),
        session_id,
        f"openclaw:{agent}:{session_id}",
        began or 0.0,
        transcript,
        problems,
        seconds(entry.get("updatedAt")) or 0.0,
    )


def _transcript_path(folder: Path, session_id: str, named: Any) -> Path | None:
    """Return a session's file: beside the index, whatever absolute path it was written under."""
    for name in (Path(named).name if isinstance(named, str) else "", f"{session_id}.jsonl"):
        if name and "/" not in name and (folder / name).is_file():
            return folder / name
    return None


def _of_strays(
    folder: Path, agent: str, owners: dict[str, str], seen: set[Path], *, mark: str
) -> Iterator[_Found]:
    """Return files that no index names: forked, orphaned, or put away by a reset."""
    for path in sorted(folder.iterdir()):
        match = _TRANSCRIPT.match(path.name)
        if path in seen or match is None or not path.is_file() or ".trajectory" in path.name:
            continue
        if match["fate"] == "deleted":
            # It was deleted there, and is not brought back here.
            continue
        session_id, fate = match["id"], match["fate"]
        transcript, problems = read_file(path)
        source = f"openclaw:{agent}:{session_id}{mark}"
        source += f"#reset.{match['when']}" if fate else ""
        name = session_id if fate is None else f"{session_id}#reset.{match['when']}"
        key = owners.get(session_id) if fate else None
        yield _Found(
            key or recovered_key(agent, session_id),
            name,
            source,
            transcript.began_at or 0.0,
            transcript,
            problems,
        )


def read_file(path: Path) -> tuple[Transcript, tuple[str, ...]]:
    """Return a transcript; lines that are torn are counted, and the rest is read."""
    events: list[Item] = []
    torn = 0
    with path.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                torn += 1
                continue
            if isinstance(event, dict):
                events.append(event)
    transcript = read_transcript(events)
    problems = list(transcript.problems)
    if torn:
        problems.insert(0, f"{torn} line(s) of {path.name} could not be read")
    return transcript, tuple(problems)


def _life(key: str, line: list[_Found]) -> PastLife:
    """Return a key's generations by when they began: the one that began last is live."""
    line = sorted(line, key=lambda one: one.began_at or one.updated_at)
    generations = [past for one in line for past in _generations(one)]
    return PastLife(key=key, generations=tuple(generations))


def _generations(one: _Found) -> list[PastSession]:
    segments = one.transcript.segments if one.transcript else []
    return segment_sessions(
        segments, one.source, one.began_at, {"openclaw_session_id": one.session_id}, one.problems
    )


def segment_sessions(
    segments: list[Any],
    source: str,
    began_at: float,
    metadata: dict[str, str],
    problems: tuple[str, ...],
) -> list[PastSession]:
    """Return a session's segments as generations; one without any is an empty session."""
    found: list[PastSession] = []
    for number, segment in enumerate(segments or [None]):
        turns, hidden = segment.gathered() if segment is not None else ((), ())
        began = segment.began_at if segment is not None else None
        found.append(
            PastSession(
                source=source if number == 0 else f"{source}#{number}",
                turns=turns,
                hidden=hidden,
                created_at=began if began is not None else began_at,
                metadata=metadata,
                problems=problems if number == 0 else (),
            )
        )
    return found
