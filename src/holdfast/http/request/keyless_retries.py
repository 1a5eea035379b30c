"""Retries of stored requests that name no session, recognised under narrow conditions.

An SDK marks its retry only with a count. Without a session, two people who send the same text look
alike, so a retry is attached only if exactly one earlier request can be meant: one with the same
body, API key, user agent and client address whose connection closed before its answer was
delivered. In doubt the request is new. This state is in memory only and lost with the process.
"""

import time
from collections import OrderedDict

from holdfast.core.ids import SessionId, TurnId
from holdfast.engine.turns.turn_service import TurnTicket
from holdfast.http.server.types import Request

RETRY_SECONDS = 15 * 60.0
MAX_REQUESTS = 4096
_Identity = tuple[str, bytes, bytes | None, bytes | None, str]
"""Tenant, hash of path and body, API key, user agent and client address."""


class KeylessRequest:
    """A stored request without a session, and the turn that it became."""

    __slots__ = ("_request", "accepted_at", "claimed", "session_id", "step", "turn_id")

    def __init__(self, request: Request, ticket: TurnTicket) -> None:
        self._request = request
        self.turn_id: TurnId = ticket.turn.id
        self.step = ticket.step
        self.session_id: SessionId = ticket.session.id
        self.accepted_at = time.monotonic()
        self.claimed: set[int] = set()
        """The retry counts that were attached."""

    def may_be_repeated(self, count: int) -> bool:
        """Whether a retry with this count may be a repeat of it."""
        request = self._request
        is_closed = request.disconnected or request.is_half_closed
        is_recent = time.monotonic() - self.accepted_at <= RETRY_SECONDS
        return is_closed and is_recent and not request.is_delivered and count not in self.claimed


class KeylessRequests:
    """The latest stored requests without a session, bounded in number."""

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._requests: OrderedDict[_Identity, list[KeylessRequest]] = OrderedDict()
        self._count = 0

    def add(self, request: Request, digest: bytes, ticket: TurnTicket) -> None:
        """Add an accepted request."""
        earlier = self._requests.setdefault(_identity(request, digest), [])
        earlier.append(KeylessRequest(request, ticket))
        self._count += 1
        while self._count > self._max_requests:
            _, oldest = self._requests.popitem(last=False)
            self._count -= len(oldest)

    def find(self, request: Request, digest: bytes, count: int) -> KeylessRequest | None:
        """Return the one request that a retry repeats, and claim the count for it."""
        earlier = self._requests.get(_identity(request, digest), ())
        candidates = [candidate for candidate in earlier if candidate.may_be_repeated(count)]
        if len(candidates) != 1:
            return None
        candidates[0].claimed.add(count)
        return candidates[0]


def _identity(request: Request, digest: bytes) -> _Identity:
    headers = request.by_name
    key, agent = headers.get(b"authorization"), headers.get(b"user-agent")
    return request.tenant, digest, key, agent, request.client_host
