"""A URL with several hosts: one that hangs, or is gone, keeps nobody from the primary."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.stores.postgres import open_postgres
from holdfast.testing.store_client import StoreClient

FOREVER = 3600
"""Seconds for a connection: longer than the test may take."""


@pytest.fixture
def silent_host(tmp_path: Path) -> Iterator[str]:
    """A host that accepts connections and never says a word, as a frozen server does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / ".s.PGSQL.5432"))
        server.listen()
        yield str(tmp_path)


def _with_hosts(url: str, *hosts: str, more: str = "") -> str:
    """Return a URL with other hosts before its own."""
    before, own = url.split("?host=")
    return f"{before}?host={','.join([*hosts, own])}{more}"


async def test_a_host_that_hangs_does_not_keep_a_process_from_the_next_one(
    postgres_url: str, silent_host: str
) -> None:
    url = _with_hosts(postgres_url, silent_host, more=f"&connect_timeout={FOREVER}")
    store = await open_postgres(url)
    try:
        caller = StoreClient(store)
        await caller.enlist()
        session = await caller.reserve("key")
        assert (await caller.session(session)).key == "key"
    finally:
        await store.close()


async def test_a_host_that_is_gone_does_not_either(postgres_url: str, tmp_path: Path) -> None:
    await (await open_postgres(_with_hosts(postgres_url, str(tmp_path)))).close()


async def test_the_server_that_the_url_asks_for_is_the_one(
    postgres_url: str, silent_host: str
) -> None:
    await (await open_postgres(f"{postgres_url}&target_session_attrs=primary")).close()
    standby = _with_hosts(postgres_url, more="&target_session_attrs=standby")
    with pytest.raises(StoreUnavailable, match="target attribute"):
        await open_postgres(standby)
    both = _with_hosts(postgres_url, silent_host, more="&target_session_attrs=standby")
    with pytest.raises(StoreUnavailable, match="TimeoutError"):
        await open_postgres(f"{both}&connect_timeout=0.5")


async def test_a_name_that_no_host_takes_is_refused_for_good(
    postgres_url: str, tmp_path: Path
) -> None:
    unknown = _with_hosts(postgres_url, str(tmp_path)).replace("/test_", "/no_such_")
    with pytest.raises(StoreError, match="does not exist") as refused:
        await open_postgres(unknown)
    assert not refused.value.retryable
