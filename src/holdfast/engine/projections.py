"""Projections of the sessions that spoke last, extended instead of made anew.

What a message ends is settled: whatever comes behind it changes nothing before it, but for calls
and outputs that go by an id which stands there already; then everything is made anew.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.context import project
from holdfast.core.items import StoredItem
from holdfast.core.prefixes import Prefix, Prefixes

MAX_BYTES = 16 * 1024 * 1024
ITEM_BYTES = 64
"""What an item costs here beside its body, which others hold as well."""


class _Made(msgspec.Struct, frozen=True):
    bodies: list[bytes]
    call_ids: frozenset[str]
    quarantined: frozenset[int]


class Projections:
    """Shows histories to models; the same as `project`, but a long one only once."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: Prefixes[StoredItem, _Made] = Prefixes(max_bytes)

    @property
    def held_bytes(self) -> int:
        """About how much memory they take."""
        return self._kept.held_bytes

    def project(
        self,
        session_id: str,
        history: Sequence[StoredItem],
        quarantined: frozenset[int] = frozenset(),
    ) -> list[bytes]:
        """Return the bodies of a valid request; see `core.context.project`."""
        history = list(history)  # ours: what is kept of it must not change
        known = self._kept.find(session_id, history)
        if known is not None and _goes_on(known, history, quarantined):
            done, made, size = len(known.items), known.made, known.size
        else:
            done, made, size = 0, _Made([], frozenset(), quarantined), 0
        new = history[done:]
        shown = made.bodies + project(new, quarantined)
        settled = _settled(new)
        bodies = shown
        if 0 < settled < len(new):
            bodies = made.bodies + project(new[:settled], quarantined)
        # A message that is not shown ends nothing.
        if settled and bodies and bodies[-1] == new[settled - 1].body:
            ended = new[:settled]
            named = {item.call_id for item in ended if item.call_id}
            call_ids = made.call_ids | named if named else made.call_ids
            size += sum([len(item.body) + ITEM_BYTES for item in ended])
            made = _Made(bodies, call_ids, quarantined)
            self._kept.keep(session_id, Prefix(history[: done + settled], made, size))
        return list(shown)


def _goes_on(
    known: Prefix[StoredItem, _Made], history: list[StoredItem], quarantined: frozenset[int]
) -> bool:
    made = known.made
    if made.quarantined != quarantined:
        return False
    if not made.call_ids:
        return True
    return not any(item.call_id in made.call_ids for item in history[len(known.items) :])


def _settled(items: list[StoredItem]) -> int:
    """Return how many items the last message ends, itself included."""
    for count in range(len(items), 0, -1):
        if items[count - 1].kind == "message" and not items[count - 1].call_id:
            return count
    return 0
