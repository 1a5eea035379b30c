"""State that a model's server stores for us: a cache, tagged with its owner."""

import msgspec


class ProviderState(msgspec.Struct, frozen=True, gc=False):
    """An opaque value that may be sent only to the provider that made it.

    It is committed together with the completed response that made it, or not at all.
    """

    provider: str
    account: str
    model: str
    value: bytes
    covers_seq: int = 0

    @property
    def slot(self) -> str:
        """The key of this owner's state within a session."""
        return msgspec.json.encode([self.provider, self.account, self.model]).decode()
