"""One seed, one world: in every process, whatever its hashes, down to the last row."""

import asyncio
import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path

from tests.simulation.judge import live
from tests.simulation.plan import plan_of, storm_of
from tests.simulation.schedule import seeded_loop
from tests.simulation.trace import line

ROOT = Path(__file__).parent.parent.parent
SEEDS = range(7)


def digest_of_worlds() -> str:
    """Return a short name of everything that happened in a few worlds, and of what is left."""
    digest = hashlib.blake2b(digest_size=12)
    for seed in SEEDS:
        for plan in (plan_of(seed), storm_of(seed)):
            story = live(plan)
            for event in story.trace:
                digest.update(line(event).encode())
            digest.update(story.image.digest().encode())
    return digest.hexdigest()


def digest_elsewhere(hash_seed: str) -> str:
    """Return what another process makes of the same worlds."""
    code = "from tests.simulation.test_determinism import *; print(digest_of_worlds())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return done.stdout.strip()


def test_time_advances_however_short_the_sleeps_of_tasks_are() -> None:
    loop = seeded_loop("short sleeps")
    sleeps = 0

    async def sleep_until(end: float) -> None:
        nonlocal sleeps
        while (left := end - loop.time()) > 0:
            sleeps += 1
            assert sleeps < 100
            await asyncio.sleep(left)
            await asyncio.sleep(0)

    async def take_turns() -> None:
        end = math.nextafter(loop.time(), 1.0)
        other = asyncio.ensure_future(sleep_until(end))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.gather(other, sleep_until(end))

    loop.run_until_complete(take_turns())
    loop.close()


def test_a_seed_gives_the_same_world_in_every_process() -> None:
    here = digest_of_worlds()
    assert digest_elsewhere("1") == here
    assert digest_elsewhere("4242") == here
