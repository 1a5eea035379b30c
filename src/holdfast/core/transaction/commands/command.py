"""What every command has in common: it can be sent twice, and it knows the bounds of a lane."""

from typing import Generic, TypeVar

import msgspec

OutcomeT = TypeVar("OutcomeT", covariant=True)


class Command(msgspec.Struct, Generic[OutcomeT], frozen=True, kw_only=True):
    """One transaction, answered with an `OutcomeT` or refused with an error."""

    again: bool = False


MAX_HOLD_SECONDS = 3600.0
"""No lane is held longer for tools or approvals; a longer hold is from before a clock step."""


class LaneLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one lane."""

    max_waiting: int = 64
    max_attempts: int = 3
    max_tenant_turns: int = 0
    """Turns of one tenant that may be open at a time, in all its sessions; zero means any."""
    full_bytes: int = 0
    """The bound on what the tenant may store, if it has reached it."""
    can_run_again: bool = False
    """Whether this worker can run turns without a waiting connection."""
