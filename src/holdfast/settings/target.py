"""Which gateway a command talks to: a flag, the environment, or the configuration's server."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from holdfast.core.errors import InvalidSetting
from holdfast.settings import Settings
from holdfast.settings.sections import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayTarget:
    """A gateway's URL, without /v1, and the API key for it."""

    url: str
    key: str | None = field(default=None, repr=False)


def find_target(
    url: str | None, settings: Settings, environment: Mapping[str, str] | None = None
) -> GatewayTarget:
    """Return the gateway of `url`, else of HOLDFAST_URL, else of `settings.server`."""
    env = os.environ if environment is None else environment
    origin = "--url" if url else "HOLDFAST_URL"
    address = url or env.get("HOLDFAST_URL") or server_url(settings.server)
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSetting(f"{origin} must be http://… or https://…, not {address!r}")
    try:
        _ = parts.port
    except ValueError as exc:
        raise InvalidSetting(f"{origin}: {exc}") from exc
    if parts.username or parts.password:
        raise InvalidSetting(f"{origin} must not contain a password; use HOLDFAST_API_KEY")
    return GatewayTarget(
        url=address.rstrip("/").removesuffix("/v1"), key=env.get("HOLDFAST_API_KEY") or None
    )


def server_url(server: ServerSettings) -> str:
    """Return the URL at which a client on this machine reaches a configured server."""
    if server.port == 0:
        raise InvalidSetting("server.port = 0 names no gateway: select one with --url")
    host = server.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if address.is_unspecified:
            address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
        host = f"[{address}]" if address.version == 6 else str(address)
    return f"http://{host}:{server.port}"
