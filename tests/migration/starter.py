"""A process that waits for a signal and then opens a store, as one of many that start together.

Run by a test as `python -m tests.migration.starter URL`.
"""

import asyncio
import sys

from holdfast.core.errors import HoldfastError
from holdfast.engine.clock import SystemClock
from holdfast.stores.open import open_store
from holdfast.testing.store_client import StoreClient


async def main(url: str) -> str:
    """Open the store and use it; return the result."""
    try:
        store = await open_store(url, clock=SystemClock())
    except HoldfastError as exc:
        return f"{exc.code}: {exc}"
    appended = await StoreClient(store, sys.argv[2]).append("I am here", key="k")
    await store.close()
    return f"done {appended.session.id}"


if __name__ == "__main__":
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(asyncio.run(main(sys.argv[1])) + "\n")
