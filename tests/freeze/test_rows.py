"""Rows and outcomes are as recorded, on both databases and however the commands are played."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.freeze.recording import check, memory_folder, read_expected
from tests.freeze.rows import (
    WAYS,
    Step,
    Stores,
    chapters,
    may_share_commits,
    play_chapter,
    read_chapter,
    without_places,
)
from tests.freeze.store_adapter import (
    OUTCOMES_OF_VERBS,
    PostgresStores,
    SqliteStores,
    all_commands,
    verb_of,
)
from tests.freeze.values import line, read_lines


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    """Empty stores of each database, one for each sequence."""
    if request.param == "postgres":
        yield PostgresStores(str(request.getfixturevalue("postgres_url")))
        return
    with memory_folder() as folder:
        yield SqliteStores(folder)


@pytest.mark.parametrize("chapter", chapters())
def test_rows_and_outcomes_are_as_recorded(chapter: str, stores: Stores) -> None:
    seen, shared = asyncio.run(play_chapter(chapter, stores))
    for way in WAYS:
        is_loose = way == "together" or isinstance(stores, PostgresStores)
        told = without_places if is_loose else list
        check("rows", chapter, seen[way], way, told)
    assert shared or not may_share_commits(chapter), "no commit was shared"


def _steps() -> list[Step]:
    return [step for chapter in chapters() for each in read_chapter(chapter) for step in each.steps]


def test_every_command_occurs() -> None:
    played = {verb_of(step) for step in _steps()}
    assert all_commands() - played == set()


def test_every_outcome_of_every_command_occurs_and_no_other() -> None:
    seen: dict[str, set[str]] = {}
    for chapter in chapters():
        for told in read_lines("\n".join(read_expected("rows", chapter))):
            ((verb, outcome),) = told.items()
            if verb != "sequence" and not verb.startswith("row of "):
                seen.setdefault(verb, set()).add(_kind(outcome))
    assert {verb: sorted(kinds) for verb, kinds in seen.items()} == {
        verb: sorted(kinds) for verb, kinds in OUTCOMES_OF_VERBS.items()
    }


def _kind(outcome: object) -> str:
    """Return what kind of outcome it is: of a refusal its code, of a value its name."""
    if not isinstance(outcome, dict):
        return "a number" if type(outcome) in (int, float) else line(outcome)
    if "refused" in outcome:
        return f"refused: {outcome['refused']}"
    return str(next(iter(outcome)))
