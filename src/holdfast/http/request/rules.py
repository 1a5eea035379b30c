"""The rules of the house, as the application is given them."""

import msgspec

from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.http.request.auth import Door

DEFAULT_BODY_BYTES = 64 * 1024 * 1024


class HouseRules(msgspec.Struct, frozen=True, kw_only=True):
    """Who may come in, how much they may bring, and when their sessions roll over."""

    doors: tuple[Door, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    body_bytes: int = DEFAULT_BODY_BYTES
    requests_per_minute: int = 0
    reset: ResetPolicy = NEVER


OPEN_HOUSE = HouseRules()
"""No keys, no limits beyond the defaults: for the machine itself."""
