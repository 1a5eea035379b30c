"""The hash of a request's items is the same, however they are read."""

import pytest

from holdfast.core.model.request import JOINED_BYTES, hash_items


@pytest.mark.parametrize("size", [1, JOINED_BYTES])
def test_items_hash_the_same_one_by_one_and_together(size: int) -> None:
    bodies = [b"a" * size, b"b", b"c" * size]
    hasher = None
    for body in bodies:
        hasher = hash_items([body], hasher)
    assert hasher is not None
    assert hash_items(bodies).digest() == hasher.digest()
