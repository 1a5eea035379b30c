"""Opening a store and taking part, or being told why not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import InvalidInput, InvalidSetting
from holdfast.engine.settings import LaneSettings


async def test_items_survive_closing_and_opening(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    for expected in (0, 1, 2):
        async with holdfast.open(url) as hf:
            session = await hf.session("k")
            assert len(await session.items()) == expected
            await session.append("more")


async def test_closing_leaves_no_task_no_token_and_no_worker_behind(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with holdfast.open(url) as hf:
        assert len(list((tmp_path / "a.db-workers").iterdir())) == 1
        await (await hf.session("k")).append("one")
    assert list((tmp_path / "a.db-workers").iterdir()) == []
    assert [task.get_name() for task in asyncio.all_tasks() if "holdfast" in task.get_name()] == []
    async with holdfast.open(url) as hf:
        known = [worker.id for worker in await hf.gateway.store.workers()]
        assert known == [hf.gateway.worker.id]


async def test_an_error_inside_passes_through_and_closes_the_store(tmp_path: Path) -> None:
    async def fail() -> None:
        async with holdfast.open(f"sqlite:///{tmp_path}/a.db"):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await fail()
    assert list((tmp_path / "a.db-workers").iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"tenant": ""}, {"tenant": 7}, {"tenant": "a\0"}, {"lanes": {"max_waiting": 3}},
        {"reset": "daily"}, {"reset": None}, {"handler": "x"},
    ],
    ids=repr,
)  # fmt: skip
async def test_arguments_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await holdfast.open("memory:", **wrong).__aenter__()


@pytest.mark.parametrize("url", [None, 7, "", "mysql://x", "sqlite:a.db"], ids=repr)
async def test_what_names_no_store_is_refused(url: Any) -> None:
    with pytest.raises(InvalidSetting):
        await holdfast.open(url).__aenter__()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_waiting": -1}, {"max_waiting": "many"}, {"max_wait_seconds": None},
        {"lease_seconds": 0}, {"lease_seconds": "long"}, {"lease_seconds": float("nan")},
        {"poll_seconds": -1}, {"max_attempts": 0}, {"max_attempts": None}, {"on_busy": "push"},
        {"tool_wait_seconds": -0.1},
    ],
    ids=repr,
)  # fmt: skip
def test_lanes_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match="lanes"):
        LaneSettings(**wrong)
