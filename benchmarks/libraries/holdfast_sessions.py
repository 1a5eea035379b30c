"""Measure our own sessions."""

import asyncio
import sys

from timing import TEXT, measure  # type: ignore[import-not-found]  # beside this script

import holdfast


async def main() -> None:
    """Append and read through the Python API."""
    where = sys.argv[1]
    url = where if "://" in where else f"sqlite:///{where}"
    async with holdfast.open(url) as engine:
        sessions: dict[int, holdfast.SessionHandle] = {}

        async def prepare(length: int) -> None:
            sessions[length] = await engine.session(str(length))
            await sessions[length].append([{"role": "user", "content": TEXT}] * length)

        async def append(length: int) -> None:
            await sessions[length].append({"role": "user", "content": TEXT})

        async def read(length: int) -> None:
            assert len(await sessions[length].items()) >= length

        await measure(prepare, append, read)


asyncio.run(main())
