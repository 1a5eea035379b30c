"""Where the environment and the configuration file become values. Nobody else reads either.

Flags beat the environment, the environment beats the file, the file beats the defaults.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.core.errors import InvalidSetting
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.engine.settings import (
    ContextSettings,
    HealSettings,
    LaneSettings,
    RetentionSettings,
    StreamSettings,
)
from holdfast.providers.settings import UpstreamSettings, proxy_for
from holdfast.settings.files import read_file
from holdfast.settings.reading import Sources
from holdfast.settings.sections import (
    AccessKey,
    LimitSettings,
    LogSettings,
    ResetSettings,
    ServerSettings,
    StoreSettings,
    default_store_url,
)

__all__ = [
    "AccessKey",
    "LimitSettings",
    "LogSettings",
    "ResetSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "default_store_url",
    "load",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set, checked."""

    server: ServerSettings = field(default_factory=ServerSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    lanes: LaneSettings = field(default_factory=LaneSettings)
    sessions: StreamSettings = field(default_factory=StreamSettings)
    heals: HealSettings = field(default_factory=HealSettings)
    context: ContextSettings = field(default_factory=ContextSettings)
    reset: ResetSettings = field(default_factory=ResetSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    log: LogSettings = field(default_factory=LogSettings)
    upstreams: tuple[UpstreamSettings, ...] = ()
    """`[[upstream]]` of the configuration, in order; with none, the demo model answers."""
    keys: tuple[AccessKey, ...] = ()
    """`[[key]]` of the configuration."""

    @property
    def reset_policy(self) -> ResetPolicy:
        """The reset section, as the kernel judges by it."""
        return self.reset.policy()


def load(
    path: Path | None = None,
    *,
    flags: Mapping[str, Mapping[str, object]] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Return the effective settings; a value that cannot be is refused with its place."""
    env = os.environ if environment is None else environment
    if path is None and env.get("HOLDFAST_CONFIG"):
        path = Path(env["HOLDFAST_CONFIG"])
    sources = Sources(read_file(path) if path is not None else None, env, flags or {})
    settings = Settings(
        server=sources.section("server", ServerSettings),
        store=sources.section("store", StoreSettings),
        lanes=sources.section("lanes", LaneSettings),
        sessions=sources.section("sessions", StreamSettings),
        heals=sources.section("heals", HealSettings),
        context=sources.section("context", ContextSettings),
        reset=sources.section("sessions.reset", ResetSettings),
        limits=sources.section("limits", LimitSettings),
        retention=sources.section("retention", RetentionSettings),
        log=sources.section("log", LogSettings),
        upstreams=_upstreams(sources, env),
        keys=tuple(sources.tables("key", AccessKey, lambda key: key.filled(env))),
    )
    sources.refuse_unknown()
    return settings


def _upstreams(sources: Sources, env: Mapping[str, str]) -> tuple[UpstreamSettings, ...]:
    """Return the servers behind us: the one that flags or environment name, or the file's."""
    default_key = env.get("HOLDFAST_UPSTREAM_KEY") or env.get("OPENAI_API_KEY") or None
    taken: set[str] = set()

    def named_alone(one: UpstreamSettings) -> UpstreamSettings:
        if one.name in taken:
            raise InvalidSetting(
                f"upstream.name: {one.name!r} is another [[upstream]]; give each a name of its own"
            )
        taken.add(one.name)
        return one

    listed = sources.tables("upstream", UpstreamSettings, named_alone)
    only = sources.overridden("upstream", UpstreamSettings, needs="url")
    if only is not None:
        return (replace(only, key=default_key, proxy=proxy_for(only.url, env)),)
    return tuple(
        replace(
            one,
            key=env.get(one.key_env) or None if one.key_env else default_key,
            proxy=proxy_for(one.url, env),
        )
        for one in listed
    )
