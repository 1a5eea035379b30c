"""Blobs open for their maker alone."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.simulator.state.sealing import Owner, read_signature, seal, sign, unseal

MINE = Owner("sk-a", "gpt-5.4")
OTHERS = [Owner("sk-b", "gpt-5.4"), Owner("sk-a", "gpt-5.5"), Owner("", "")]


@given(st.text())
def test_what_is_sealed_opens_for_its_owner_only(text: str) -> None:
    blob = seal(MINE, text)
    assert unseal(MINE, blob) == text
    assert [unseal(other, blob) for other in OTHERS] == [None, None, None]


@given(st.one_of(st.none(), st.integers(), st.text(), st.text().map(lambda t: "gAAAAAB" + t)))
def test_anything_else_does_not_open(blob: object) -> None:
    assert unseal(MINE, blob) is None
    assert read_signature(MINE, blob, "text") == "foreign"


@given(st.text(), st.text())
def test_a_signature_tells_whose_it_is_and_whether_the_text_is_whole(a: str, b: str) -> None:
    signature = sign(MINE, a)
    assert read_signature(MINE, signature, a) == "genuine"
    assert read_signature(MINE, signature, b) == ("genuine" if a == b else "altered")
    assert {read_signature(other, signature, a) for other in OTHERS} == {"foreign"}
