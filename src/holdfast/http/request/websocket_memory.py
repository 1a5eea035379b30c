"""What a WebSocket connection remembers of responses that are stored nowhere else."""

from collections import OrderedDict

import msgspec

from holdfast.core.model.items import NewItem

KEPT_RESPONSES = 8
KEPT_BYTES = 16 * 1024 * 1024


class Remembered(msgspec.Struct, frozen=True):
    """Everything that a model was shown and said, up to the end of a response."""

    items: tuple[NewItem, ...]

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return sum(len(item.body) for item in self.items)


class ConnectionState:
    """The latest responses of one connection, bounded; gone with it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Remembered] = OrderedDict()

    def get(self, name: str | None) -> Remembered | None:
        """Return what is remembered of a response."""
        return self._kept.get(name) if name is not None else None

    def keep(self, name: str, items: tuple[NewItem, ...]) -> None:
        """Remember a response; older ones make room for it."""
        self._kept[name] = Remembered(items)
        while len(self._kept) > KEPT_RESPONSES or (len(self._kept) > 1 and self._is_too_much):
            self._kept.popitem(last=False)

    @property
    def _is_too_much(self) -> bool:
        return sum(one.size for one in self._kept.values()) > KEPT_BYTES

    def forget(self, name: str | None) -> None:
        """Forget a response that could not be continued."""
        if name is not None:
            self._kept.pop(name, None)
