"""Projections of the sessions in use, extended turn by turn instead of computed anew.

A message settles everything before it: later items change nothing there, unless they carry the id
of a call that stands there. So a projection is kept together with the places at which it was
settled. A longer history continues from the last of them; a history whose tail was rewound (an
edit, a regenerate) from the last one that both have in common.
"""

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from holdfast.core.lru import SizedLru
from holdfast.core.model.items import StoredItem
from holdfast.core.model.request import hash_items
from holdfast.core.projection.prefix_cache import SharedPrefix, share
from holdfast.core.projection.project import project

MAX_BYTES = 16 * 1024 * 1024
ITEM_BYTES = 64
"""What an item costs here beside its body, which others hold as well."""
PART_ITEMS = 32
"""About how many items of a long history are projected at once, when it is read for the first time.

Smaller parts make rewinds cheaper and the first projection dearer.
"""
Mark = tuple[int, int]
"""A place at which a projection is settled: its items, and the bodies they are shown as."""
Projected = tuple[SharedPrefix[bytes], blake2b]
"""The item bodies of a valid request, and their hash."""


class _Projection(msgspec.Struct):
    """A settled projection. Only the cache and the call that extends it hold one."""

    items: SharedPrefix[StoredItem]
    bodies: SharedPrefix[bytes]
    quarantined: frozenset[int]
    call_ids: set[str]
    """Every id of a call up to the last mark; after a rewind a few more, which costs only time."""
    marks: list[Mark]
    size: int
    hasher: blake2b | None = None
    """The hash of the first `hashed` bodies."""
    hashed: int = 0


class ProjectionCache:
    """Returns what `project` returns, but projects no item of a known history twice."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._cache: SizedLru[str, _Projection] = SizedLru(max_bytes)

    @property
    def held_bytes(self) -> int:
        """About how much memory the projections take."""
        return self._cache.held

    def project(
        self,
        session_id: str,
        history: Sequence[StoredItem],
        quarantined: frozenset[int] = frozenset(),
    ) -> Projected:
        """Return the item bodies of a valid request, and their hash, which the caller may update.

        See `core.projection.project`. Items that were hashed before are not hashed again.
        """
        items = history if isinstance(history, SharedPrefix) else share(history)
        known = self._cache.peek(session_id)
        if known is not None and known.quarantined == quarantined:
            if known.items.shared is not items.shared or known.items.length > items.length:
                known = _cut(known, items)
        else:
            known = None
        if known is None:
            known = _Projection(items.upto(0), SharedPrefix([]), quarantined, set(), [], 0)
        tail_from = _extend(known, items)
        if tail_from is None:
            # A call id occurs on both sides of a mark: pairing needs the whole history at once.
            self._cache.pop(session_id)
            return project_whole(items, quarantined)
        # A projection that would push out most others is not kept.
        if known.size * 4 <= self._max_bytes:
            self._cache.put(session_id, known, known.size)
        else:
            self._cache.pop(session_id)
        settled = known.bodies
        if known.hasher is None or known.hashed < settled.length:
            new = settled.shared[known.hashed : settled.length]
            known.hasher, known.hashed = hash_items(new, known.hasher), settled.length
        hasher = known.hasher.copy()
        if tail_from == items.length:
            return settled, hasher
        tail = project(items[tail_from:], quarantined)
        return settled.grown(tail), hash_items(tail, hasher)


def project_whole(items: Sequence[StoredItem], quarantined: frozenset[int]) -> Projected:
    """Return what `ProjectionCache.project` returns, without a cache: also in a thread."""
    bodies = project(items, quarantined)
    return SharedPrefix(bodies), hash_items(bodies)


def _cut(known: _Projection, items: SharedPrefix[StoredItem]) -> _Projection | None:
    """Return a projection up to its last mark within what it has in common with `items`."""
    common = known.items.common_length(items)
    place = bisect_right(known.marks, common, key=lambda mark: mark[0])
    if not place:
        return None
    marks = known.marks if place == len(known.marks) else known.marks[:place]
    item_count, body_count = marks[-1]
    size = known.size * item_count // max(known.items.length, 1)
    return _Projection(
        items.upto(item_count),
        known.bodies.upto(body_count),
        known.quarantined,
        known.call_ids,
        marks,
        size,
    )


def _extend(known: _Projection, items: SharedPrefix[StoredItem]) -> int | None:
    """Extend a projection to the last place of `items` that is settled, and return that place.

    Return None where an item repeats the id of a call before the mark that it stands behind.
    """
    start = known.items.length
    new = items.shared[start : items.length]
    done, size = 0, 0
    call_ids: set[str] = set()  # of the items since the last mark
    last = len(new)
    while last and (new[last - 1].kind != "message" or new[last - 1].call_id):
        last -= 1
    for count, item in enumerate(new, 1):
        size += len(item.body) + ITEM_BYTES
        if item.call_id:
            if item.call_id in known.call_ids:
                return None
            call_ids.add(item.call_id)
        elif item.kind == "message" and (count == last or count - done >= PART_ITEMS):
            bodies = project(new[done:count], known.quarantined)
            if not bodies or bodies[-1] != item.body:
                continue  # a message that is not shown settles nothing
            done = count
            known.bodies = known.bodies.grown(bodies)
            settled = start + count
            known.items = items if settled == items.length else items.upto(settled)
            known.call_ids |= call_ids
            known.size += size
            known.marks.append((known.items.length, known.bodies.length))
            call_ids, size = set(), 0
    return start + done
