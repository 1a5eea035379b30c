"""The catalogue of faults, and its completeness in the reference."""

from pathlib import Path

import pytest

from holdfast.simulator.faults.catalogue import CATALOGUE
from holdfast.simulator.faults.effects import Effect, read_fault
from holdfast.simulator.faults.matching import Match
from holdfast.simulator.server.control import CONTROL_PREFIX
from holdfast.simulator.state.profiles import PROFILES
from holdfast.simulator.state.scenario import BarrierSpec, ForgetSettings, Scenario, Script

ROOT = Path(__file__).parents[4]
REFERENCE = (ROOT / "docs" / "reference" / "simulator.md").read_text()
KINDS = [kind for kind in Effect.__args__ if kind.__struct_config__.tag != "listed"]


def test_the_catalogue_has_thirty_seven_faults() -> None:
    counts: dict[str, int] = {}
    for number in CATALOGUE:
        counts[number[0]] = counts.get(number[0], 0) + 1
    assert counts == {"R": 17, "C": 7, "A": 10, "G": 2, "L": 1}


@pytest.mark.parametrize("listed", CATALOGUE.values(), ids=lambda listed: listed.id)
def test_the_reference_has_each_fault_and_its_source(listed: object) -> None:
    number, source = getattr(listed, "id", ""), getattr(listed, "source", "")
    row = next(line for line in REFERENCE.splitlines() if line.startswith(f"| {number} |"))
    for each in source.split(", "):
        assert each in row


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__struct_config__.tag))
def test_the_reference_has_each_kind_and_its_parameters(kind: type) -> None:
    tag = kind.__struct_config__.tag  # type: ignore[attr-defined]  # every fault is a Struct
    kinds = REFERENCE.split("| kind | parameters |")[1]
    row = next(line for line in kinds.splitlines() if line.startswith(f"| `{tag}` |"))
    own = set(kind.__struct_fields__) - {"when", "times", "chance"}  # type: ignore[attr-defined]  # as above
    assert all(f"`{name}`" in row for name in own)


@pytest.mark.parametrize("struct", [Scenario, Script, BarrierSpec, ForgetSettings, Match])
def test_the_reference_has_each_field(struct: type) -> None:
    fields = struct.__struct_encode_fields__  # type: ignore[attr-defined]  # all are Structs
    assert [name for name in fields if f"`{name}`" not in REFERENCE] == []


def test_the_reference_has_each_profile_and_the_control_api() -> None:
    assert all(f"`{name}`" in REFERENCE for name in PROFILES)
    assert CONTROL_PREFIX in REFERENCE


@pytest.mark.parametrize("number", CATALOGUE)
def test_every_catalogue_id_is_a_kind(number: str) -> None:
    assert read_fault(number) == read_fault({"kind": number})
