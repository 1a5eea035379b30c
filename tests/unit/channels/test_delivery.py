"""How long a channel that is away is left alone."""

from holdfast.channels.delivery import MAX_PAUSE_SECONDS, ChannelBackoff
from holdfast.testing.clock import ManualClock


def test_sends_that_fail_side_by_side_are_one_failure() -> None:
    clock = ManualClock()
    backoff = ChannelBackoff(clock.now)
    clock.advance(1.0)
    first = backoff.fail(started_at=clock.now() - 0.5)
    assert 0.75 <= first <= 1.25
    for _ in range(15):
        clock.advance(0.01)
        assert backoff.fail(started_at=clock.now() - 0.5) <= first
    clock.advance(2.0)
    assert backoff.seconds_left <= 0
    assert 1.5 <= backoff.fail(started_at=clock.now()) <= 2.5


def test_the_wait_grows_to_a_bound() -> None:
    clock = ManualClock()
    backoff = ChannelBackoff(clock.now)
    for _ in range(20):
        clock.advance(2 * MAX_PAUSE_SECONDS)
        backoff.fail(started_at=clock.now())
    assert MAX_PAUSE_SECONDS * 0.75 <= backoff.seconds_left <= MAX_PAUSE_SECONDS * 1.25
