"""Encrypted reasoning and thinking signatures, bound to the account and model they belong to.

Nobody else can read them, as with the real ones. The content is encoded, not encrypted.
"""

import base64
from dataclasses import dataclass
from typing import Literal

from holdfast.simulator.state.identity import digest

_MARK = "gAAAAAB"
Reading = Literal["genuine", "altered", "foreign"]


@dataclass(frozen=True, slots=True)
class Owner:
    """The account and model that can read a blob."""

    account: str
    model: str


def seal(owner: Owner, text: str) -> str:
    """Return an opaque blob that contains `text` for `owner`."""
    payload = base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode()
    return f"{_MARK}{digest(owner.account, owner.model, payload)}{payload}"


def unseal(owner: Owner, blob: object) -> str | None:
    """Return the content of `blob`; None when it belongs to another owner."""
    if not isinstance(blob, str) or not blob.startswith(_MARK):
        return None
    proof, payload = blob[len(_MARK) : len(_MARK) + 48], blob[len(_MARK) + 48 :]
    if proof != digest(owner.account, owner.model, payload):
        return None
    try:
        return base64.urlsafe_b64decode(payload).decode("utf-8", "surrogatepass")
    except ValueError:
        return None


def sign(owner: Owner, text: str) -> str:
    """Return a signature over `text` that identifies its owner and detects changes."""
    identity = digest(owner.account, owner.model, size=16)
    return base64.b64encode(f"{identity}{digest(identity, text)}".encode()).decode()


def read_signature(owner: Owner, signature: object, text: str) -> Reading:
    """Return whether `signature` belongs to `owner` and matches `text`."""
    if not isinstance(signature, str):
        return "foreign"
    if signature == sign(owner, text):
        return "genuine"
    try:
        plain = base64.b64decode(signature, validate=True).decode("ascii")
    except ValueError:
        return "foreign"
    return "altered" if plain.startswith(digest(owner.account, owner.model, size=16)) else "foreign"
