"""How hard properties are tried: the same examples in every run, few enough for every commit.

The profile is loaded before any test is defined, whichever tests are run: the usual one has time
limits that a busy machine exceeds.
"""

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import engine

SHRINK_SECONDS = 20
"""How long a failing example is made smaller. Hypothesis has no setting for it; its own five
minutes end in the time limit of a test, which then reports a flaky strategy, not the failure."""

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
