"""What all commands have in common: they can be sent twice. Also the limits of a lane."""

from typing import Generic, TypeVar

import msgspec

OutcomeT = TypeVar("OutcomeT", covariant=True)


class Command(msgspec.Struct, Generic[OutcomeT], frozen=True, kw_only=True):
    """One transaction: it returns an `OutcomeT` or is refused with an error."""

    again: bool = False


MAX_HOLD_SECONDS = 3600.0
"""The longest hold of a lane for tools or approvals. A longer one means that the clock was set
back."""


class LaneLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one lane."""

    max_waiting: int = 64
    max_attempts: int = 3
    max_tenant_turns: int = 0
    """How many turns of a tenant may be open, over all its sessions; 0 means no limit."""
    full_bytes: int = 0
    """The storage limit of the tenant, if it is reached; 0 otherwise."""
    can_run_again: bool = False
    """Whether this worker can run turns without a waiting connection."""
