"""Who asks: API keys, the tenants they open, and the rules of a house without keys.

Once there is a key, in the store or in the configuration, every request needs one, also after the
last was revoked. Without keys the house is open to its own machine only, and to no web page.
"""

import hmac
import time
from collections.abc import Sequence

import msgspec

from holdfast.core.decisions.api_keys import NotAllowed, NotAuthenticated, hash_key
from holdfast.core.ids import DEFAULT_TENANT, Tenant
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.http.request.rate_limit import RequestLimit
from holdfast.http.server.types import Request
from holdfast.ports.store import Reader

REFRESH_SECONDS = 2.0
"""How long a key that was made or revoked in another process may go unnoticed here."""
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
MOST_HOSTS = 64
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
ADMIN_PATHS = frozenset({"/metrics"})


class Door(msgspec.Struct, frozen=True):
    """A key that the configuration names."""

    hash: bytes
    tenant: Tenant
    is_admin: bool


class Caller(msgspec.Struct, frozen=True):
    """Who asks."""

    tenant: Tenant
    is_admin: bool


_AT_HOME = Caller(DEFAULT_TENANT, True)
"""Everybody, in a house without keys."""
_PASSING_BY = Caller(DEFAULT_TENANT, False)
"""Who looks from outside whether the house stands."""


class Doorkeeper:
    """Lets requests in, or not."""

    def __init__(
        self,
        read: Reader,
        doors: Sequence[Door],
        allowed_hosts: Sequence[str],
        limit: RequestLimit,
    ) -> None:
        self._read = read
        self._limit = limit
        self._doors = tuple(doors)
        self._hosts = LOOPBACK_HOSTS | {host.lower() for host in allowed_hosts}
        self._good_hosts: set[bytes | None] = set()
        """Host headers that were looked into and found to name us."""
        self._known: dict[bytes, Caller] = {}
        self._is_locked = bool(doors)
        self._fresh_until = 0.0

    async def is_locked(self) -> bool:
        """Whether a key is needed."""
        if time.monotonic() >= self._fresh_until:
            await self._refresh()
        return self._is_locked

    async def admit(self, request: Request) -> None:
        """Find out who asks, and whether they may ask more; refuse who may not."""
        if request.began_at >= self._fresh_until:
            await self._refresh()
        caller = _AT_HOME
        if self._is_locked:
            caller = self._caller(request)
        elif request.by_name.get(b"host") not in self._good_hosts:
            self._check_host(request)
        request.tenant, request.is_admin = caller.tenant, caller.is_admin
        if self._limit.is_set and request.path not in OPEN_PATHS:
            self._limit.take(caller.tenant)

    def _caller(self, request: Request) -> Caller:
        if request.path in OPEN_PATHS:
            return _PASSING_BY
        caller = self._find(_presented(request))
        if caller is None:
            raise NotAuthenticated("a valid API key is needed: Authorization: Bearer …")
        if request.path in ADMIN_PATHS and not caller.is_admin:
            raise NotAllowed("this needs an admin key")
        return caller

    def _find(self, key: str | None) -> Caller | None:
        if key is None:
            return None
        digest = hash_key(key)
        for door in self._doors:
            if hmac.compare_digest(door.hash, digest):
                return Caller(door.tenant, door.is_admin)
        return self._known.get(digest)

    def _check_host(self, request: Request) -> None:
        """A web page that names us by another name is not our user."""
        host = (request.header(b"host") or "localhost").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self._hosts:
            raise NotAllowed(f"this server does not answer to the name {name!r}")
        if len(self._good_hosts) < MOST_HOSTS:
            self._good_hosts.add(request.by_name.get(b"host"))

    async def _refresh(self) -> None:
        self._fresh_until = time.monotonic() + REFRESH_SECONDS
        rows = await self._read.api_keys()
        self._is_locked = self._is_locked or bool(rows)
        self._known = {
            row.hash: Caller(row.tenant, bool(row.is_admin))
            for row in rows
            if row.revoked_at is None
        }

    def forget(self) -> None:
        """Look at the store again before the next request."""
        self._fresh_until = 0.0


def _presented(request: Request) -> str | None:
    header = request.header(b"authorization")
    if header is None:
        return None
    scheme, _, key = header.partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


DEFAULT_BODY_BYTES = 64 * 1024 * 1024


class HouseRules(msgspec.Struct, frozen=True, kw_only=True):
    """Who may come in, how much they may bring, and when their sessions roll over."""

    doors: tuple[Door, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    body_bytes: int = DEFAULT_BODY_BYTES
    requests_per_minute: int = 0
    reset: ResetPolicy = NEVER


OPEN_HOUSE = HouseRules()
"""No keys, no limits beyond the defaults: for the machine itself."""
