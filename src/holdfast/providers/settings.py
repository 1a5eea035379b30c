"""What can be set about the servers behind us: who they are, what they keep, how long we wait."""

import re
from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import urlsplit

from holdfast.core.errors import InvalidSetting

UpstreamApi = Literal["responses", "chat"]
StateMode = Literal["replay", "chain", "conversation"]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_variable(setting: str, name: str | None) -> None:
    """Refuse what cannot name a variable; it may be the key itself, so it is not repeated."""
    if name is not None and not _VARIABLE.fullmatch(name):
        raise InvalidSetting(
            f"{setting} is the name of an environment variable, not a key: "
            "letters, digits and _, no digit first"
        )


def is_name(pattern: str) -> bool:
    """Return whether a pattern of `models` is the name of one model."""
    return not any(sign in pattern for sign in "*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """How long an upstream may keep us waiting; each limit is a failure of its own."""

    connect_seconds: float = 10.0
    """Until a new connection is established, including TLS."""
    first_byte_seconds: float = 600.0
    """From the request to the first byte of its answer; a whole answer may take this long."""
    chunk_seconds: float = 300.0
    """Between two pieces of an answer."""

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
    """Its unique name in logs, metrics and the tags of provider state."""
    api: UpstreamApi = "responses"
    """The API it speaks; requests in the other one are translated."""
    key_env: str | None = None
    """The environment variable that holds its key."""
    models: tuple[str, ...] = ("*",)
    """Shell-style patterns of the model names it serves."""
    state: StateMode = "replay"
    """Send the whole history, or only what is new: chained, or in a conversation."""
    verify_conversation: bool = True
    """With `conversation`: compare it with the log before each turn."""
    context_tokens: int | None = None
    """The size of its models' context window, if known."""
    fallback: tuple[str, ...] = ()
    """Models that are tried, in order, if this server fails before its first token."""
    strict_alternation: bool = False
    """Whether its models require user and assistant to alternate strictly (Chat only)."""
    encrypted_reasoning: bool = True
    """Whether to request encrypted reasoning, which can be sent back later."""
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    key: str | None = field(default=None, repr=False)
    """The key itself, as read from `key_env`; never written anywhere."""

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
