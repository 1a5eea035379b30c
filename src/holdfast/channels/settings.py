"""`[[channel]]`: one account on one chat platform."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from holdfast.core.errors import InvalidSetting
from holdfast.core.ids import read_key

Kind = Literal["telegram", "slack", "signal"]
Direct = Literal["pairing", "allow", "open", "off"]
Groups = Literal["mention", "always", "off"]
DmScope = Literal["main", "per-peer", "per-channel-peer", "per-account-channel-peer"]
ChannelOnBusy = Literal["steer", "enqueue", "reject", "interrupt", "rollback"]

DEFAULT_URLS: dict[str, str] = {
    "telegram": "https://api.telegram.org",
    "slack": "https://slack.com/api",
    "signal": "http://127.0.0.1:8080",
}
_NEEDED: dict[str, tuple[str, ...]] = {
    "telegram": ("token_env",),
    "slack": ("bot_token_env", "app_token_env"),
    "signal": ("account",),
}
"""Settings without which a platform cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSettings:
    """`[[channel]]`: a bot or account on a chat platform, and who may write to it."""

    name: str
    """Stable name: part of idempotency keys and of the outbox."""
    kind: Kind
    """The platform."""
    url: str = ""
    """Base URL of the platform's API; default: the real one."""
    token_env: str = ""
    """Environment variable with the bot token (Telegram)."""
    bot_token_env: str = ""
    """Environment variable with the bot token, `xoxb-…` (Slack)."""
    app_token_env: str = ""
    """Environment variable with the app-level token of socket mode, `xapp-…` (Slack)."""
    signing_secret_env: str = ""
    """Environment variable with the webhook's secret; on Slack the signing secret."""
    receive: Literal["poll", "webhook"] = "poll"
    """`poll` (on Slack: socket mode), or `webhook`: `POST /v1/channels/{name}/webhook`."""
    tenant: str = "default"
    """Tenant that owns the sessions."""
    agent: str = "main"
    """First part of session keys."""
    model: str = ""
    """Model that answers; empty: the demo model where no upstream is configured."""
    instructions: str = ""
    """Instructions of every turn."""
    tools: tuple[str, ...] = ()
    """Tools that the gateway runs for these turns."""
    direct: Direct = "pairing"
    """Who may write direct messages: pairing, allow, open or off."""
    allow: tuple[str, ...] = ()
    """Platform user ids that need no pairing."""
    groups: Groups = "mention"
    """Which messages of groups count: those that mention the bot, always, or off."""
    allow_groups: tuple[str, ...] = ()
    """Chats in which everybody counts."""
    approvers: tuple[str, ...] = ()
    """Platform user ids that may approve tool calls, beside the person who asked."""
    bots: tuple[str, ...] = ()
    """Bots that are answered, at most five turns without a human."""
    collect_seconds: float = 1.0
    """Messages of one sender within this time are one turn; albums wait twice as long."""
    media_bytes: int = 10_000_000
    """Bytes that the files of one turn may have together, in each direction; 0: no files."""
    outbox_hours: float = 24.0
    """How long a message is retried while the platform is away."""
    reply: Literal["stream", "whole"] = "stream"
    """`stream` edits the answer in place while it is written; `whole` sends it at the end."""
    notify: bool = False
    """Whether a streamed answer is sent as a new message at its end, which notifies."""
    on_busy: ChannelOnBusy = "steer"
    """What a message does while a turn runs; `steer` joins it at its next model call."""
    dm_scope: DmScope = "per-channel-peer"
    """Which direct chats share a session."""
    account: str = ""
    """Phone number of the account in signal-cli (Signal)."""
    token: str = field(default="", repr=False)
    """Bot token, read from the environment; never written anywhere."""
    app_token: str = field(default="", repr=False)
    """App-level token, read from the environment."""
    secret: str = field(default="", repr=False)
    """Secret of the webhook, read from the environment."""

    def __post_init__(self) -> None:
        read_key(f"agent:{self.agent}:{self.name}")
        if not self.name or any(character in self.name for character in "/:\x1f "):
            raise InvalidSetting("channel.name must be a word without '/', ':' and blanks")
        if self.kind not in get_args(Kind):
            raise InvalidSetting(f"channel.kind must be one of {', '.join(get_args(Kind))}")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise InvalidSetting(f"channel.url must be http:// or https://, not {self.url!r}")
        for name in ("collect_seconds", "media_bytes"):
            if getattr(self, name) < 0:
                raise InvalidSetting(f"channel.{name} must not be negative")
        if self.outbox_hours <= 0:
            raise InvalidSetting("channel.outbox_hours must be positive")
        if self.kind == "signal" and self.receive == "webhook":
            raise InvalidSetting(f"channel {self.name}: signal has no webhook; receive = 'poll'")
        if self.direct == "allow" and not self.allow:
            raise InvalidSetting(f"channel {self.name}: direct = 'allow' needs allow = [...]")

    @property
    def base_url(self) -> str:
        """Base URL of the platform's API, without a slash at its end."""
        return (self.url or DEFAULT_URLS[self.kind]).rstrip("/")

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that hold its secrets."""
        named = (
            self.token_env, self.bot_token_env, self.app_token_env, self.signing_secret_env,
        )  # fmt: skip
        return tuple(name for name in named if name)

    def filled(self, environment: Mapping[str, str], *, is_required: bool) -> "ChannelSettings":
        """Return the channel with its secrets from the environment."""
        for name in self._needed():
            if not getattr(self, name):
                raise InvalidSetting(f"channel {self.name}: {self.kind} needs {name}")
        missing = [name for name in self.variables if not environment.get(name)]
        if missing and is_required:
            raise InvalidSetting(
                f"channel {self.name}: the environment variable {missing[0]} is not set"
            )
        return replace(
            self,
            token=environment.get(self.token_env or self.bot_token_env, ""),
            app_token=environment.get(self.app_token_env, ""),
            secret=environment.get(self.signing_secret_env, ""),
        )

    def _needed(self) -> tuple[str, ...]:
        needed = _NEEDED[self.kind]
        if self.kind == "slack" and self.receive == "webhook":
            return ("bot_token_env", "signing_secret_env")
        return needed
