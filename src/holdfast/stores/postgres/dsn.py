"""Parse the URL of a database, as SQLAlchemy and libpq write it, and its connection options.

Secrets stay in `dsn`; text for people comes from `shown`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from holdfast.core.errors import InvalidSetting

ALLOW_ASYNC_COMMIT = "holdfast_allow_async_commit"
"""`?holdfast_allow_async_commit=true`: start even if the database may lose acknowledged commits."""

# Options of libpq that are not settings of the server.
_OF_THE_CLIENT = frozenset(
    {"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
     "tcp_user_timeout", "channel_binding", "gssencmode", "requiressl", "sslcompression",
     "require_auth", "load_balance_hosts", "client_encoding"}
)  # fmt: skip
_OF_THE_CONNECTION = frozenset(
    {"host", "port", "dbname", "database", "user", "password", "passfile", "service",
     "servicefile", "sslmode", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl",
     "sslnegotiation", "ssl_min_protocol_version", "ssl_max_protocol_version",
     "target_session_attrs", "krbsrvname", "gsslib", "options"}
)  # fmt: skip
_SEVERAL = frozenset({"host", "port"})
_STANDBYS = frozenset({"standby", "prefer-standby", "read-only"})
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True,
             "false": False, "0": False, "no": False, "off": False}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTarget:
    """A database and the options of its URL."""

    dsn: str = field(repr=False)
    shown: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the server in the URL; `dsn` does not have them."""
    connect_seconds: float
    patient_seconds: float = 0.0
    """`connect_timeout`, if the URL has it."""
    allows_async_commit: bool
    prefers_standby: bool = False
    """Whether the URL asks for a server that may refuse writes."""


def read_target(url: str, *, connect_seconds: float = 5.0) -> PostgresTarget:
    """Return the database that `url` names; errors contain no secrets."""
    try:
        parts = urlsplit(url)
        settings = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise InvalidSetting("the store url is not a valid postgresql:// URL") from exc
    kept: dict[str, str] = {}
    server_settings: dict[str, str] = {}
    allows_async_commit = False
    for name, value in settings:
        if name == ALLOW_ASYNC_COMMIT:
            allows_async_commit = _boolean(name, value)
        elif name == "connect_timeout":
            connect_seconds = _seconds(name, value, connect_seconds)
        elif name in _SEVERAL and name in kept:
            kept[name] += f",{value}"
        elif name in _OF_THE_CONNECTION and value:
            kept[name] = value
        elif name not in _OF_THE_CLIENT and value:
            server_settings[name] = value
    _check_ports(parts.netloc, kept.get("port", ""))
    where = unquote(parts.netloc.rpartition("@")[2]) or kept.get("host") or "the local socket"
    if "," in where:
        # Of several servers one is the primary: a standby would refuse every turn.
        kept.setdefault("target_session_attrs", "primary")
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(kept, quote_via=quote), ""))
    database = unquote(parts.path.removeprefix("/")) or kept.get("dbname") or "of the user"
    return PostgresTarget(
        dsn=dsn,
        shown=f"database {database} at {where}",
        settings=server_settings,
        connect_seconds=connect_seconds,
        patient_seconds=connect_seconds if "connect_timeout" in dict(settings) else 0.0,
        allows_async_commit=allows_async_commit,
        prefers_standby=kept.get("target_session_attrs") in _STANDBYS,
    )


def _check_ports(netloc: str, listed: str) -> None:
    """Reject anything that is not a port; a socket would wrap a number that is too large.

    Other text is not shown: it may be part of a password that was not escaped.
    """
    hosts = netloc.rpartition("@")[2].split(",")
    written = [host.rpartition("]")[2].rpartition(":")[2] for host in hosts if ":" in host]
    for port in filter(None, [*written, *listed.split(",")]):
        if not (port.isascii() and port.isdecimal()):
            raise InvalidSetting("the store url names a port that is no number")
        if not 1 <= int(port) <= 65535:
            raise InvalidSetting(f"the store url has a port from 1 to 65535, not {port}")


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in _BOOLEANS:
        raise InvalidSetting(f"{name} in the store url must be true or false, not {value!r}")
    return _BOOLEANS[value.lower()]


def _seconds(name: str, value: str, default: float) -> float:
    try:
        seconds = float(value)
    except ValueError as exc:
        raise InvalidSetting(
            f"{name} in the store url is a number of seconds, not {value!r}"
        ) from exc
    # For libpq, zero means no limit; all our waits are bounded.
    return seconds if seconds > 0 else default
