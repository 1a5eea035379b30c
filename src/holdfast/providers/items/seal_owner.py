"""Who made an opaque value: it is marked when it comes and sent back to its maker alone.

The mark is a short prefix of the value itself, so it travels wherever the item goes: through the
log, through forks, and through clients that keep their own history and send it back.
"""

import hashlib
from typing import Any

import msgspec

from holdfast.core.model.provider_state import ProviderState

_MARK = "hf1."
_SIZE = 16


class SealOwner(msgspec.Struct, frozen=True, gc=False):
    """One model of one account at one provider: what it sealed, it alone can open."""

    provider: str
    account: str
    model: str

    @property
    def tag(self) -> str:
        """The maker's name inside a mark."""
        return _digest(f"{self.provider}\0{self.account}\0{self.model}")

    @property
    def slot(self) -> str:
        """The place that the maker's state has in a session."""
        return self.remember(b"").slot

    def remember(self, value: bytes) -> ProviderState:
        """Return a state of this maker."""
        return ProviderState(self.provider, self.account, self.model, value)

    def mark(self, sealed: str) -> str:
        """Return a value that this maker sealed, with its mark."""
        return f"{_MARK}{self.tag}.{sealed}"

    def unmark(self, marked: Any) -> str | None:
        """Return the value as this maker wrote it, or None if it is not its own."""
        start = f"{_MARK}{self.tag}."
        if isinstance(marked, str) and marked.startswith(start):
            return marked[len(start) :]
        return None


def account_of(url: str, key: str | None) -> str:
    """Return a name for an account that gives nothing of its key away."""
    return _digest(f"{url.rstrip('/')}\0{key or ''}")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_SIZE // 2).hexdigest()
