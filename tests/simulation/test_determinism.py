"""One seed, one world: in every process, whatever its hashes, down to the last row."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.simulation.judge import live
from tests.simulation.plan import plan_of, storm_of
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


def test_a_seed_gives_the_same_world_in_every_process() -> None:
    here = digest_of_worlds()
    assert digest_elsewhere("1") == here
    assert digest_elsewhere("4242") == here
