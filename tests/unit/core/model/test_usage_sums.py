"""Sums of usage: buckets of durations, percentiles, and the number of models."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import Tenant
from holdfast.core.model.usage_sums import (
    MAX_MODELS,
    MAX_NAME,
    OTHER_MODELS,
    UsageSum,
    bucket_of,
    merged,
    middle_of,
    model_name,
)

TENANT = Tenant("t")


@given(st.integers(min_value=0, max_value=10**10))
def test_the_middle_of_a_bucket_is_near_every_duration_in_it(milliseconds: int) -> None:
    bucket = bucket_of(milliseconds)
    assert abs(middle_of(bucket) - milliseconds) <= milliseconds / 31
    assert bucket_of(middle_of(bucket)) == bucket
    assert bucket <= bucket_of(milliseconds + 1) <= bucket + 1


def test_short_durations_are_counted_exactly() -> None:
    assert [middle_of(bucket_of(milliseconds)) for milliseconds in range(32)] == list(range(32))


def test_percentiles_are_those_of_the_sorted_durations_nearly() -> None:
    used = UsageSum(0, TENANT, "m")
    assert used.percentile(0.5) is None
    durations = [7 * number % 10_007 for number in range(1000)]
    for milliseconds in durations:
        used.add_latency(milliseconds)
    for share in (0.0, 0.5, 0.95, 1.0):
        exact = sorted(durations)[min(int(share * 1000), 999)]
        found = used.percentile(share)
        assert found is not None
        assert abs(found - exact) <= exact / 31
    assert used.longest_ms == max(durations)


def test_sums_add_up_and_keep_the_longest() -> None:
    first, second = UsageSum(0, TENANT, "m", turns=2), UsageSum(0, TENANT, "m", turns=3, heals=1)
    first.add_latency(5)
    second.add_latency(5)
    second.add_latency(90)
    first.add(second)
    assert (first.turns, first.heals, first.longest_ms) == (5, 1, 90)
    assert first.latencies == {5: 2, bucket_of(90): 1}


def test_models_beyond_a_limit_are_summed_up_together() -> None:
    known = [UsageSum(0, TENANT, f"m{number}", turns=1) for number in range(MAX_MODELS)]
    new = [UsageSum(0, TENANT, name, turns=1) for name in ("m3", "new", "newer")]
    changed = {used.model: used.turns for used in merged(known, new)}
    assert changed == {"m3": 2, OTHER_MODELS: 2}


def test_a_name_of_a_model_is_what_a_database_can_store() -> None:
    assert model_name("a\0b") == "ab"
    assert len(model_name("x" * 5000)) == MAX_NAME
