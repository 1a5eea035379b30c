"""Play sequences on a store, and tell what each verb gave and which rows there are in the end.

A sequence is data: lines of JSON, one for its name and one for each step. It is played in several
ways, which must tell the same: one command after the other; by two processes that take turns, each
with its own cache; without caches; and with commands that share their commits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.freeze.store_adapter import ALONE, Known, PlayedStore, PostgresStores, SqliteStores
from tests.freeze.values import Data, line, read_lines

SEQUENCES = Path(__file__).parent / "sequences"
WAYS = ("singly", "in_turns", "uncached", "together")
TOGETHER = frozenset({"accept", "start", "extend", "finish", "append", "append batch", "cancel"})
BEGUN = ("turn_id", "run_id", "candidate_id")
Step = dict[str, Data]


@dataclass(frozen=True)
class PlayedSequence:
    """A named sequence of steps."""

    name: str
    steps: tuple[Step, ...]


def chapters() -> list[str]:
    """Return the names of the files of sequences."""
    return sorted(path.stem for path in SEQUENCES.glob("*.ndjson"))


def read_chapter(name: str) -> list[PlayedSequence]:
    """Return the sequences of a file."""
    found: list[tuple[str, list[Step]]] = []
    for each in read_lines((SEQUENCES / f"{name}.ndjson").read_text()):
        if "sequence" in each:
            found.append((each["sequence"], []))
        else:
            found[-1][1].append(each)
    return [PlayedSequence(title, tuple(steps)) for title, steps in found]


@dataclass(frozen=True)
class Played:
    """What was to be seen, as lines, and what later plays of the same sequence refer to."""

    lines: list[str]
    known: Known
    shared_commits: int


Stores = SqliteStores | PostgresStores


async def play(
    sequence: PlayedSequence, stores: Stores, way: str = "singly", known: Known | None = None
) -> Played:
    """Play a sequence on an empty store in one of the ways.

    Commands that share a commit cannot wait for each other's outcomes: what they refer to is
    `known` from an earlier play.
    """
    processes = 1 if way == "together" else 2
    async with stores.empty(processes, is_cached=way != "uncached") as played:
        if way == "together":
            played.known = known or played.known
            outcomes = await _play_together(sequence, played)
        else:
            outcomes = await _play_singly(sequence, played, way)
        lines = list(_told(sequence, outcomes, await played.rows()))
        return Played(lines, played.known, played.shared_commits)


async def play_chapter(name: str, stores: Stores) -> tuple[dict[str, list[str]], int]:
    """Return what is to be seen of a file in each way, and how many commits were shared."""
    seen: dict[str, list[str]] = {way: [] for way in WAYS}
    shared = 0
    try:
        for sequence in read_chapter(name):
            known: Known | None = None
            for way in WAYS:
                played = await play(sequence, stores, way, known)
                known = known or played.known
                seen[way] += played.lines
                shared += played.shared_commits if way == "together" else 0
    finally:
        await stores.close()
    return seen, shared


async def recorded_chapter(name: str, stores: Stores) -> list[str]:
    """Return what is to be seen of a file if its commands come one by one."""
    return [each for one in read_chapter(name) for each in (await play(one, stores)).lines]


async def _play_singly(sequence: PlayedSequence, played: PlayedStore, way: str) -> list[Data]:
    outcomes = []
    owners: dict[str, int] = {}
    for number, step in enumerate(sequence.steps):
        process = step.get("by", 0)
        if way == "in_turns" and step["do"] not in ALONE:
            # What a run writes comes from the process that started it.
            process = owners.get(step.get("run", ""), number)
        owners[_started_run(step)] = process
        outcomes.append(await played.play(step, process))
    return outcomes


def _started_run(step: Step) -> str:
    """Return the run that a step may start."""
    if step["do"] == "finish" and "successor" in step:
        return str(step["successor"]["run_id"])
    return str(step.get("run_id", ""))


async def _play_together(sequence: PlayedSequence, played: PlayedStore) -> list[Data]:
    """Submit at once what callers could have sent at once."""
    outcomes: list[Data] = []
    for steps in _batches(sequence.steps):
        if len(steps) == 1:
            outcomes.append(await played.play(steps[0], 0))
        else:
            outcomes += await played.play_together(steps)
    return outcomes


def may_share_commits(name: str) -> bool:
    """Whether commands of a chapter come together: the first of them is committed at once."""
    return any(len(batch) > 2 for each in read_chapter(name) for batch in _batches(each.steps))


def _batches(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield runs of commands about turns, none of which names what another one of it begins."""
    batch: list[Step] = []
    begun: set[str] = set()
    for step in steps:
        named = {each for each in step.values() if isinstance(each, str)}
        if batch and (step["do"] not in TOGETHER or named & begun):
            yield batch
            batch, begun = [], set()
        batch.append(step)
        begun |= {str(step[name]) for name in BEGUN if name in step} | {step.get("run", "-")}
        if step["do"] not in TOGETHER:
            yield batch
            batch, begun = [], set()
    if batch:
        yield batch


def without_places(lines: Sequence[str]) -> list[str]:
    """Return lines without the places of entries among those of other sessions.

    Commands that share a commit are decided in order within a session, but not between sessions.
    Nor does PostgreSQL promise an order between the sessions of one command.
    """
    kept: list[str] = []
    entries: list[Data] = []
    for each in lines:
        told = msgspec.json.decode(each)
        if "row of log" in told:
            entries.append(told)
            del told["row of log"]["pos"]
            continue
        entries.sort(key=lambda entry: (entry["row of log"]["session"], entry["row of log"]["n"]))
        kept += map(line, entries)
        kept.append(each)
        entries = []
    return kept + [line(entry) for entry in entries]


def _told(
    sequence: PlayedSequence, outcomes: Sequence[Data], rows: dict[str, list[dict[str, Data]]]
) -> Iterator[str]:
    yield line({"sequence": sequence.name})
    for step, outcome in zip(sequence.steps, outcomes, strict=True):
        if step["do"] not in ALONE or outcome is not None:
            yield line({step["do"]: outcome})
    for table, each in rows.items():
        for row in each:
            yield line({f"row of {table}": row})
