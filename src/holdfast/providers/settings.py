"""Settings of upstreams: address, API, stored state and timeouts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Literal, get_args
from urllib.parse import urlsplit

from holdfast.core.errors import InvalidSetting

UpstreamApi = Literal["responses", "chat"]
StateMode = Literal["replay", "chain", "conversation"]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    """How long to wait for an upstream; each limit has an error code of its own."""

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
class UpstreamSettings:
    """One `[[upstream]]` of the configuration; the first whose `models` match serves a request."""

    url: str
    """Base URL of an OpenAI-compatible server, with its /v1."""
    name: str = "upstream"
    """Its name in logs, metrics and the tags of what it remembers; no two may share one."""
    api: UpstreamApi = "responses"
    """The API it serves; requests in the other one are translated."""
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
    strict_alternation: bool = False
    """Whether user and assistant messages must alternate without exception (Chat only)."""
    encrypted_reasoning: bool = True
    """Whether to request reasoning in the encrypted form that can be replayed."""
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    key: str | None = field(default=None, repr=False)
    """The key itself, as read from `key_env`; never written anywhere."""
    proxy: str | None = field(default=None, repr=False)
    """The forward proxy to reach it through, from HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidSetting(f"upstream.url must be http:// or https://, not {self.url!r}")
        if parts.username or parts.password:
            raise InvalidSetting("upstream.url must not hold a password; use key_env")
        check_variable("upstream.key_env", self.key_env)
        if not self.name:
            raise InvalidSetting("upstream.name must not be empty")
        if not self.models:
            raise InvalidSetting(f"upstream {self.name}: models must not be empty")
        for field_name, choices in (("api", UpstreamApi), ("state", StateMode)):
            if getattr(self, field_name) not in get_args(choices):
                allowed = ", ".join(get_args(choices))
                raise InvalidSetting(f"upstream {self.name}: {field_name} is one of {allowed}")
        if self.state != "replay" and self.api != "responses":
            raise InvalidSetting(f"upstream {self.name}: state needs api = 'responses'")
        if self.strict_alternation and self.api != "chat":
            raise InvalidSetting(f"upstream {self.name}: strict_alternation needs api = 'chat'")
        if self.context_tokens is not None and self.context_tokens < 1:
            raise InvalidSetting(f"upstream {self.name}: context_tokens must be positive")
