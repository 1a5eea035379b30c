"""API keys: who sends a request, and for which tenant. Keys are stored as hashes and shown once."""

import hashlib

import msgspec

from holdfast.core.errors import HoldfastError, NotFound
from holdfast.core.transaction.changes import ApiKeyRow, ApiKeySaved, Decision, refuse
from holdfast.core.transaction.commands import AddApiKey, RevokeApiKey
from holdfast.core.transaction.facts import Facts


class NotAuthenticated(HoldfastError):
    """The request has no API key, or an unknown one."""

    code = "invalid_api_key"


class NotAllowed(HoldfastError):
    """The key is valid, but it does not allow this."""

    code = "not_allowed"


class ApiKeyNotFound(NotFound):
    """No API key has this id."""

    code = "api_key_not_found"


def hash_key(key: str) -> bytes:
    """Return the stored hash of a key; keys are long and random, so one round is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def add_api_key(command: AddApiKey, facts: Facts) -> Decision[ApiKeyRow]:
    """Record a new key; from then on every request needs one."""
    if facts.api_key is not None:
        return Decision(facts.api_key)
    row = ApiKeyRow(
        command.id, command.tenant, command.name, command.hash, command.is_admin, facts.now, None
    )
    return Decision(row, (row,))


def revoke_api_key(command: RevokeApiKey, facts: Facts) -> Decision[ApiKeyRow]:
    """Revoke a key for good. Its row stays, so that requests without a key remain rejected."""
    row = facts.api_key
    if row is None:
        return refuse(ApiKeyNotFound(f"no API key {command.id}"))
    if row.revoked_at is not None:
        return Decision(row)
    revoked = msgspec.structs.replace(row, revoked_at=facts.now)
    return Decision(revoked, (ApiKeySaved(revoked),))
