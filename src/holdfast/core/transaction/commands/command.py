"""What every command has in common: it can be sent twice, and it knows the bounds of a lane."""

from typing import Generic, TypeVar

import msgspec

OutcomeT = TypeVar("OutcomeT", covariant=True)


class Command(msgspec.Struct, Generic[OutcomeT], frozen=True, kw_only=True):
    """One transaction, answered with an `OutcomeT` or refused with an error."""

    again: bool = False


class LaneLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one lane."""

    max_waiting: int = 64
    max_attempts: int = 3
    max_tenant_turns: int = 0
    """Turns of one tenant that may be open at a time, in all its sessions; zero means any."""
    full_bytes: int = 0
    """The bound on what the tenant may store, if it has reached it."""
    max_hold_seconds: float = 3600.0
    """No hold lasts longer; one that ends later was made before the clock was set back."""
    can_run_again: bool = False
    """Whether this worker can run turns without a waiting connection."""
