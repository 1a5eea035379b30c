"""Check that no test of an agent leaves a process running."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.cli_agents.agents import processes_of


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Iterator[Path]:
    """The directory of all agents' sessions; after the test, none of its processes may run."""
    root = tmp_path / "agents"
    yield root
    # A killed process may still be dying.
    _, left = psutil.wait_procs(processes_of(root), timeout=60)
    assert left == [], "a process was left behind"


@pytest.fixture(name="simulator")
def _simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator() as simulator:
        yield simulator
