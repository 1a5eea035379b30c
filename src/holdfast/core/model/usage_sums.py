"""Sums of usage by hour or day, tenant and model, and the buckets that durations are counted in."""

from collections.abc import Iterable

import msgspec

from holdfast.core.ids import Tenant

HOUR, DAY = 3600, 86400
MAX_MODELS = 200
"""The most models of a tenant in an interval; clients choose the names."""
OTHER_MODELS = "(other models)"
"""What is summed up together beyond that."""
MAX_NAME = 200


class UsageSum(msgspec.Struct):
    """The usage of one model by one tenant in one interval."""

    start: int
    tenant: Tenant
    model: str
    turns: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    interrupted: int = 0
    runs: int = 0
    heals: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    longest_ms: int = 0
    latencies: dict[int, int] = {}
    """How many completed turns took how long, from start to end, by bucket."""

    def add(self, other: "UsageSum") -> None:
        """Add the counts of another sum."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest_ms = max(self.longest_ms, other.longest_ms)
        for bucket, count in other.latencies.items():
            self.latencies[bucket] = self.latencies.get(bucket, 0) + count

    def add_latency(self, milliseconds: int) -> None:
        """Count the duration of a turn."""
        bucket = bucket_of(milliseconds)
        self.latencies[bucket] = self.latencies.get(bucket, 0) + 1
        self.longest_ms = max(self.longest_ms, milliseconds)

    def percentile(self, share: float) -> int | None:
        """Return the duration that at least this share of the turns does not exceed, nearly."""
        total = sum(self.latencies.values())
        wanted = min(int(share * total), total - 1)
        for bucket in sorted(self.latencies):
            wanted -= self.latencies[bucket]
            if wanted < 0:
                return min(middle_of(bucket), self.longest_ms)
        return None


COUNTS = UsageSum.__struct_fields__[3:14]
"""The fields that are added up."""


def bucket_of(milliseconds: int) -> int:
    """Return the bucket of a duration: one for each below 32 ms, then 16 for each doubling."""
    milliseconds = max(milliseconds, 0)
    shift = max(milliseconds.bit_length() - 5, 0)
    return (shift << 4) + (milliseconds >> shift)


def middle_of(bucket: int) -> int:
    """Return the middle of a bucket, which is at most 3.2 % from any duration in it."""
    shift = max((bucket >> 4) - 1, 0)
    return ((bucket - (shift << 4)) << shift) + ((1 << shift) >> 1)


def model_name(model: str) -> str:
    """Return a model's name as sums have it: of limited length, and without what no text has."""
    return model.replace("\0", "")[:MAX_NAME]


def merged(known: Iterable[UsageSum], new: Iterable[UsageSum]) -> list[UsageSum]:
    """Return the changed sums of an interval and a tenant; `known` are all that it has."""
    sums = {one.model: one for one in known}
    changed: dict[str, UsageSum] = {}
    for one in new:
        model = one.model if one.model in sums or len(sums) < MAX_MODELS else OTHER_MODELS
        if model not in sums:
            sums[model] = UsageSum(one.start, one.tenant, model)
        sums[model].add(one)
        changed[model] = sums[model]
    return list(changed.values())
