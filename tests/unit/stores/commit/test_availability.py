"""One outage is one event, however many callers meet it."""

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.ports.store import Outage
from holdfast.stores.commit.availability import Availability

GONE = StoreUnavailable("gone")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[Outage]:
    return []


@pytest.fixture
def availability(clock: Clock, told: list[Outage]) -> Availability:
    availability = Availability(clock, quiet_seconds=1.0)
    availability.on_change = told.append
    return availability


def test_an_outage_is_told_when_it_begins_and_when_it_is_over(
    availability: Availability, clock: Clock, told: list[Outage]
) -> None:
    for _ in range(100):
        availability.failed(GONE)
        clock.now += 0.1
    assert told == [Outage("gone")]
    availability.committed()
    assert not availability.is_out
    clock.now += 3.0
    availability.committed()
    (_, over) = told
    assert over.reason == "gone"
    assert over.seconds == pytest.approx(10.0)
    assert not availability.is_in_doubt
    assert availability.counts.outages == 1
    assert availability.counts.seconds == pytest.approx(10.0)


def test_a_failure_soon_after_a_commit_belongs_to_the_same_outage(
    availability: Availability, clock: Clock, told: list[Outage]
) -> None:
    availability.failed(GONE)
    availability.committed()
    clock.now += 0.5
    availability.failed(GONE)
    assert availability.is_out
    clock.now += 0.5
    availability.committed()
    assert told == [Outage("gone")]
    clock.now += 1.0
    availability.committed()
    assert [one.seconds for one in told] == [None, 1.0]


def test_work_that_began_before_the_store_was_back_does_not_prolong_the_outage(
    availability: Availability, clock: Clock, told: list[Outage]
) -> None:
    availability.failed(GONE)
    clock.now += 5.0
    availability.committed()
    clock.now += 5.0
    availability.failed(GONE, began=101.0)
    assert not availability.is_in_doubt
    assert [one.seconds for one in told] == [None, 5.0]


def test_callers_give_up_once_the_outage_is_long_and_no_longer_once_a_commit_succeeds(
    availability: Availability, clock: Clock
) -> None:
    seen: list[bool] = []
    availability.failed(GONE, began=clock.now)
    clock.now += availability.patience_seconds - 0.1
    seen.append(availability.is_given_up)
    clock.now += 0.1
    seen.append(availability.is_given_up)
    availability.committed()
    seen.append(availability.is_given_up)
    assert seen == [False, True, False]


def test_the_outage_counts_from_the_start_of_the_work_that_met_it(
    availability: Availability, clock: Clock
) -> None:
    availability.failed(GONE, began=clock.now - availability.patience_seconds)
    assert availability.is_given_up
