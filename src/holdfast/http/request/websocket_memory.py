"""Cache of a WebSocket connection's unstored responses, so that they can be continued."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from holdfast.core.model.items import NewItem
from holdfast.core.model.synthetic_outputs import OUTPUT_KINDS, is_interrupted_output

MAX_RESPONSES = 8
MAX_BYTES = 16 * 1024 * 1024


class CachedResponse(msgspec.Struct, frozen=True):
    """A response's input and output items."""

    items: tuple[NewItem, ...]

    @property
    def size(self) -> int:
        """The size of the items in bytes."""
        return sum(len(item.body) for item in self.items)


def continue_items(cached: Sequence[NewItem], items: Sequence[NewItem]) -> list[NewItem]:
    """Return the items of a cached response with those that continue it.

    An output takes the place of the synthetic one that its call has got meanwhile.
    """
    outputs = {item.call_id: item for item in items if item.kind in OUTPUT_KINDS}
    joined = [
        outputs.pop(item.call_id) if item.call_id in outputs and is_synthetic(item) else item
        for item in cached
    ]
    placed = {id(item) for item in joined}
    return joined + [item for item in items if id(item) not in placed]


def is_synthetic(item: NewItem) -> bool:
    """Whether an item is a synthetic output of a call."""
    return is_interrupted_output(item.kind, item.call_id, item.body)


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
