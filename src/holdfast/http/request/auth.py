"""Authentication: API keys, their tenants, rate limits, and the rules while no key exists.

Once a key exists, in the store or in the configuration, every request needs one, even after the
last key was revoked. Without keys only this machine is served, and no web page of another site.
"""

import asyncio
import hmac
import re
import time
from contextlib import suppress

import msgspec

from holdfast.core.decisions.api_keys import NotAllowed, NotAuthenticated, hash_key
from holdfast.core.errors import InvalidInput, StoreError
from holdfast.core.ids import DEFAULT_TENANT, Tenant
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.engine.logging import log
from holdfast.http.server.cors import check_origin
from holdfast.http.server.errors import RateLimited
from holdfast.http.server.types import Request
from holdfast.ports.store import ApiKeyReader

REFRESH_SECONDS = 2.0
"""Maximum age of the cached keys, and so the delay until changes elsewhere take effect."""
REFRESH_WAIT_SECONDS = 3.0
"""How long a request waits for newer keys than those that are known."""
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
MAX_KNOWN_HOSTS = 64
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_PATHS_WITHOUT_KEY = OPEN_PATHS | {"/"}  # the root leads a browser to the console
CONSOLE_PATH = "/console"
"""The console's static files, which need no key."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:@/\[\]\s]+)(?::[0-9]{1,5})?")
"""A Host header: a name or bracketed IPv6 address and a port; no user, no path."""
_WEBHOOK = re.compile(r"/v1/channels/[^/]+/webhook")
ADMIN_PATHS = frozenset({"/metrics"})
DEFAULT_MAX_ITEMS = 20_000
DEFAULT_BODY_BYTES = 64 * 1024 * 1024


class ConfiguredKey(msgspec.Struct, frozen=True):
    """An API key from the configuration."""

    hash: bytes
    tenant: Tenant
    is_admin: bool


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of the HTTP API."""

    keys: tuple[ConfiguredKey, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    body_bytes: int = DEFAULT_BODY_BYTES
    body_bytes_in_flight: int = DEFAULT_BODY_BYTES
    items: int = DEFAULT_MAX_ITEMS
    requests_per_minute: int = 0
    reset: ResetPolicy = NEVER
    has_search: bool = True


DEFAULT_CONFIG = HttpConfig()
"""No keys, default limits: for this machine only."""


class Caller(msgspec.Struct, frozen=True):
    """The authenticated caller."""

    tenant: Tenant
    is_admin: bool
    id: str = ""
    """The id of the API key; empty without one."""


_LOCAL_ADMIN = Caller(DEFAULT_TENANT, True)
"""Any caller while no key exists."""
_HEALTH_CHECK = Caller(DEFAULT_TENANT, False)
"""Health-check caller."""


class RateLimiter:
    """Limit requests per minute and tenant in this process, by a token bucket per tenant."""

    def __init__(self, requests_per_minute: int) -> None:
        self._size = requests_per_minute
        self.is_set = requests_per_minute > 0
        self._buckets: dict[Tenant, tuple[float, float]] = {}

    def consume(self, tenant: Tenant) -> None:
        """Count a request, or raise `RateLimited` with the time until the next one is allowed."""
        now = time.monotonic()
        tokens, updated_at = self._buckets.get(tenant, (float(self._size), now))
        tokens = min(float(self._size), tokens + (now - updated_at) * self._size / 60.0)
        if tokens < 1.0:
            self._buckets[tenant] = (tokens, now)
            seconds = (1.0 - tokens) * 60.0 / self._size
            raise RateLimited(f"at most {self._size} requests per minute are allowed", seconds)
        self._buckets[tenant] = (tokens - 1.0, now)


class Authenticator:
    """Identify the caller of each request, or reject the request."""

    def __init__(
        self,
        read: ApiKeyReader,
        config: HttpConfig,
        limiter: RateLimiter,
    ) -> None:
        self._read = read
        self._limiter = limiter
        self._configured_keys = config.keys
        self._origins = config.cors_origins
        self._hosts = LOOPBACK_HOSTS | {host.lower() for host in config.allowed_hosts}
        self._accepted_hosts: set[bytes | None] = set()
        """Host header values that were checked and accepted."""
        self._callers: dict[bytes, Caller] = {}
        self._requires_key = bool(config.keys)
        self._is_loaded = False
        self._fresh_until = 0.0
        self._version = 0
        self._invalidated = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Read the keys for the first time; call this before the server accepts connections."""
        await self._refresh()

    async def requires_key(self) -> bool:
        """Return whether requests need a key."""
        if time.monotonic() >= self._fresh_until:
            await self._refresh()
        return self._requires_key

    async def authenticate(self, request: Request) -> None:
        """Set the request's tenant; reject it without a valid key or beyond the rate limit."""
        if b"host" not in request.by_name or len(request.by_name) != len(request.headers):
            _check_single_headers(request)
        if _WEBHOOK.fullmatch(request.path) and request.method == "POST":
            # The platform authenticates with a secret or signature, which the channel checks.
            request.tenant, request.is_admin = DEFAULT_TENANT, False
            return
        is_open = request.path in _PATHS_WITHOUT_KEY or request.path.startswith(CONSOLE_PATH)
        # Open paths need no keys: they must be answered even if the store is down.
        if request.started_at >= self._fresh_until and not is_open:
            await self._refresh()
        caller = _HEALTH_CHECK if is_open else _LOCAL_ADMIN
        if self._requires_key:
            caller = self._caller(request)
        else:
            if request.by_name.get(b"host") not in self._accepted_hosts:
                self._check_host(request)
            if request.method not in SAFE_METHODS and b"origin" in request.by_name:
                # Without keys, the address alone would let any web page act as the user.
                check_origin(request, self._origins)
        request.tenant, request.is_admin = caller.tenant, caller.is_admin
        request.sender = caller.id
        if self._limiter.is_set and not is_open:
            self._limiter.consume(caller.tenant)

    async def until_revoked(self, request: Request) -> None:
        """Return when the request's key is no longer valid; check it at every refresh."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._invalidated.wait()
            if time.monotonic() >= self._fresh_until:
                await self._refresh()
            if not self._requires_key:
                continue
            try:
                self._caller(request)
            except NotAuthenticated:
                return

    def _caller(self, request: Request) -> Caller:
        if request.path in _PATHS_WITHOUT_KEY or request.path.startswith(CONSOLE_PATH):
            return _HEALTH_CHECK
        token = _bearer_token(request)
        caller = self._find(token)
        if caller is None and token is not None:
            raise NotAuthenticated("this API key is not valid")
        if caller is None:
            raise NotAuthenticated("an API key is needed: Authorization: Bearer …")
        if request.path in ADMIN_PATHS and not caller.is_admin:
            raise NotAllowed("this path needs an admin key")
        return caller

    def _find(self, token: str | None) -> Caller | None:
        if token is None:
            return None
        digest = hash_key(token)
        for key in self._configured_keys:
            if hmac.compare_digest(key.hash, digest):
                return Caller(key.tenant, key.is_admin, f"env_{key.hash.hex()[:16]}")
        return self._callers.get(digest)

    def _check_host(self, request: Request) -> None:
        """Reject unknown Host headers (DNS rebinding)."""
        raw = request.header(b"host")
        host = "localhost" if raw is None else raw.lower()
        match = _HOST.fullmatch(host)
        if match is None or match[1] not in self._hosts:
            raise NotAllowed(f"the host {host[:128]!r} is not allowed; see server.allowed_hosts")
        if len(self._accepted_hosts) < MAX_KNOWN_HOSTS:
            self._accepted_hosts.add(request.by_name.get(b"host"))

    async def _refresh(self) -> None:
        """Read the keys; all requests that find them stale wait for one read.

        Only a successful read marks the keys as loaded. If a later read fails, the last known keys
        stay in force; before the first successful read nobody is admitted.
        """
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._read_keys(), name="holdfast-api-keys")
        refreshing = self._refreshing
        try:
            # Known keys do not wait for a store that hangs.
            async with asyncio.timeout(REFRESH_WAIT_SECONDS if self._is_loaded else None):
                # Shielded: a caller that disconnects must not cancel the read for the others.
                await asyncio.shield(refreshing)
        except TimeoutError:
            self._fresh_until = time.monotonic() + REFRESH_SECONDS
        except StoreError as exc:
            if not self._is_loaded:
                raise
            self._fresh_until = time.monotonic() + REFRESH_SECONDS
            log.failed("store.api_keys_not_read", exc, reason=exc.message)
        finally:
            if refreshing.done() and self._refreshing is refreshing:
                self._refreshing = None

    async def _read_keys(self) -> None:
        started_at, version = time.monotonic(), self._version
        rows = await self._read.api_keys()
        if version != self._version:
            # The keys changed while they were read: a newer read replaces this one.
            await self._read_keys()
            return
        self._requires_key = self._requires_key or bool(rows)
        self._callers = {
            row.hash: Caller(row.tenant, bool(row.is_admin), row.id)
            for row in rows
            if row.revoked_at is None
        }
        self._is_loaded = True
        self._fresh_until = started_at + REFRESH_SECONDS

    def invalidate(self) -> None:
        """Read the keys from the store again before the next request."""
        self._version += 1
        self._fresh_until = 0.0
        invalidated, self._invalidated = self._invalidated, asyncio.Event()
        invalidated.set()


def require_admin(request: Request) -> None:
    """Reject a caller whose key is not an admin key."""
    if not request.is_admin:
        raise NotAllowed("this path needs an admin key")


def _check_single_headers(request: Request) -> None:
    """Reject HTTP/1.1 without a Host header, and duplicates on which servers would disagree."""
    for name in (b"host", b"authorization"):
        if len(request.raw_headers(name)) > 1:
            raise InvalidInput(f"{name.decode()} was sent more than once")
    if b"host" not in request.by_name and not request.is_http_1_0:
        raise InvalidInput("an HTTP/1.1 request needs a Host header")


def _bearer_token(request: Request) -> str | None:
    header = request.header(b"authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None
