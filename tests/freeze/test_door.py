"""What clients get and what the upstream gets is as recorded, byte for byte."""

import asyncio
from pathlib import Path

import pytest

from tests.freeze.door import parts, see_part
from tests.freeze.recording import EXPECTED, check, record
from tests.freeze.rows import chapters


@pytest.mark.parametrize("part", parts())
def test_answers_and_upstream_requests_are_as_recorded(part: str) -> None:
    check("door", part, asyncio.run(see_part(part)))


def test_every_recording_belongs_to_a_part_that_is_checked() -> None:
    for gate, names in (("rows", chapters()), ("door", parts())):
        assert sorted(path.stem for path in (EXPECTED / gate).iterdir()) == names


def test_a_recording_is_replaced_only_if_it_is_named(tmp_path: Path) -> None:
    def told(seen: str, *, is_named: bool) -> str:
        return record("gate", "part", [seen], may_replace=is_named, folder=tmp_path)

    assert told("one", is_named=False) == "recorded"
    assert told("one", is_named=False) == "unchanged"
    assert told("two", is_named=False).startswith("DIFFERS")
    assert (tmp_path / "gate" / "part.ndjson").read_text() == "one\n"
    assert told("two", is_named=True) == "recorded"
    assert (tmp_path / "gate" / "part.ndjson").read_text() == "two\n"
