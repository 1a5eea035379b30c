"""Mark encrypted content with its owner, so that it is sent to nobody else.

The mark is a short prefix of the value itself, so it stays with the item everywhere: in the log, in
forks, and with clients that keep their own history.
"""

import hashlib
from typing import Any

import msgspec

from holdfast.core.model.session import ProviderState

_MARK = "hf1."
_SIZE = 16


class SealOwner(msgspec.Struct, frozen=True, gc=False):
    """One model of one account at one provider; only this owner can decrypt its content."""

    provider: str
    account: str
    model: str

    @property
    def tag(self) -> str:
        """The owner's name inside a mark."""
        return _digest(f"{self.provider}\0{self.account}\0{self.model}")

    @property
    def slot(self) -> str:
        """The slot of the owner's state in a session."""
        return self.state(b"").slot

    def state(self, value: bytes) -> ProviderState:
        """Return a provider state of this owner."""
        return ProviderState(self.provider, self.account, self.model, value)

    def mark(self, content: str) -> str:
        """Return encrypted content with this owner's mark."""
        return f"{_MARK}{self.tag}.{content}"

    def unmark(self, marked: Any) -> str | None:
        """Return the content as this owner sent it, or None if it belongs to another."""
        start = f"{_MARK}{self.tag}."
        if isinstance(marked, str) and marked.startswith(start):
            return marked[len(start) :]
        return None


def account_of(url: str, key: str | None) -> str:
    """Return an identifier for an account that does not reveal its key."""
    return _digest(f"{url.rstrip('/')}\0{key or ''}")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_SIZE // 2).hexdigest()
