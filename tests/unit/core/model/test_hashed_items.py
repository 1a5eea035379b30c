"""The digest of a request's items can be continued from any of them."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model.request import DIGEST_BYTES, hash_items

bodies = st.lists(st.binary(max_size=300), min_size=1, max_size=6)


@given(bodies=bodies, cut=st.integers(0, 6))
def test_items_have_one_digest_however_they_come(bodies: list[bytes], cut: int) -> None:
    whole = hash_items(bodies)
    assert hash_items(bodies[cut:], hash_items(bodies[:cut])) == whole
    assert len(whole) == DIGEST_BYTES


@given(one=bodies, other=bodies)
def test_other_items_have_another_digest(one: list[bytes], other: list[bytes]) -> None:
    assert (hash_items(one) == hash_items(other)) == (one == other)
