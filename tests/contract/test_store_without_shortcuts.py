"""The store contract with its optimisations off: no decision from a cached lane, no cached context.

Both databases plan commands by the same code, so one of them is enough.
"""

import pytest

from holdfast.stores.sql.optimistic.plain_turns import PLANNERS
from holdfast.stores.sql.store import SqlStore
from tests.contract.test_store import *  # noqa: F403 - every class of the contract runs again here


@pytest.fixture
def store_url() -> str:
    """The URL of a store without a file."""
    return "memory:"


@pytest.fixture(autouse=True)
def no_shortcuts(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read everything that a decision or a context needs."""
    for command in tuple(PLANNERS):
        monkeypatch.delitem(PLANNERS, command)
    store.limit_cache(0)
