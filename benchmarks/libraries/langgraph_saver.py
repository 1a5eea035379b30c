"""Measure LangGraph's checkpoint savers: the whole state per message, as its graphs save it."""

# mypy: ignore-errors
import asyncio
import sys

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from timing import TEXT, measure


async def main(saver) -> None:
    states = {}

    def config(length):
        return {"configurable": {"thread_id": str(length), "checkpoint_ns": ""}}

    async def put(length) -> None:
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6())
        version = f"{len(states[length]):032}"
        checkpoint["channel_values"] = {"messages": list(states[length])}
        checkpoint["channel_versions"] = {"messages": version}
        meta = {"source": "loop", "step": len(states[length]), "parents": {}}
        await saver.aput(config(length), checkpoint, meta, {"messages": version})

    async def prepare(length) -> None:
        states[length] = [{"role": "user", "content": TEXT}] * length
        await put(length)

    async def append(length) -> None:
        states[length].append({"role": "user", "content": TEXT})
        await put(length)

    async def read(length) -> None:
        assert await saver.aget_tuple(config(length)) is not None

    await measure(prepare, append, read)


async def run() -> None:
    where = sys.argv[1]
    if "://" in where:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        async with AsyncPostgresSaver.from_conn_string(where) as saver:
            await saver.setup()
            await main(saver)
    else:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(where) as saver:
            await main(saver)


asyncio.run(run())
