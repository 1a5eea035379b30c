"""The names of items: minted where a body brings none, shown where it has none."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model.item_ids import (
    mint_name,
    name_at,
    owner_of,
    place_in,
    shown,
    split_name,
    with_place,
)
from holdfast.core.model.items import read_item
from tests.unit.core.builders import stored


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        ("message", "msg_"), ("reasoning", "rs_"), ("function_call", "fc_"),
        ("function_call_output", "fco_"), ("compaction", "cmp_"), ("acme:odd", "item_"),
    ],
)  # fmt: skip
def test_a_minted_id_tells_what_it_names(kind: str, prefix: str) -> None:
    assert mint_name(kind, "ses_1", 1, 1.0).startswith(prefix)


def test_minted_ids_differ_by_place() -> None:
    minted = {mint_name("message", session, seq, 1.0) for session in "ab" for seq in range(50)}
    assert len(minted) == 100


@pytest.mark.parametrize("seq", [1, 15, 16, 0xFFFFFF])
def test_an_id_of_ours_tells_the_place_of_its_item(seq: int) -> None:
    random = "msg_" + "7" * 31
    for item_id in (mint_name("message", "ses_1", seq, 1.0), with_place(random, seq)):
        assert place_in(item_id) == seq
        assert len(item_id) == len(random)


@pytest.mark.parametrize(
    ("item_id", "seq"),
    [("msg_000001", 2), ("msg_" + "7" * 31, 0), ("msg_" + "7" * 31, 0x1000000)],
)
def test_an_id_stays_as_it_is_where_the_place_would_not_fit(item_id: str, seq: int) -> None:
    assert with_place(item_id, seq) == item_id


@pytest.mark.parametrize("item_id", ["", "msg_1", "call", "rs_00000z"])
def test_an_id_that_ends_otherwise_tells_no_place(item_id: str) -> None:
    assert place_in(item_id) is None


def test_an_item_in_full_is_shown_as_its_own_bytes() -> None:
    body = b'{"id": "msg_1", "type":"message","role":"user", "status":"completed","content":[]}'
    assert shown(stored(1, read_item(body)), "msg_1") is body


def test_a_name_is_put_into_an_item_and_everything_else_stays() -> None:
    body = b'{"type":"acme:odd","n":1.50,"deep":{"a" : [ 1 ]}}'
    out = shown(stored(1, read_item(body)), "item_1")
    assert msgspec.json.decode(out) == {**msgspec.json.decode(body), "id": "item_1"}
    assert b'"n":1.50' in out
    assert b'{"a" : [ 1 ]}' in out


def test_a_partial_end_is_shown_as_incomplete() -> None:
    item = stored(1, read_item(b'{"role":"assistant","content":"wor"}'), is_partial=True)
    assert msgspec.json.decode(shown(item, "msg_1"))["status"] == "incomplete"


def test_the_first_visible_place_goes_by_the_shared_id() -> None:
    assert owner_of([2, 5, 9], []) == 2
    assert owner_of([2, 5, 9], [(1, 3)]) == 5
    assert owner_of([2, 5], [(1, 9)]) == 2
    assert owner_of([], []) is None


@given(st.text(), st.integers(1, 10**15 - 1))
def test_a_name_by_place_is_read_back(item_id: str, seq: int) -> None:
    assert split_name(name_at(item_id, seq)) == (item_id, seq)


@pytest.mark.parametrize("name", ["", "msg", "msg.", "msg.x", "msg.-1", "msg.²", "msg." + "1" * 16])
def test_what_is_no_name_by_place_is_not_read_as_one(name: str) -> None:
    assert split_name(name) is None
