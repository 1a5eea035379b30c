"""Ids and keys: ids are minted by the caller; keys are opaque and validated here."""

import hashlib
import re
from typing import NewType

from holdfast.core.errors import InvalidInput, InvalidSessionKey

Tenant = NewType("Tenant", str)
Key = NewType("Key", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
RunId = NewType("RunId", str)
WorkerId = NewType("WorkerId", str)


def first_run_of(turn_id: str) -> RunId:
    """Return the id of the run that begins together with its turn."""
    return RunId("run" + turn_id.removeprefix("turn"))


def external_turn_id(tenant: str, conversation: str, client_turn_id: str) -> TurnId:
    """Return the id of a turn that a client names: its name means nothing in other conversations.

    Turn ids are unique over all tenants, so a client's own is never stored.
    """
    named = f"{tenant}\0{conversation}\0{client_turn_id}".encode()
    return TurnId("turn_" + hashlib.blake2b(named, digest_size=15).hexdigest())


DEFAULT_TENANT = Tenant("default")
MAX_KEY_BYTES = 512
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def read_key(raw: str) -> Key:
    """Return `raw` as a key, unchanged; raise if it is not a valid one.

    Keys are neither trimmed nor case-folded: two keys that differ in any byte are two
    conversations.
    """
    return Key(_read_name(raw, "a session key", InvalidSessionKey))


def read_idempotency_key(raw: str) -> str:
    """Return `raw` as an idempotency key or batch id, unchanged; raise if it is not a valid one."""
    return _read_name(raw, "an idempotency key", InvalidInput)


def read_tenant(raw: str) -> Tenant:
    """Return `raw` as a tenant's name, unchanged; raise if it is not a valid one."""
    return Tenant(_read_name(raw, "a tenant", InvalidInput))


def _read_name(raw: str, what: str, error: type[InvalidInput]) -> str:
    if not isinstance(raw, str):
        raise error(f"{what} is text, not {type(raw).__name__}")
    try:
        size = len(raw.encode())
    except UnicodeEncodeError as exc:
        raise error(f"{what} must be valid Unicode text") from exc
    if not 1 <= size <= MAX_KEY_BYTES:
        raise error(f"{what} has 1 to {MAX_KEY_BYTES} bytes, this one {size}")
    if _CONTROL.search(raw) is not None:
        raise error(f"{what} has no control characters")
    return raw


def session_of_name(name: str) -> SessionId:
    """Return the id of the session that a session or conversation id names."""
    if name.startswith("conv_"):
        return SessionId("ses_" + name.removeprefix("conv_"))
    return SessionId(name)
