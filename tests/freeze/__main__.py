"""`python -m tests.freeze record [PART ...]`: record what the code of this checkout does.

Parts are named as their files: `rows/once`, `door/chat`. Without a name, only what is not recorded
yet is written, and what differs is listed; what is named is replaced.
"""

import asyncio
import sys

from tests.freeze.door import parts, see_part
from tests.freeze.recording import memory_folder, record
from tests.freeze.rows import chapters, recorded_chapter
from tests.freeze.store_adapter import SqliteStores


def say(text: str | None) -> None:
    """Write a line to the terminal."""
    sys.stdout.write(f"{text}\n")


def see_rows(chapter: str) -> list[str]:
    """Return what is to be seen of a chapter of sequences, on SQLite, one command at a time."""
    with memory_folder() as folder:
        return asyncio.run(recorded_chapter(chapter, SqliteStores(folder)))


def main(arguments: list[str]) -> int:
    """Record the parts that are missing or named; return 1 if another one differs."""
    if not arguments or arguments[0] != "record":
        say(__doc__)
        return 2
    named = set(arguments[1:])
    known = {*(f"rows/{name}" for name in chapters()), *(f"door/{name}" for name in parts())}
    if not named <= known:
        say(f"unknown: {' '.join(sorted(named - known))}; known are {' '.join(sorted(known))}")
        return 2
    has_others = False
    for part in sorted(known):
        gate, name = part.split("/")
        seen = see_rows(name) if gate == "rows" else asyncio.run(see_part(name))
        result = record(gate, name, seen, may_replace=part in named)
        has_others |= result.startswith("DIFFERS")
        say(f"{part}: {result}")
    return int(has_others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
