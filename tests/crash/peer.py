"""A process of its own on a shared store, told what to do line by line, until it is killed.

    python -m tests.crash.peer URL NAME

Each line it reads is a request in JSON, each line it prints an answer; requests run side by side.
"""

import asyncio
import json
import sys
from typing import Any

import holdfast
from holdfast.core.commands import Finish
from holdfast.core.items import message
from holdfast.core.turn import Source
from holdfast.engine.embedded import Holdfast
from holdfast.engine.settings import LaneSettings
from holdfast.engine.turn_handle import Item
from holdfast.engine.turn_runner import ActiveRun

LANES = LaneSettings(lease_seconds=60.0)
"""So long that nothing in a test can happen because a lease ran out."""


def tell(answer: dict[str, Any]) -> None:
    """Print one answer."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class Peer:
    """What a process of a test can be asked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.hf: Holdfast | None = None

    async def carry_out(self, run: ActiveRun) -> None:
        """Answer a turn that another process left behind."""
        shown = len(await run.context())
        tell({"adopted": run.turn.id, "by": self._name})
        item = message("assistant", f"{self._name} knows {shown}")
        await run.finish(Finish(fence=run.fence, outcome="completed", items=(item,)))

    async def turn(self, key: str, text: str, source: Source = "user", stuck: bool = False) -> None:
        """Carry out one turn; a stuck one never ends by itself."""
        assert self.hf is not None
        session = await self.hf.session(key)
        async with session.turn(text, source=source) as turn:
            shown: list[Item] = await turn.context()
            if stuck:
                tell({"stuck": turn.id, "session": session.id})
                await asyncio.Event().wait()
            turn.add(f"{self._name} knows {len(shown)}")
        tell({"done": text, "turn": turn.id, "session": session.id})


async def main(url: str, name: str) -> None:
    """Serve until the input ends."""
    peer = Peer(name)
    async with holdfast.open(url, lanes=LANES, handler=peer.carry_out) as peer.hf:
        tell({"ready": name})
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        async with asyncio.TaskGroup() as group:
            while line := await reader.readline():
                group.create_task(peer.turn(**json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
