"""Settings: the only code that reads the environment and the configuration file.

Flags beat the environment, the environment beats the file, the file beats the defaults.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from holdfast.channels.settings import ChannelSettings, Kind
from holdfast.core.errors import InvalidSetting
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.engine.settings import (
    ContextSettings,
    HealSettings,
    LaneSettings,
    RetentionSettings,
    StreamSettings,
    ToolSettings,
)
from holdfast.providers.settings import AgentRuntime, UpstreamSettings, proxy_for
from holdfast.schedules.settings import ScheduleSettings
from holdfast.settings.files import read_file
from holdfast.settings.reading import Sources
from holdfast.settings.sections import (
    AccessKey,
    LimitSettings,
    LogSettings,
    OtelSettings,
    ResetSettings,
    SearchSettings,
    ServerSettings,
    StoreSettings,
    TranscribeSettings,
    data_directory,
    default_store_url,
)
from holdfast.tools.settings import McpSettings
from holdfast.webhooks.settings import WebhookSettings

__all__ = [
    "AccessKey",
    "LimitSettings",
    "LogSettings",
    "OtelSettings",
    "ResetSettings",
    "SearchSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "TranscribeSettings",
    "config_path",
    "default_store_url",
    "load",
    "names_store",
]


COMMAND_VARIABLES = frozenset(
    {"HOLDFAST_CONFIG", "HOLDFAST_URL", "HOLDFAST_API_KEY", "HOLDFAST_UPSTREAM_KEY"}
)
"""Variables that are not fields of a section."""
DRAIN_SECONDS = 2.0
"""How long a replica drains by default, until load balancers have seen that it stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, validated."""

    server: ServerSettings = field(default_factory=ServerSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    lanes: LaneSettings = field(default_factory=LaneSettings)
    sessions: StreamSettings = field(default_factory=StreamSettings)
    heals: HealSettings = field(default_factory=HealSettings)
    context: ContextSettings = field(default_factory=ContextSettings)
    reset: ResetSettings = field(default_factory=ResetSettings)
    tools: ToolSettings = field(default_factory=ToolSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    log: LogSettings = field(default_factory=LogSettings)
    otel: OtelSettings = field(default_factory=OtelSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    transcribe: TranscribeSettings = field(default_factory=TranscribeSettings)
    upstreams: tuple[UpstreamSettings, ...] = ()
    """`[[upstream]]` tables in order; without any, the demo model answers."""
    keys: tuple[AccessKey, ...] = ()
    """`[[key]]` tables."""
    mcp: tuple[McpSettings, ...] = ()
    """`[[mcp]]` tables: servers whose tools the gateway runs."""
    channels: tuple[ChannelSettings, ...] = ()
    """`[[channel]]` tables."""
    schedules: tuple[ScheduleSettings, ...] = ()
    """`[[schedule]]` tables."""
    webhooks: tuple[WebhookSettings, ...] = ()
    """`[[webhook]]` tables: servers that are sent facts."""
    people: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`[people]`: one memory for one person over all channels."""

    @property
    def drain_seconds(self) -> float:
        """How long requests are accepted after SIGTERM: only PostgreSQL has other replicas."""
        if self.server.drain_seconds is not None:
            return self.server.drain_seconds
        return DRAIN_SECONDS if self.store.url.startswith("postgres") else 0.0

    @property
    def reset_policy(self) -> ResetPolicy:
        """The reset section as a policy."""
        return self.reset.policy()


def config_path(path: Path | None, environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the configuration file: `path`, else HOLDFAST_CONFIG, else None."""
    env = os.environ if environment is None else environment
    name = env.get("HOLDFAST_CONFIG")
    return Path(name) if path is None and name else path


def names_store(path: Path | None, environment: Mapping[str, str] | None = None) -> bool:
    """Whether a configuration file or the environment may select the store."""
    env = os.environ if environment is None else environment
    return config_path(path, env) is not None or "HOLDFAST_STORE_URL" in env


def load(
    path: Path | None = None,
    *,
    flags: Mapping[str, Mapping[str, object]] | None = None,
    environment: Mapping[str, str] | None = None,
    with_secrets: bool = True,
) -> Settings:
    """Return the effective settings; all invalid values are rejected together with their origins.

    Only a gateway needs its secrets: `with_secrets=False` accepts a `[[key]]` whose variable is
    not set, so that other commands can use the gateway's configuration.
    """
    env = os.environ if environment is None else environment
    path = config_path(path, env)
    sources = Sources(read_file(path) if path is not None else None, env, flags or {})
    settings = _read_sections(sources, path, env, with_secrets=with_secrets)
    sources.reject_unknown()
    sources.check(lambda: _check_scope(settings))
    sources.check(lambda: _check_transcribe(settings))
    sources.reject_unknown_variables(COMMAND_VARIABLES | _named_variables(settings))
    sources.raise_problems()
    return settings


def _read_sections(
    sources: Sources, path: Path | None, env: Mapping[str, str], *, with_secrets: bool
) -> Settings:
    store = sources.section("store", StoreSettings)
    runtime = _agent_runtime(store, path, env)
    return Settings(
        server=sources.section("server", ServerSettings),
        store=store,
        lanes=sources.section("lanes", LaneSettings),
        sessions=sources.section("sessions", StreamSettings),
        heals=sources.section("heals", HealSettings),
        context=sources.section("context", ContextSettings),
        reset=sources.section("sessions.reset", ResetSettings),
        tools=sources.section("tools", ToolSettings),
        limits=sources.section("limits", LimitSettings),
        retention=sources.section("retention", RetentionSettings),
        log=sources.section("log", LogSettings),
        otel=sources.section("otel", OtelSettings),
        search=sources.section("search", SearchSettings),
        transcribe=sources.section("transcribe", TranscribeSettings),
        upstreams=_upstreams(sources, env, runtime),
        keys=tuple(
            sources.tables("key", AccessKey, lambda key: key.filled(env, is_required=with_secrets))
        ),
        mcp=_mcp_servers(sources, env),
        channels=_channels(sources, env, is_required=with_secrets),
        schedules=_schedules(sources),
        webhooks=_webhooks(sources, env, is_required=with_secrets),
        people=_people(sources),
    )


def _named_variables(settings: Settings) -> set[str]:
    """Return the environment variables that the configuration names itself."""
    named = {key.key_env for key in settings.keys}
    named |= {upstream.key_env for upstream in settings.upstreams if upstream.key_env}
    named = named.union(*(server.variables for server in settings.mcp))
    named = named.union(*(channel.variables for channel in settings.channels))
    return named.union(*(webhook.variables for webhook in settings.webhooks))


def _check_scope(settings: Settings) -> None:
    """Refuse a wide scope of built-in tools for channels in which strangers can ask for it."""
    scope = settings.tools.scope
    for channel in settings.channels:
        is_shared = channel.groups != "off" or channel.direct == "open"
        has_builtin = any(not name.startswith("mcp:") for name in channel.tools)
        if scope != "key" and is_shared and has_builtin:
            raise InvalidSetting(
                f"tools.scope = {scope!r} would show other people's sessions in channel "
                f"{channel.name!r}: set its groups to 'off' and its direct to 'pairing' or "
                "'allow', or remove its built-in tools"
            )


def _check_transcribe(settings: Settings) -> None:
    """Refuse an upstream for voice messages that does not exist or cannot have the endpoint."""
    name = settings.transcribe.upstream
    servers = [upstream.name for upstream in settings.upstreams if not upstream.is_agent]
    if name and name not in servers:
        known = ", ".join(map(repr, servers)) or "there is none"
        raise InvalidSetting(
            f"transcribe.upstream: no [[upstream]] with a url is named {name!r} ({known})"
        )


def _people(sources: Sources) -> Mapping[str, tuple[str, ...]]:
    """Return the accounts of people; each account belongs to one of them."""
    owners: dict[str, str] = {}

    def check(person: str, accounts: tuple[str, ...]) -> None:
        for account in accounts:
            platform, _, number = account.partition(":")
            if platform not in get_args(Kind) or not number:
                raise InvalidSetting(
                    f"{account!r} is not an account such as 'telegram:123'; platforms are "
                    f"{', '.join(get_args(Kind))}"
                )
            if owners.setdefault(account, person) != person:
                raise InvalidSetting(f"{account!r} also belongs to {owners[account]!r}")

    return sources.lists("people", check)


def _unique_names(kind: str) -> Callable[..., None]:
    """Return a check that refuses the second table of one name (and tenant)."""
    seen: set[tuple[str, ...]] = set()

    def check(name: str, *tenant: str) -> None:
        if (name, *tenant) in seen:
            raise InvalidSetting(
                f"{kind}.name: {name!r} is used by another [[{kind}]]; names must be unique"
            )
        seen.add((name, *tenant))

    return check


def _mcp_servers(sources: Sources, env: Mapping[str, str]) -> tuple[McpSettings, ...]:
    """Return the MCP servers; each tenant may use a name once."""
    check_unique = _unique_names("mcp")

    def finish(server: McpSettings) -> McpSettings:
        check_unique(server.name, server.tenant)
        return server.filled(env)

    return tuple(sources.tables("mcp", McpSettings, finish))


def _channels(
    sources: Sources, env: Mapping[str, str], *, is_required: bool
) -> tuple[ChannelSettings, ...]:
    """Return the channels, with their secrets; two of one name would share an outbox."""
    check_unique = _unique_names("channel")
    tokens: dict[tuple[str, str], str] = {}

    def finish(channel: ChannelSettings) -> ChannelSettings:
        check_unique(channel.name)
        filled = channel.filled(env, is_required=is_required)
        other = tokens.setdefault((channel.kind, filled.token), channel.name)
        if filled.token and other != channel.name:
            raise InvalidSetting(
                f"channel {channel.name}: channel {other!r} has the same token; two receivers of "
                "one bot take each other's messages"
            )
        return filled

    return tuple(sources.tables("channel", ChannelSettings, finish))


def _schedules(sources: Sources) -> tuple[ScheduleSettings, ...]:
    """Return the schedules; each tenant may use a name once."""
    check_unique = _unique_names("schedule")

    def finish(schedule: ScheduleSettings) -> ScheduleSettings:
        check_unique(schedule.name, schedule.tenant)
        return schedule

    return tuple(sources.tables("schedule", ScheduleSettings, finish))


def _webhooks(
    sources: Sources, env: Mapping[str, str], *, is_required: bool
) -> tuple[WebhookSettings, ...]:
    """Return the webhooks, with their secrets; two of one name would share an outbox."""
    check_unique = _unique_names("webhook")

    def finish(webhook: WebhookSettings) -> WebhookSettings:
        check_unique(webhook.name)
        return webhook.filled(env, is_required=is_required)

    return tuple(sources.tables("webhook", WebhookSettings, finish))


def _agent_runtime(
    store: StoreSettings, config: Path | None, env: Mapping[str, str]
) -> AgentRuntime:
    """Return what command-line agents get from the gateway's surroundings."""
    from holdfast.stores.open import sqlite_path

    protected = [config.absolute()] if config is not None else []
    if store.url.startswith("sqlite:"):
        protected.append(sqlite_path(store.url).absolute())
    return AgentRuntime(
        root=data_directory(env) / "agents", environment=env, protected=tuple(protected)
    )


def _upstreams(
    sources: Sources, env: Mapping[str, str], runtime: AgentRuntime
) -> tuple[UpstreamSettings, ...]:
    """Return the upstreams: the one that flags or environment give, else those of the file."""
    default_key = env.get("HOLDFAST_UPSTREAM_KEY") or env.get("OPENAI_API_KEY") or None
    check_unique = _unique_names("upstream")

    def finish(upstream: UpstreamSettings) -> UpstreamSettings:
        check_unique(upstream.name)
        return upstream

    upstreams = sources.tables("upstream", UpstreamSettings, finish)
    override = sources.overridden("upstream", UpstreamSettings, needs="url")
    if override is not None:
        return (replace(override, key=default_key, proxy=proxy_for(override.url, env)),)
    return tuple(
        replace(upstream, runtime=runtime)
        if upstream.is_agent
        else replace(
            upstream,
            key=_upstream_key(upstream, env, default_key),
            proxy=proxy_for(upstream.url, env),
        )
        for upstream in upstreams
    )


def _upstream_key(
    upstream: UpstreamSettings, env: Mapping[str, str], default_key: str | None
) -> str | None:
    return env.get(upstream.key_env) or None if upstream.key_env else default_key
