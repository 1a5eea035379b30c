"""Stores of each kind, and a session in each; the SDK sends no traces."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from agents import set_tracing_disabled

from holdfast.agents_sdk import HoldfastSession
from tests.acceptance.gateway_process import running_gateway
from tests.store_urls import sqlite_url

set_tracing_disabled(True)
_numbers = itertools.count()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of each kind; in memory, each session has its own."""
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path / 'agent.db'}"}
    return urls.get(request.param) or str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["sqlite", "postgres"])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that several sessions can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'agent.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def session(store: str) -> AsyncIterator[HoldfastSession]:
    """A session in each kind of store."""
    async with HoldfastSession("agent:main:direct:michael", store) as session:
        yield session


@pytest.fixture
async def shared(shared_store: str) -> AsyncIterator[HoldfastSession]:
    """A session in a store that others can share."""
    async with HoldfastSession("agent:main:direct:michael", shared_store) as session:
        yield session


@pytest.fixture(scope="module")
def gateway_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a gateway, for all tests of a module."""
    with running_gateway(sqlite_url(tmp_path_factory.mktemp("gateway"))) as gateway:
        yield gateway.url


@pytest.fixture(params=["sqlite", "postgres", "gateway"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Where a session can be: in a store of this process, or on a gateway."""
    if request.param == "gateway":
        return {"url": str(request.getfixturevalue("gateway_url"))}
    if request.param == "sqlite":
        return {"store": f"sqlite:///{tmp_path / 'agent.db'}"}
    return {"store": str(request.getfixturevalue("postgres_url"))}


@pytest.fixture
async def located_session(location: dict[str, str]) -> AsyncIterator[HoldfastSession]:
    """A session in each location, under a key of its own."""
    async with HoldfastSession(f"agent:main:{next(_numbers)}", **location) as session:  # type: ignore[arg-type] # two names, two texts
        yield session
