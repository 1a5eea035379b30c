"""`[[webhook]]`: a server that receives facts."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from holdfast.core.errors import InvalidSetting
from holdfast.core.ids import read_tenant
from holdfast.webhooks.signing import read_keys

EVENTS = (
    "turn.completed", "turn.failed", "turn.cancelled", "turn.interrupted", "turn.requires_action",
    "turn.queued", "turn.started", "turn.healed", "session.created", "session.reset",
    "session.restored", "session.rolled_over", "session.compacted", "items.quarantined",
    "schedule.paused",
)  # fmt: skip
"""Events that a webhook can receive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """`[[webhook]]`: a server that is sent signed facts."""

    name: str
    """Stable name: part of the outbox."""
    url: str
    """Where facts are posted; `http://` only with `private`."""
    events: tuple[str, ...]
    """Facts to send, such as `turn.completed` and `schedule.paused`."""
    secret_env: str
    """Environment variable with the secret (`whsec_` and base64); several, separated by blanks."""
    key_prefix: str = ""
    """Only facts of sessions whose key begins with this."""
    content: bool = False
    """Whether the texts of a turn's input and output are sent."""
    private: bool = False
    """Whether the server may have a private or loopback address."""
    outbox_hours: float = 24.0
    """How long a fact is retried while the server is away."""
    tenant: str = "default"
    """Tenant whose facts are sent."""
    secret: str = field(default="", repr=False)
    """Secrets, read from the environment."""

    def __post_init__(self) -> None:
        read_tenant(self.tenant)
        if not self.name or any(character in self.name for character in "/:\x1f "):
            raise InvalidSetting("webhook.name must be a word without '/', ':' and blanks")
        _check_url(self.name, self.url, is_private=self.private)
        unknown = [event for event in self.events if event not in EVENTS]
        if unknown or not self.events:
            raise InvalidSetting(
                f"webhook {self.name}: events must be some of {', '.join(EVENTS)}, "
                f"not {unknown[0] if unknown else 'empty'!r}"
            )
        if self.outbox_hours <= 0:
            raise InvalidSetting("webhook.outbox_hours must be positive")

    @property
    def channel(self) -> str:
        """The name that its messages have in the outbox; no channel can have it."""
        return f"webhook:{self.name}"

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that hold its secrets."""
        return (self.secret_env,)

    def filled(self, environment: Mapping[str, str], *, is_required: bool) -> "WebhookSettings":
        """Return the webhook with its secrets from the environment."""
        secret = environment.get(self.secret_env, "")
        if not secret and not is_required:
            return self
        if not secret:
            raise InvalidSetting(
                f"webhook {self.name}: the environment variable {self.secret_env} is not set"
            )
        try:
            read_keys(secret)
        except ValueError as exc:
            raise InvalidSetting(f"webhook {self.name}: {self.secret_env}: {exc}") from exc
        return replace(self, secret=secret)


def _check_url(name: str, url: str, *, is_private: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSetting(f"webhook {name}: url must be http:// or https://, not {url!r}")
    if parts.username is not None or parts.fragment:
        raise InvalidSetting(f"webhook {name}: url must have neither a password nor a fragment")
    if is_private:
        return
    if parts.scheme == "http":
        raise InvalidSetting(f"webhook {name}: url must be https:// unless private = true")
    try:
        is_public = ipaddress.ip_address(parts.hostname).is_global
    except ValueError:
        is_public = parts.hostname != "localhost"
    if not is_public:
        raise InvalidSetting(
            f"webhook {name}: url has the private address {parts.hostname}; set private = true"
        )
