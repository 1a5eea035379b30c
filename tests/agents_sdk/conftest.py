"""Stores of each kind, and a session in each; the SDK sends no traces anywhere."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents import set_tracing_disabled

from holdfast.agents_sdk import HoldfastSession

set_tracing_disabled(True)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of each kind; one in memory is each session's own."""
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
