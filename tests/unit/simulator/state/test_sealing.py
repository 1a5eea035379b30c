"""Encrypted blobs are readable only for their owner."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.simulator.state.sealing import Owner, read_signature, seal, sign, unseal

MINE = Owner("sk-a", "gpt-5.4")
OTHERS = [Owner("sk-b", "gpt-5.4"), Owner("sk-a", "gpt-5.5"), Owner("", "")]


@given(st.text())
def test_a_blob_is_readable_only_for_its_owner(text: str) -> None:
    blob = seal(MINE, text)
    assert unseal(MINE, blob) == text
    assert [unseal(other, blob) for other in OTHERS] == [None, None, None]


@given(st.one_of(st.none(), st.integers(), st.text(), st.text().map(lambda t: "gAAAAAB" + t)))
def test_other_values_are_not_readable(blob: object) -> None:
    assert unseal(MINE, blob) is None
    assert read_signature(MINE, blob, "text") == "foreign"


@given(st.text(), st.text())
def test_a_signature_identifies_its_owner_and_detects_changes(a: str, b: str) -> None:
    signature = sign(MINE, a)
    assert read_signature(MINE, signature, a) == "genuine"
    assert read_signature(MINE, signature, b) == ("genuine" if a == b else "altered")
    assert {read_signature(other, signature, a) for other in OTHERS} == {"foreign"}
