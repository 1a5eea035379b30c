"""Settings of property tests: the same examples in every run, few enough for every commit.

`tests/conftest.py` loads them before any test is defined, whichever tests run: Hypothesis's own
time limits fail on a busy machine.
"""

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import engine

SHRINK_SECONDS = 20
"""How long Hypothesis shrinks a failing example. It has no setting for this; its own five minutes
exceed the time limit of a test, which then reports a flaky strategy instead of the failure."""

engine.MAX_SHRINKING_SECONDS = SHRINK_SECONDS

settings.register_profile(
    "harness",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("harness")
