"""Proof of life that the operating system takes back."""

import os
from pathlib import Path

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import WorkerId
from holdfast.stores.sql.worker_locks import FileTokens, ProcessTokens, WorkerTokens

ME, YOU = WorkerId("wrk_a"), WorkerId("wrk_b")


@pytest.fixture(params=["files", "process"])
def tokens(request: pytest.FixtureRequest, tmp_path: Path) -> WorkerTokens:
    return FileTokens(tmp_path / "a.db-workers") if request.param == "files" else ProcessTokens()


async def test_a_worker_lives_from_taking_its_token_to_dropping_it(tokens: WorkerTokens) -> None:
    assert await tokens.living([ME, YOU]) == set()
    await tokens.take(ME)
    assert await tokens.living([ME, YOU]) == {ME}
    await tokens.drop(ME)
    assert await tokens.living([ME, YOU]) == set()


async def test_a_process_that_closes_its_store_has_no_worker_there(tokens: WorkerTokens) -> None:
    await tokens.take(ME)
    await tokens.take(YOU)
    await tokens.close()
    assert await tokens.living([ME, YOU]) == set()
    await tokens.close()


async def test_dropping_what_nobody_holds_is_harmless(tokens: WorkerTokens) -> None:
    await tokens.drop(ME)
    await tokens.drop(ME)


async def test_another_process_sees_a_held_file_and_a_dead_one(tmp_path: Path) -> None:
    here, there = FileTokens(tmp_path / "w"), FileTokens(tmp_path / "w")
    await here.take(ME)
    assert await there.living([ME]) == {ME}
    (tmp_path / "w" / YOU).touch()  # as a killed process leaves it: there, and not locked
    assert await there.living([ME, YOU]) == {ME}
    await there.drop(YOU)
    assert not (tmp_path / "w" / YOU).exists()
    await here.drop(ME)
    assert list((tmp_path / "w").iterdir()) == []


async def test_looking_at_a_token_does_not_take_it(tmp_path: Path) -> None:
    here, there = FileTokens(tmp_path / "w"), FileTokens(tmp_path / "w")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ME).touch()
    assert await there.living([ME]) == set()
    await here.take(ME)
    assert await there.living([ME]) == {ME}
    await here.drop(ME)


async def test_a_folder_that_cannot_be_used_is_a_fault_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("in the way")
    tokens = FileTokens(tmp_path / "w")
    with pytest.raises(StoreUnavailable, match="cannot lock"):
        await tokens.take(ME)
    with pytest.raises(StoreUnavailable, match="cannot read"):
        await tokens.living([ME])
    await tokens.drop(ME)


async def test_a_token_that_another_process_holds_is_not_taken(tmp_path: Path) -> None:
    here, there = FileTokens(tmp_path / "w"), FileTokens(tmp_path / "w")
    await here.take(ME)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoreUnavailable):
        await there.take(ME)
    assert len(os.listdir("/proc/self/fd")) == before, "no handle is left open"
    await here.drop(ME)
