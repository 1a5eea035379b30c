"""Which gateway a command talks to: a flag, the environment, or the one on this machine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from holdfast.core.errors import InvalidSetting

DEFAULT_URL = "http://127.0.0.1:8377"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A gateway's address, without its /v1, and the key it is opened with."""

    url: str
    key: str | None = field(default=None, repr=False)


def find_target(url: str | None = None, environment: Mapping[str, str] | None = None) -> Target:
    """Return the gateway that `url`, or HOLDFAST_URL, names; the key is HOLDFAST_API_KEY."""
    env = os.environ if environment is None else environment
    place = "--url" if url else "HOLDFAST_URL"
    given = url or env.get("HOLDFAST_URL") or DEFAULT_URL
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSetting(f"{place} is http://… or https://…, not {given!r}")
    try:
        _ = parts.port
    except ValueError as exc:
        raise InvalidSetting(f"{place}: {exc}") from exc
    if parts.username or parts.password:
        raise InvalidSetting(f"{place} must not hold a password; use HOLDFAST_API_KEY")
    return Target(
        url=given.rstrip("/").removesuffix("/v1"), key=env.get("HOLDFAST_API_KEY") or None
    )
