"""What a model's server remembers for us: a cache, tagged with who can read it."""

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
        """The one place this maker's state has in a session."""
        return msgspec.json.encode([self.provider, self.account, self.model]).decode()
