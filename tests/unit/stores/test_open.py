"""From a URL to a store, or to a clear refusal."""

from pathlib import Path

import pytest

from holdfast.core.errors import InvalidSetting, StoreUnavailable
from holdfast.stores.open import open_store, sqlite_path
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///agent.db", "agent.db"),
        ("sqlite:////var/lib/agent.db", "/var/lib/agent.db"),
        ("sqlite:///a%20b.db", "a b.db"),
        ("sqlite:///agent.db?timeout=5", "agent.db"),
    ],
)
def test_a_sqlite_url_names_its_file(url: str, path: str) -> None:
    assert sqlite_path(url) == Path(path)


@pytest.mark.parametrize(
    "url",
    [
        "", "agent.db", "sqlite:", "sqlite:agent.db", "sqlite://agent.db", "sqlite:///",
        "sqlite:///:memory:", "sqlite:///?x=1", "sqlite:///a%00b.db", "mysql://host/db", "memory",
        None, 7, "sqlite:///\ud800.db",
    ],
    ids=str,
)  # fmt: skip
async def test_what_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting):
        await open_store(url, clock=ManualClock())


async def test_a_refusal_does_not_repeat_a_password() -> None:
    with pytest.raises(InvalidSetting) as caught:
        await open_store("mysql://user:secret@host/db", clock=ManualClock())
    assert "secret" not in str(caught.value)


async def test_folders_are_made_on_the_way(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/a/b/c.db", clock=ManualClock())
    await StoreClient(store).append("x", key="k")
    await store.close()
    assert (tmp_path / "a" / "b" / "c.db").exists()


async def test_a_path_that_leads_nowhere_is_a_fault_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file" / "a.db", tmp_path):
        with pytest.raises(StoreUnavailable):
            await open_store(f"sqlite:///{path}", clock=ManualClock())


async def test_a_file_that_is_no_database_is_a_fault_of_the_store_and_stays_as_it_is(
    tmp_path: Path,
) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("dear diary " * 1000)
    with pytest.raises(StoreUnavailable, match="not a database"):
        await open_store(f"sqlite:///{path}", clock=ManualClock())
    assert path.read_text() == "dear diary " * 1000


async def test_a_store_in_memory_is_one_for_itself() -> None:
    one, other = [await open_store("memory:", clock=ManualClock()) for _ in range(2)]
    first = await StoreClient(one).append("x", key="k")
    second = await StoreClient(other).append("y", key="k")
    assert await StoreClient(one).texts(first.session) == ["x"]
    assert await StoreClient(other).texts(second.session) == ["y"]
    await one.close()
    await other.close()
