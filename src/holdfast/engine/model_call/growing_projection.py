"""Projections of sessions, extended turn by turn instead of computed again.

A message settles everything before it: later items change nothing there, unless they carry the id
of a call that stands there. So the list of a context holds its projection together with the places
at which that was settled. A longer history continues from the last of them; a history whose tail
was rewound (an edit, a regenerate) from the last one before it was cut.
"""

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from holdfast.core.model.items import StoredItem
from holdfast.core.model.request import DIGEST_BYTES, hash_items
from holdfast.core.projection.growing_list import Form, GrowingList, SharedPrefix, share
from holdfast.core.projection.normalize import read_valid_text
from holdfast.core.projection.project import project

PART_ITEMS = 32
"""About how many items of a long history are projected at once, when it is read for the first time.

Smaller parts make rewinds cheaper and the first projection more expensive.
"""
Mark = tuple[int, int]
"""A place at which a projection is settled: its items, and the bodies they are shown as."""
Projected = tuple[SharedPrefix[bytes], bytes]
"""The item bodies of a valid request, and their digest."""
_NONE_QUARANTINED: frozenset[int] = frozenset()


class _Projection(Form):
    """A settled projection; its key is the set of quarantined items."""

    bodies: SharedPrefix[bytes]
    digests: bytearray
    """The digest of the bodies up to each of them."""
    plain: int = 0
    """How many of the first items are valid texts that are shown unchanged; each is a mark."""
    marks: list[Mark] | None = None
    """The marks after them."""
    call_ids: set[str] | None = None
    """Every call id up to the last mark; after a rewind there may be more, which is harmless."""

    def cut(self, length: int) -> "_Projection | None":
        """Return the projection up to its last mark within the first `length` items."""
        marks = self.marks or []
        place = bisect_right(marks, length, key=lambda mark: mark[0])
        plain = min(self.plain, length)
        items, bodies = marks[place - 1] if place else (plain, plain)
        return _Projection(
            self.key,
            items,
            self.bodies.upto(bodies),
            self.digests[: bodies * DIGEST_BYTES],
            plain,
            marks[:place] or None,
            set(self.call_ids) if self.call_ids else None,
        )


def project_grown(
    history: Sequence[StoredItem], quarantined: frozenset[int] = _NONE_QUARANTINED
) -> Projected:
    """Return the item bodies of a valid request, and their digest.

    See `core.projection.project`. Items that are part of the projection that the history's list
    holds are neither projected nor hashed again.
    """
    items = history if isinstance(history, SharedPrefix) else share(history)
    forms = items.shared.forms
    cached = forms[0] if forms else None
    if (
        not isinstance(cached, _Projection)
        or cached.key != quarantined
        or cached.length > items.length
    ):
        cached = _begin(items, quarantined)
    if quarantined or items.length - cached.length > PART_ITEMS:
        return _project_any(cached, items, quarantined)
    bodies, digests = [], b""
    digest = bytes(cached.digests[-DIGEST_BYTES:])
    try:
        for item in items.shared[cached.length : items.length]:
            body = item.body
            if item.kind != "message" or item.call_id:
                return _project_any(cached, items, quarantined)
            read_valid_text(body)
            bodies.append(body)
            digest = blake2b(body, digest_size=DIGEST_BYTES, key=digest).digest()
            digests += digest
    except msgspec.DecodeError:
        return _project_any(cached, items, quarantined)
    settled = cached.bodies
    if len(settled.shared) == settled.length:
        settled.shared.extend(bodies)
        settled = SharedPrefix(settled.shared, len(settled.shared))
    else:
        settled = settled.grown(bodies)
    cached.bodies = settled
    cached.digests += digests
    if cached.marks:
        cached.marks.append((items.length, settled.length))
    else:
        cached.plain = items.length
    cached.length = items.length
    return settled, digest


def is_projected(
    history: SharedPrefix[StoredItem], quarantined: frozenset[int], missing: int
) -> bool:
    """Return whether the projection of a history is known, but for at most `missing` items."""
    forms = history.shared.forms
    cached = forms[0] if forms else None
    known = 0
    if isinstance(cached, _Projection) and cached.key == quarantined:
        known = cached.length
    return history.length - known <= missing


def _begin(items: SharedPrefix[StoredItem], quarantined: frozenset[int]) -> _Projection:
    """Return a projection to extend, shorter or empty, and store it in the list of the history."""
    for form in items.shared.forms:
        projection = form.cut(items.length)
        if isinstance(projection, _Projection) and projection.key == quarantined:
            break
    else:
        projection = _Projection(quarantined, 0, SharedPrefix(GrowingList(), 0), bytearray())
    items.shared.keep_form(projection)
    return projection


def _project_any(
    projection: _Projection, items: SharedPrefix[StoredItem], quarantined: frozenset[int]
) -> tuple[SharedPrefix[bytes], bytes]:
    """Return what `project_grown` returns, for items of all kinds."""
    tail_from = _extend(projection, items, quarantined)
    if tail_from is None:
        # A call id occurs on both sides of a mark: pairing needs the whole history at once.
        items.shared.forms = ()
        bodies = project(items, quarantined)
        return share(bodies), hash_items(bodies)
    settled, digest = projection.bodies, bytes(projection.digests[-DIGEST_BYTES:])
    if tail_from == items.length:
        return settled, digest
    tail = project(items[tail_from:], quarantined)
    return settled.grown(tail), hash_items(tail, digest)


def _extend(
    projection: _Projection, items: SharedPrefix[StoredItem], quarantined: frozenset[int]
) -> int | None:
    """Extend a projection to the last place of `items` that is settled, and return that place.

    Return None if an item repeats a call id from before the last mark.
    """
    start = projection.length
    new = items.shared[start : items.length]
    done = 0
    known_ids = projection.call_ids or set()
    call_ids: set[str] = set()  # of the items since the last mark
    last = len(new)
    while last and (new[last - 1].kind != "message" or new[last - 1].call_id):
        last -= 1
    for count, item in enumerate(new, 1):
        if item.call_id:
            if item.call_id in known_ids:
                return None
            call_ids.add(item.call_id)
        elif item.kind == "message" and (count == last or count - done >= PART_ITEMS):
            bodies = project(new[done:count], quarantined)
            if not bodies or bodies[-1] != item.body:
                continue  # a message that is not shown settles nothing
            done = count
            known_ids |= call_ids
            call_ids = set()
            _settle(projection, start + count, bodies)
    projection.call_ids = known_ids or None
    return start + done


def _settle(projection: _Projection, length: int, bodies: list[bytes]) -> None:
    """Append a settled part to a projection."""
    digest = bytes(projection.digests[-DIGEST_BYTES:])
    for body in bodies:
        digest = hash_items((body,), digest)
        projection.digests += digest
    projection.bodies = projection.bodies.grown(bodies)
    projection.length = length
    if projection.marks is None:
        projection.marks = []
    projection.marks.append((length, projection.bodies.length))
