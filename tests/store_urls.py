"""The stores that tests run on: SQLite, PostgreSQL, and memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import Databases, PostgresServer


def sqlite_url(folder: Path) -> str:
    """Return the URL of a database file in a folder."""
    return f"sqlite:///{folder / 'holdfast.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store on each database."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def any_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of each kind."""
    urls = {"memory": "memory:", "sqlite": sqlite_url(tmp_path)}
    return urls.get(request.param) or str(request.getfixturevalue("postgres_url"))


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def lasting_store_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A store for all tests of a module, on each database."""
    if request.param == "sqlite":
        yield sqlite_url(tmp_path_factory.mktemp("store"))
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    databases: Databases = request.getfixturevalue("databases")
    name = databases.take()
    try:
        yield server.url(name)
    finally:
        databases.give_back(name)
