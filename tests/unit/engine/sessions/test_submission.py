"""Commands whose outcome is unknown are asked about, and then given up."""

from typing import Any, cast

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import WorkerId
from holdfast.core.transaction.commands import Command, Renew
from holdfast.engine.sessions import submission
from holdfast.engine.sessions.submission import submit
from holdfast.engine.settings import LaneSettings
from holdfast.ports.store import Store
from tests.unit.engine.harness import open_engine

COMMAND = Renew(worker=WorkerId("wrk_1"), lease_seconds=1.0)


class SilentStore:
    """A store that does not answer the first commands."""

    def __init__(self, silent: int) -> None:
        self._silent = silent
        self.is_given_up = False
        self.seen: list[bool] = []

    async def submit(self, command: Command[Any]) -> str:
        """Answer, or not."""
        self.seen.append(command.again)
        if len(self.seen) <= self._silent:
            raise StoreUnavailable("no answer")
        return "done"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "FIRST_PAUSE_SECONDS", 0.0001)


async def test_in_a_long_outage_nothing_is_tried_again() -> None:
    store = SilentStore(1)
    store.is_given_up = True
    with pytest.raises(StoreUnavailable):
        await submit(cast(Store, store), COMMAND, tries=4)
    assert store.seen == [False]


@pytest.mark.parametrize("silent", [0, 1, 3])
async def test_a_command_is_sent_again_until_it_is_answered(silent: int) -> None:
    store = SilentStore(silent)
    assert cast(Any, await submit(cast(Store, store), COMMAND, tries=4)) == "done"
    assert store.seen == [False, *[True] * silent]


async def test_a_command_is_given_up_after_its_last_try() -> None:
    store = SilentStore(9)
    with pytest.raises(StoreUnavailable):
        await submit(cast(Store, store), COMMAND, tries=4)
    assert store.seen == [False, True, True, True]


async def test_a_handler_is_started_only_where_the_store_knows_of_it() -> None:
    async def handler(_: Any) -> None:
        """Run nothing."""

    async with open_engine() as engine:
        assert engine.gateway.limits == LaneSettings().limits(can_run_again=False)
        with pytest.raises(ValueError, match="can_run_again"):
            await engine.gateway.start(handler)
