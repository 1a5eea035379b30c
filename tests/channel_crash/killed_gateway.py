"""`holdfast serve` in a process that kills itself at a chosen commit.

Run by tests as `python -m tests.channel_crash.killed_gateway serve …` with HOLDFAST_TEST_KILL set
to, for example, `before Accept 2`: the process dies just before its second `Accept`.
"""

import os
import signal
from typing import Any

from holdfast.cli import main
from holdfast.core.transaction.commands import Command
from holdfast.stores.sql.store import SqlStore

KILL = "HOLDFAST_TEST_KILL"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """Make every store of this process kill it at a point."""
    side, name, number = point.split()
    left = [int(number)]
    submit = SqlStore.submit

    async def dying_submit(self: SqlStore, command: Command[Any]) -> Any:
        left[0] -= type(command).__name__ == name
        is_there = type(command).__name__ == name and left[0] == 0
        if is_there and side == "before":
            _die()
        outcome = await submit(self, command)
        if is_there:
            _die()
        return outcome

    SqlStore.submit = dying_submit  # type: ignore[method-assign]  # what the test is about


if __name__ == "__main__":
    if KILL in os.environ:
        arm(os.environ[KILL])
    main()
