"""The simulator for pytest: import the fixture `provider_simulator` into a conftest.

    from holdfast.testing.simulator.provider import ProviderSimulator, provider_simulator

Without pytest, take `ProviderSimulator` from `holdfast.testing.simulator.process`.
"""

from collections.abc import Iterator

import pytest

from holdfast.testing.simulator.control import (
    BarrierControl,
    RecordedRequest,
    SimulatorControl,
    SimulatorError,
)
from holdfast.testing.simulator.process import ProviderSimulator

__all__ = [
    "BarrierControl",
    "ProviderSimulator",
    "RecordedRequest",
    "SimulatorControl",
    "SimulatorError",
    "provider_simulator",
]


@pytest.fixture
def provider_simulator() -> Iterator[ProviderSimulator]:
    """A well-behaved `openai` simulator with seed 0; add faults during the test."""
    with ProviderSimulator() as simulator:
        yield simulator
