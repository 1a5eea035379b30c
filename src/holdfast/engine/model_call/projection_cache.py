"""Projections of the sessions that spoke last, extended instead of made anew.

What a message ends is settled: whatever comes behind it changes nothing before it, but for calls
and outputs that go by an id which stands there already; then everything is made anew.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.model.items import StoredItem
from holdfast.core.projection.prefix_cache import Prefix, PrefixCache, SharedPrefix
from holdfast.core.projection.project import project

MAX_BYTES = 16 * 1024 * 1024
ITEM_BYTES = 64
"""What an item costs here beside its body, which others hold as well."""


class _Made(msgspec.Struct, frozen=True):
    bodies: SharedPrefix[bytes]
    call_ids: frozenset[str]
    quarantined: frozenset[int]


class ProjectionCache:
    """Shows histories to models; the same as `project`, but a long one only once."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: PrefixCache[StoredItem, _Made] = PrefixCache(max_bytes)

    @property
    def held_bytes(self) -> int:
        """About how much memory they take."""
        return self._kept.held_bytes

    def project(
        self,
        session_id: str,
        history: Sequence[StoredItem],
        quarantined: frozenset[int] = frozenset(),
    ) -> SharedPrefix[bytes]:
        """Return the bodies of a valid request; see `core.context.project`."""
        strand = history if isinstance(history, SharedPrefix) else SharedPrefix(list(history))
        known = self._kept.find(session_id, strand)
        if known is not None and _goes_on(known, strand, quarantined):
            done, made, size = known.items.length, known.made, known.size
        else:
            done, made, size = 0, _Made(SharedPrefix([]), frozenset(), quarantined), 0
        new = strand.shared[done : strand.length]
        settled = _settled(new)
        ended = new if settled == len(new) else new[:settled]
        bodies = project(ended, quarantined)
        grown = made.bodies.grown(bodies)
        shown = grown if ended is new else made.bodies.grown(project(new, quarantined))
        # A message that is not shown ends nothing.
        if bodies and bodies[-1] == ended[-1].body:
            seen = strand if ended is new else strand.upto(done + settled)
            named = set()
            for item in ended:
                size += len(item.body) + ITEM_BYTES
                if item.call_id:
                    named.add(item.call_id)
            made = _Made(grown, made.call_ids | named if named else made.call_ids, quarantined)
            self._kept.keep(session_id, Prefix(seen, made, size))
        return shown


def _goes_on(
    known: Prefix[StoredItem, _Made], history: SharedPrefix[StoredItem], quarantined: frozenset[int]
) -> bool:
    made = known.made
    if made.quarantined != quarantined:
        return False
    if not made.call_ids:
        return True
    return not any(item.call_id in made.call_ids for item in history[known.items.length :])


def _settled(items: list[StoredItem]) -> int:
    """Return how many items the last message ends, itself included."""
    for count in range(len(items), 0, -1):
        if items[count - 1].kind == "message" and not items[count - 1].call_id:
            return count
    return 0
