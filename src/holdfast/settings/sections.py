"""The sections of the configuration, each with what it may hold."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import time
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.core.errors import InvalidSetting
from holdfast.core.reset import ResetMode, ResetPolicy, Rollover
from holdfast.providers.settings import check_variable


def default_store_url() -> str:
    """Return the URL of a file in the user's data directory."""
    root = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return f"sqlite:///{Path(root) / 'holdfast' / 'holdfast.db'}"


PORTS = "from 0 to 65535"
"""Which numbers a port may have, as a message says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`[server]`: where and how the gateway listens."""

    host: str = "127.0.0.1"
    """The address to listen on; beyond loopback only with an API key."""
    port: Annotated[int, PORTS] = 8377
    """The port to listen on; 0 chooses a free one."""
    grace_seconds: float = 20.0
    """How long running turns may take to finish when the server is stopped."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the API from a browser; none by default."""
    allowed_hosts: tuple[str, ...] = ()
    """Names accepted in a Host header besides loopback's while there is no API key."""

    def __post_init__(self) -> None:
        if not self.host or not self.host.isprintable() or set(self.host) & set(" /"):
            raise InvalidSetting(f"server.host is an address or a name, not {self.host!r}")
        if not 0 <= self.port <= 65535:
            raise InvalidSetting(f"server.port is a number {PORTS}, not {self.port!r}")
        if self.grace_seconds < 0:
            raise InvalidSetting("server.grace_seconds must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """`[store]`: where everything is kept."""

    url: str = field(default_factory=default_store_url)
    """`sqlite:///file.db`, `sqlite:////absolute/path.db`, `postgresql://…` or `memory:`."""

    def __post_init__(self) -> None:
        from holdfast.stores.opening import check_url

        check_url(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetSettings:
    """`[sessions.reset]`: when a session rolls over; by default never."""

    mode: ResetMode = "none"
    """Never, after a time without user activity, or at a time of day."""
    idle_minutes: float = 60.0
    """With `idle`: minutes without user activity; fractions are allowed."""
    at: str = "04:00"
    """With `daily`: the time of day, as HH:MM."""
    timezone: str = "UTC"
    """With `daily`: the IANA time zone of `at`."""
    rollover: Literal["soft", "hard"] | None = None
    """`soft` keeps the session, `hard` starts the next generation; unset: depends on the mode."""
    triggers: tuple[str, ...] = ("/new", "/reset")
    """Messages that ask for a hard reset, in `holdfast chat` and channels only."""

    def __post_init__(self) -> None:
        if not self.idle_minutes > 0:
            raise InvalidSetting("sessions.reset.idle_minutes must be positive")
        if not all(one.strip() for one in self.triggers):
            raise InvalidSetting("sessions.reset.triggers must not hold an empty text")
        self.policy()

    def policy(self) -> ResetPolicy:
        """Return the section as the kernel judges by it."""
        try:
            zone = ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            raise InvalidSetting(
                f"sessions.reset.timezone: {self.timezone!r} is no IANA time zone"
            ) from exc
        try:
            at = time.fromisoformat(self.at)
        except ValueError as exc:
            raise InvalidSetting(
                f"sessions.reset.at is a time of day as HH:MM, not {self.at!r}"
            ) from exc
        rollover: Rollover | None = self.rollover
        return ResetPolicy(
            mode=self.mode,
            idle_seconds=self.idle_minutes * 60,
            at=at.replace(tzinfo=None),
            zone=zone,
            rollover=rollover,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """`[limits]`: bounds per request and per tenant; zero means none."""

    header_bytes: int = 64 * 1024
    """The maximum size of a request's headers, including the request line."""
    body_bytes: int = 64 * 1024 * 1024
    """The maximum size of a request body."""
    requests_per_minute: int = 0
    """Requests of one tenant per minute and process; 0 means no limit."""
    waiting_turns: int = 0
    """Open turns of one tenant, over all its sessions; 0 means no limit."""
    stored_bytes: int = 0
    """Bytes of items that one tenant may store, measured every few seconds; 0 means no limit."""

    def __post_init__(self) -> None:
        if self.header_bytes < 1024:
            raise InvalidSetting("limits.header_bytes must be at least 1024")
        if self.body_bytes < 1024:
            raise InvalidSetting("limits.body_bytes must be at least 1024")
        for name in ("requests_per_minute", "waiting_turns", "stored_bytes"):
            if getattr(self, name) < 0:
                raise InvalidSetting(f"limits.{name} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """`[log]`: what operators see on standard error; ids always, content never."""

    level: Literal["debug", "info", "warning", "error"] = "warning"
    """The minimum level that is written."""
    format: Literal["text", "json"] = "text"
    """One readable line per event, or one JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """`[[key]]`: an API key that comes from the environment, beside those in the store."""

    key_env: str
    """The environment variable that holds the key."""
    tenant: str = "default"
    """The tenant whose sessions the key may access."""
    admin: bool = False
    """Whether it may read metrics and use admin endpoints."""
    key: str = field(default="", repr=False)
    """The key itself, as read from `key_env`; never written anywhere."""

    def __post_init__(self) -> None:
        check_variable("key.key_env", self.key_env)

    def filled(self, environment: Mapping[str, str]) -> "AccessKey":
        """Return the entry with its key, which must be there."""
        key = environment.get(self.key_env, "")
        if not key:
            raise InvalidSetting(f"key.key_env: the environment variable {self.key_env} is not set")
        return replace(self, key=key)
