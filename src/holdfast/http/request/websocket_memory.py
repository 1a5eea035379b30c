"""Cache of a WebSocket connection's unstored responses, so that they can be continued."""

from collections import OrderedDict

import msgspec

from holdfast.core.model.items import NewItem

MAX_RESPONSES = 8
MAX_BYTES = 16 * 1024 * 1024


class CachedResponse(msgspec.Struct, frozen=True):
    """A response's input and output items."""

    items: tuple[NewItem, ...]

    @property
    def size(self) -> int:
        """The size of the items in bytes."""
        return sum(len(item.body) for item in self.items)


class ResponseCache:
    """The latest responses of one connection, bounded in number and bytes."""

    def __init__(self) -> None:
        self._responses: OrderedDict[str, CachedResponse] = OrderedDict()

    def get(self, name: str | None) -> CachedResponse | None:
        """Return a cached response."""
        return self._responses.get(name) if name is not None else None

    def add(self, name: str, items: tuple[NewItem, ...]) -> None:
        """Cache a response; drop the oldest ones beyond the bounds."""
        self._responses[name] = CachedResponse(items)
        while len(self._responses) > MAX_RESPONSES or (
            len(self._responses) > 1 and self._is_over_limit
        ):
            self._responses.popitem(last=False)

    @property
    def _is_over_limit(self) -> bool:
        return sum(response.size for response in self._responses.values()) > MAX_BYTES

    def discard(self, name: str | None) -> None:
        """Drop a response that could not be continued."""
        if name is not None:
            self._responses.pop(name, None)
