"""A process whose run never completes: it prints a line when the model is called, then waits."""

import asyncio
import sys
from typing import Any

from agents import set_tracing_disabled

from holdfast.agents_sdk import HoldfastRunner, HoldfastSession
from tests.agents_sdk.fake_model import FakeModel, agent_of


async def hang(store: str, key: str, run_id: str, text: str) -> None:
    """Run an agent up to its first model call, and wait there."""
    model = FakeModel()
    model.gates = [asyncio.Event()]
    if store.startswith("http"):
        session = HoldfastSession(key, url=store)
    else:
        session = HoldfastSession(key, store)
    run: asyncio.Task[Any] = asyncio.create_task(
        HoldfastRunner.run(agent_of(model), text, session=session, run_id=run_id)
    )
    await model.arrivals.get()
    print("asked", flush=True)  # noqa: T201 - the parent waits for this line
    await run


if __name__ == "__main__":
    set_tracing_disabled(True)
    asyncio.run(hang(*sys.argv[1:]))
