"""Pagination."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.simulator.apis.pages import page
from holdfast.simulator.delivery.errors import Problem


@given(st.integers(0, 50), st.integers(1, 100), st.sampled_from(["asc", "desc"]))
def test_following_the_cursor_gives_every_item_once(count: int, limit: int, order: str) -> None:
    items = [{"id": f"i{number}"} for number in range(count)]
    found: list[dict[str, str]] = []
    query = {"limit": str(limit), "order": order}
    while True:
        got = page(items, query)
        found += got["data"]
        assert len(got["data"]) <= limit
        if not got["has_more"]:
            break
        query["after"] = got["last_id"]
    assert found == (items if order == "asc" else items[::-1])


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"order": "up"}, {"after": "none"}]
)
def test_an_invalid_page_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(Problem):
        page([{"id": "i"}], query)


def test_an_empty_page_has_no_cursors() -> None:
    got = page([], {})
    assert (got["first_id"], got["last_id"], got["has_more"]) == (None, None, False)
