"""Cache of a WebSocket connection's unstored responses, so that they can be continued."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from holdfast.core.model.items import NewItem, read_item, read_role
from holdfast.core.model.synthetic_outputs import OUTPUT_KINDS, OUTPUT_OF, is_interrupted_output
from holdfast.core.projection.late_outputs import late_output

MAX_RESPONSES = 8
MAX_BYTES = 16 * 1024 * 1024


class CachedResponse(msgspec.Struct, frozen=True):
    """A response's input and output items."""

    items: tuple[NewItem, ...]

    @property
    def size(self) -> int:
        """The size of the items in bytes."""
        return sum(len(item.body) for item in self.items)


def continue_items(
    cached: Sequence[NewItem], items: Sequence[NewItem], *, is_projected: bool = False
) -> list[NewItem]:
    """Return the items of a cached response with those that continue it.

    An output drops the synthetic one that its call has got meanwhile. It takes its place, unless a
    model has answered that: then it is told as a text. Items that will be projected keep their
    order, because the projection does the same.
    """
    outputs = {item.call_id: item for item in items if item.kind in OUTPUT_KINDS}
    calls = {item.call_id: item for item in cached if item.kind in OUTPUT_OF}
    joined: list[NewItem] = []
    moved: dict[int, NewItem | None] = {}
    for place, item in enumerate(cached):
        output = outputs.pop(item.call_id, None) if is_synthetic(item) else None
        call = calls.get(item.call_id)
        if output is None or call is None:
            joined.append(item)
        elif not is_projected and any(map(_is_models, cached[place:])):
            joined.append(item)
            moved[id(output)] = read_item(late_output(call, str(item.call_id), output))
        elif not is_projected:
            joined.append(output)
            moved[id(output)] = None
    continued = (moved.get(id(item), item) for item in items)
    return joined + [item for item in continued if item is not None]


def _is_models(item: NewItem) -> bool:
    if item.kind == "message":
        return read_role(item.body).role == "assistant"
    return item.kind == "reasoning" or item.kind in OUTPUT_OF


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
