"""Settings of upstreams: address, API, stored state, timeouts, and command-line agents."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from holdfast.core.errors import InvalidSetting

UpstreamApi = Literal["auto", "responses", "chat", "both", "claude-code", "codex", "acp"]
AGENT_APIS = frozenset({"claude-code", "codex", "acp"})
"""The APIs of command-line agents, which the gateway starts itself."""
StateMode = Literal["replay", "chain", "conversation"]
AgentPermissions = Literal["none", "read", "write"]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_variable(setting: str, name: str | None) -> None:
    """Raise for an invalid variable name without repeating it: it may be the key itself."""
    if name is not None and not _VARIABLE.fullmatch(name):
        raise InvalidSetting(
            f"{setting} is the name of an environment variable, not a key: "
            "letters, digits and _, no digit first"
        )


def proxy_for(url: str, environment: Mapping[str, str]) -> str | None:
    """Return the forward proxy of an upstream, as the usual variables name it; None for none.

    Lower-case names come first. A server on this machine is always reached directly.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    excluded = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if _is_loopback(host) or any(
        _is_excluded(host, parts.port, entry.strip()) for entry in excluded.split(",")
    ):
        return None
    for name in (f"{parts.scheme}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            proxy = environment.get(variable)
            if proxy:
                _check_proxy(variable, proxy)
                return proxy
    return None


def _check_proxy(variable: str, proxy: str) -> None:
    """Raise for an invalid proxy without repeating it: it may hold a password."""
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidSetting(f"{variable} must be http://host:port or https://host:port")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_excluded(host: str, port: int | None, entry: str) -> bool:
    """Return whether an entry of NO_PROXY means a host: a name, a domain, an address or `*`."""
    if entry == "*":
        return True
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        pass
    name, _, only_port = entry.lower().partition(":")
    if only_port and only_port != str(port):
        return False
    name = name.removeprefix("*").removeprefix(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def is_name(pattern: str) -> bool:
    """Return whether a pattern of `models` names exactly one model."""
    return not any(wildcard in pattern for wildcard in "*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """How long to wait for an upstream; each limit has its own error code."""

    connect_seconds: float = 10.0
    """Until a new connection is open, TLS included."""
    first_byte_seconds: float = 600.0
    """From the request to the first byte of its response."""
    chunk_seconds: float = 300.0
    """Between two chunks of a response."""

    def __post_init__(self) -> None:
        for name in ("connect_seconds", "first_byte_seconds", "chunk_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidSetting(f"upstream.timeouts.{name} must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRuntime:
    """What command-line agents get from the gateway's surroundings; not settable."""

    root: Path = Path()
    """The directory of all agents' sessions."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The gateway's environment, of which an agent gets what its settings name."""
    protected: tuple[Path, ...] = ()
    """Files that no agent may read: the store and the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """One `[[upstream]]` of the configuration; the first whose `models` match serves a request."""

    url: str = ""
    """Base URL of an OpenAI-compatible server, with its /v1; none for a command-line agent."""
    name: str = "upstream"
    """Its name in logs, metrics and the tags of what it remembers; no two may share one."""
    api: UpstreamApi = "auto"
    """The API it serves (`auto` asks it), or the command-line agent it is; requests are
    translated."""
    key_env: str | None = None
    """The environment variable that holds its key."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the model names it serves, as in a shell."""
    state: StateMode = "replay"
    """Whether history is sent whole, chained to the last response, or kept in a conversation."""
    verify_conversation: bool = True
    """With `conversation`: whether it is compared with the log before each turn."""
    context_tokens: int | None = None
    """The size of its models' context window, where it is known."""
    fallback: tuple[str, ...] = ()
    """Models to try, in order, where this server fails before its first output."""
    tools: tuple[str, ...] = ()
    """Tools of the gateway for every request: `session_status`, `mcp:NAME`."""
    strict_alternation: bool = False
    """Whether user and assistant messages must alternate without exception (Chat only)."""
    encrypted_reasoning: bool = True
    """Whether to request reasoning in the encrypted form that can be replayed."""
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    command: str = ""
    """The program of an agent; by default `claude` or `codex`."""
    args: tuple[str, ...] = ()
    """Arguments in front of those that the gateway gives an agent."""
    workdir: str = ""
    """The working directory of an agent, with `{session}` in it; empty: one for each session."""
    shared: bool = False
    """Whether all sessions of an agent share `workdir`; their turns run one after the other."""
    env: tuple[str, ...] = ()
    """Names of environment variables that an agent is given."""
    credentials: str = ""
    """The agent's credentials file; empty: the usual one in the user's home, if there is one."""
    permissions: AgentPermissions = "none"
    """The tools of an agent: none, reading in its directory, or everything in its sandbox."""
    sandbox: bool = False
    """Whether an agent runs in a bubblewrap sandbox; `permissions` need this or `run_as`."""
    run_as: str = ""
    """The system user, or range of user ids (`20000-29999`), that an agent runs as."""
    turn_seconds: float = 600.0
    """How long an agent may work on a turn; then its processes are killed."""
    idle_seconds: float = 300.0
    """How long the process of an agent stays after a turn; its session is kept."""
    max_processes: int = 4
    """Processes of an agent at a time; the one that is idle for longest makes room."""
    memory_bytes: int = 4 * 1024 * 1024 * 1024
    """Memory that the processes of one session of an agent may use."""
    key: str | None = field(default=None, repr=False)
    """The key itself, as read from `key_env`; never written anywhere."""
    proxy: str | None = field(default=None, repr=False)
    """The forward proxy to reach it through, from HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""
    runtime: AgentRuntime = field(default_factory=AgentRuntime, repr=False)
    """Where agents run, and what they may not read."""

    @property
    def is_agent(self) -> bool:
        """Whether the upstream is a command-line agent."""
        return self.api in AGENT_APIS

    @property
    def needs_wall(self) -> bool:
        """Whether an agent may have tools: those of an ACP agent cannot be taken away."""
        return self.permissions != "none" or self.api == "acp"

    def __post_init__(self) -> None:
        check_variable("upstream.key_env", self.key_env)
        if not self.name:
            raise InvalidSetting("upstream.name must not be empty")
        if not self.models:
            raise InvalidSetting(f"upstream {self.name}: models must not be empty")
        for field_name, choices in (("api", UpstreamApi), ("state", StateMode)):
            if getattr(self, field_name) not in get_args(choices):
                allowed = ", ".join(get_args(choices))
                raise InvalidSetting(f"upstream {self.name}: {field_name} is one of {allowed}")
        if self.context_tokens is not None and self.context_tokens < 1:
            raise InvalidSetting(f"upstream {self.name}: context_tokens must be positive")
        if self.is_agent:
            self._check_agent()
        else:
            self._check_server()

    def _check_server(self) -> None:
        if not self.url:
            raise InvalidSetting("upstream needs url")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidSetting(f"upstream.url must be http:// or https://, not {self.url!r}")
        if parts.username or parts.password:
            raise InvalidSetting("upstream.url must not hold a password; use key_env")
        if self.state != "replay" and self.api == "chat":
            raise InvalidSetting(
                f"upstream {self.name}: state needs api = 'auto', 'both' or 'responses'"
            )
        if self.strict_alternation and self.api == "responses":
            raise InvalidSetting(
                f"upstream {self.name}: strict_alternation needs api = 'auto', 'both' or 'chat'"
            )
        for name in ("command", "args", "workdir", "env", "sandbox", "run_as"):
            if getattr(self, name):
                raise InvalidSetting(f"upstream {self.name}: {name} is for command-line agents")

    def _check_agent(self) -> None:
        if not _DIRECTORY_NAME.fullmatch(self.name):
            raise InvalidSetting(
                f"upstream.name: {self.name!r} names a directory: letters, digits, - and _"
            )
        for name in ("url", "strict_alternation"):
            if getattr(self, name):
                raise InvalidSetting(f"upstream {self.name}: an agent has no {name}")
        if self.state != "replay":
            raise InvalidSetting(f"upstream {self.name}: an agent has no state")
        if self.tools:
            raise InvalidSetting(
                f"upstream {self.name}: an agent takes no tools of the gateway; remove tools"
            )
        if self.api == "acp" and not self.command:
            raise InvalidSetting(f"upstream {self.name}: api = 'acp' needs a command")
        for variable in self.env:
            check_variable("upstream.env", variable)
        for name in ("turn_seconds", "idle_seconds", "max_processes", "memory_bytes"):
            if not getattr(self, name) > 0:
                raise InvalidSetting(f"upstream {self.name}: {name} must be positive")
        self._check_isolation()

    def _check_isolation(self) -> None:
        if self.workdir and "{session}" not in self.workdir and not self.shared:
            raise InvalidSetting(
                f"upstream {self.name}: workdir needs {{session}} in it, or shared = true"
            )
        if self.needs_wall and not (self.sandbox or self.run_as):
            setting = "api = 'acp'" if self.api == "acp" else f"permissions = {self.permissions!r}"
            raise InvalidSetting(
                f"upstream {self.name}: {setting} needs sandbox = true or run_as, because the "
                "agent could read everything that the gateway can"
            )
