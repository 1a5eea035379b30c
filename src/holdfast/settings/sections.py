"""Sections of the configuration and their validation."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, time, tzinfo
from pathlib import Path
from typing import Annotated, Literal, get_args

from holdfast.core.errors import InvalidSetting
from holdfast.core.model.reset_policy import ResetMode, ResetPolicy, Rollover
from holdfast.engine.logging import LOG_AREAS
from holdfast.providers.settings import check_variable


def data_directory(environment: Mapping[str, str]) -> Path:
    """Return the gateway's directory among the user's data."""
    root = Path(environment.get("XDG_DATA_HOME") or "")
    # The XDG specification has relative values ignored.
    return (root if root.is_absolute() else Path.home() / ".local" / "share") / "holdfast"


def default_store_url() -> str:
    """Return the URL of the default SQLite file in the user's data directory."""
    from holdfast.stores.open import absolute_url

    return absolute_url("sqlite:///holdfast.db", data_directory(os.environ))


LogLevel = Literal["debug", "info", "warning", "error"]
PORTS = "from 0 to 65535"
"""Valid port numbers, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`[server]`: where and how the gateway listens."""

    host: str = "127.0.0.1"
    """Address to listen on; other than loopback only with an API key."""
    port: Annotated[int, PORTS] = 8377
    """Port to listen on; 0 selects a free one."""
    drain_seconds: float | None = None
    """After SIGTERM: seconds to accept requests while `/readyz` fails; unset: 2 with PostgreSQL."""
    grace_seconds: float = 20.0
    """After draining: seconds in which running turns may finish before they are interrupted."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the API from a browser; none by default."""
    allowed_hosts: tuple[str, ...] = ()
    """Accepted Host headers besides loopback names, as long as no API key exists."""
    console: bool = True
    """Serve the web console at `/console`."""

    def __post_init__(self) -> None:
        if not self.host or not self.host.isprintable() or set(self.host) & set(" /"):
            raise InvalidSetting(f"server.host must be an address or a name, not {self.host!r}")
        if not 0 <= self.port <= 65535:
            raise InvalidSetting(f"server.port must be a number {PORTS}, not {self.port!r}")
        if self.grace_seconds < 0:
            raise InvalidSetting("server.grace_seconds must not be negative")
        if self.drain_seconds is not None and self.drain_seconds < 0:
            raise InvalidSetting("server.drain_seconds must not be negative")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """`[store]`: where everything is stored."""

    url: str = field(default_factory=default_store_url)
    """`sqlite:///file.db` (relative to this file), `sqlite:////absolute/path.db`,
    `postgresql://…` or `memory:`."""
    cache_bytes: int = 128 * 1024 * 1024
    """Bytes of memory for the contexts of recent sessions; 0 reads every context from the store."""

    def __post_init__(self) -> None:
        from holdfast.stores.open import check_url

        check_url(self.url)
        if self.cache_bytes < 0:
            raise InvalidSetting("store.cache_bytes must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetSettings:
    """`[sessions.reset]`: when a session rolls over; by default never."""

    mode: ResetMode = "none"
    """`none`, `idle` after a time without user activity, or `daily` at a time of day."""
    idle_minutes: float = 60.0
    """With `idle`: minutes without user activity; fractions are allowed."""
    at: str = "04:00"
    """With `daily`: time of day, as HH:MM."""
    timezone: str = "UTC"
    """With `daily`: IANA time zone of `at`."""
    rollover: Literal["soft", "hard"] | None = None
    """`soft` keeps everything, `hard` starts the next generation; unset: the mode's default."""
    triggers: tuple[str, ...] = ("/new", "/reset")
    """Messages that request a hard reset, in `holdfast chat` and channels only."""

    def __post_init__(self) -> None:
        if not self.idle_minutes > 0:
            raise InvalidSetting("sessions.reset.idle_minutes must be positive")
        if not all(trigger.strip() for trigger in self.triggers):
            raise InvalidSetting("sessions.reset.triggers must not contain an empty text")
        self.policy()

    def policy(self) -> ResetPolicy:
        """Return the section as a policy."""
        zone: tzinfo = UTC
        if self.timezone != "UTC":
            zone = _zone(self.timezone)
        try:
            at = time.fromisoformat(self.at)
        except ValueError as exc:
            raise InvalidSetting(
                f"sessions.reset.at must be a time of day as HH:MM, not {self.at!r}"
            ) from exc
        rollover: Rollover | None = self.rollover
        return ResetPolicy(
            mode=self.mode,
            idle_seconds=self.idle_minutes * 60,
            at=at.replace(tzinfo=None),
            zone=zone,
            rollover=rollover,
        )


def _zone(name: str) -> tzinfo:
    """Return a time zone by its IANA name; few settings name one, so it is imported here."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise InvalidSetting(f"sessions.reset.timezone: {name!r} is not an IANA time zone") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """`[limits]`: bounds per request and per tenant; zero means none."""

    header_bytes: int = 64 * 1024
    """Maximum size of a request's headers, including the request line."""
    body_bytes: int = 64 * 1024 * 1024
    """Maximum size of a request body."""
    body_bytes_in_flight: int = 64 * 1024 * 1024
    """Bytes of request bodies that the process holds at a time; at least `body_bytes`.

    A tenant or address has a quarter, and more only while a quarter stays free for others.
    """
    items: int = 20_000
    """Items or messages of one request."""
    connections_per_address: int = 1000
    """Open connections of one client address; 0 means no limit, for a proxy in front."""
    requests_per_minute: int = 0
    """Requests per minute that one tenant may send to each process; 0 means no limit."""
    waiting_turns: int = 0
    """Queued and running turns of one tenant, over all its sessions; 0 means no limit."""
    stored_bytes: int = 0
    """Bytes of items that one tenant may store, measured every few seconds; 0 means no limit."""

    def __post_init__(self) -> None:
        if self.header_bytes < 1024:
            raise InvalidSetting("limits.header_bytes must be at least 1024")
        if self.body_bytes < 1024:
            raise InvalidSetting("limits.body_bytes must be at least 1024")
        if self.items < 1:
            raise InvalidSetting("limits.items must be at least 1")
        for name in (
            "body_bytes_in_flight",
            "connections_per_address",
            "requests_per_minute",
            "waiting_turns",
            "stored_bytes",
        ):
            if getattr(self, name) < 0:
                raise InvalidSetting(f"limits.{name} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """`[log]`: events on standard error, with ids and without content."""

    level: LogLevel = "warning"
    """Lowest level that is written."""
    format: Literal["text", "json"] = "text"
    """One line of text or one JSON object per event."""
    areas: tuple[str, ...] = ()
    """Levels per area, such as `request=info`; an area is the first word of an event's name."""

    def __post_init__(self) -> None:
        for entry in self.areas:
            area, _, level = entry.partition("=")
            if area not in LOG_AREAS or level not in get_args(LogLevel):
                raise InvalidSetting(
                    f"log.areas: {entry!r} must be AREA=LEVEL with an area of "
                    f"{', '.join(LOG_AREAS)} and a level of {', '.join(get_args(LogLevel))}"
                )

    def area_levels(self) -> dict[str, str]:
        """Return the level of each area that has its own."""
        return {area: level for area, _, level in (entry.partition("=") for entry in self.areas)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """`[search]`: full-text search over everything that is stored."""

    enabled: bool = True
    """Whether what is stored is indexed; the index is three to six times as large as the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeSettings:
    """`[transcribe]`: voice messages of channels as text."""

    upstream: str = ""
    """Name of the `[[upstream]]` that has `POST /audio/transcriptions`; empty means off."""
    model: str = "whisper-1"
    """Model that transcribes."""
    seconds: float = 60.0
    """How long one recording may take, repeated attempts included."""

    def __post_init__(self) -> None:
        if not self.model:
            raise InvalidSetting("transcribe.model must not be empty")
        if not 0 < self.seconds <= 600:
            raise InvalidSetting("transcribe.seconds must be positive and at most 600")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelSettings:
    """`[otel]`: OpenTelemetry traces, one per turn; needs the extra `otel`."""

    endpoint: str = ""
    """OTLP/HTTP endpoint, such as `http://127.0.0.1:4318`; empty means off."""
    content: bool = False
    """Whether spans of model calls carry the messages, which may be personal data."""

    def __post_init__(self) -> None:
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise InvalidSetting(
                f"otel.endpoint must be http://… or https://…, not {self.endpoint!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """`[[key]]`: an API key from the environment, in addition to those in the store."""

    key_env: str
    """Environment variable with the key."""
    tenant: str = "default"
    """Tenant whose sessions the key may use."""
    admin: bool = False
    """Whether the key may read metrics and all tenants."""
    key: str = field(default="", repr=False)
    """The key itself, read from `key_env`; never written anywhere."""

    def __post_init__(self) -> None:
        check_variable("key.key_env", self.key_env)

    def filled(self, environment: Mapping[str, str], *, is_required: bool = True) -> "AccessKey":
        """Return the entry with its key from the environment."""
        key = environment.get(self.key_env, "")
        if not key and is_required:
            raise InvalidSetting(f"key.key_env: the environment variable {self.key_env} is not set")
        return replace(self, key=key)
