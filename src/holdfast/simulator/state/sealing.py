"""Opaque blobs that only their maker can open: encrypted reasoning and thinking signatures.

A blob is bound to the account and the model it was made for; in any other hands it is noise, as
the real ones are. (Nothing is secret here: the content is encoded, not encrypted.)
"""

import base64
from dataclasses import dataclass
from typing import Literal

from holdfast.simulator.state.identity import digest

_MARK = "gAAAAAB"
Reading = Literal["genuine", "altered", "foreign"]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who may open a blob."""

    account: str
    model: str


def seal(owner: Owner, text: str) -> str:
    """Return an opaque blob holding `text` for `owner`."""
    payload = base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode()
    return f"{_MARK}{digest(owner.account, owner.model, payload)}{payload}"


def unseal(owner: Owner, blob: object) -> str | None:
    """Return what `blob` holds, or None when `owner` cannot open it."""
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
    """Return a signature over `text` that shows both its owner and whether the text is whole."""
    mine = digest(owner.account, owner.model, size=16)
    return base64.b64encode(f"{mine}{digest(mine, text)}".encode()).decode()


def read_signature(owner: Owner, signature: object, text: str) -> Reading:
    """Say whether `signature` is `owner`'s and whether `text` is what was signed."""
    if not isinstance(signature, str):
        return "foreign"
    if signature == sign(owner, text):
        return "genuine"
    try:
        plain = base64.b64decode(signature, validate=True).decode("ascii")
    except ValueError:
        return "foreign"
    return "altered" if plain.startswith(digest(owner.account, owner.model, size=16)) else "foreign"
