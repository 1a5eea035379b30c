"""Where the environment and the configuration file become values. Nobody else reads either."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.engine.settings import HealSettings, LaneSettings, StreamSettings
from holdfast.providers.settings import UpstreamApi, UpstreamSettings


def default_store_url() -> str:
    """Return the URL of a file in the user's data directory."""
    root = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return f"sqlite:///{Path(root) / 'holdfast' / 'holdfast.db'}"


def only_upstream(url: str, api: UpstreamApi) -> UpstreamSettings:
    """Return the one upstream that flags name; its key comes from the environment alone."""
    key = os.environ.get("HOLDFAST_UPSTREAM_KEY") or os.environ.get("OPENAI_API_KEY")
    return UpstreamSettings(url=url, api=api, key=key or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`[server]` of the configuration."""

    host: str = "127.0.0.1"
    """The address to listen on; beyond loopback only with an API key."""
    port: int = 8377
    """The port to listen on; 0 takes a free one."""
    grace_seconds: float = 20.0
    """How long running turns may finish when the server is asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set."""

    server: ServerSettings = field(default_factory=ServerSettings)
    store_url: str = field(default_factory=default_store_url)
    lanes: LaneSettings = field(default_factory=LaneSettings)
    streams: StreamSettings = field(default_factory=StreamSettings)
    heals: HealSettings = field(default_factory=HealSettings)
    upstreams: tuple[UpstreamSettings, ...] = ()
    """`[[upstream]]` of the configuration, in order; with none, the demo model answers."""
