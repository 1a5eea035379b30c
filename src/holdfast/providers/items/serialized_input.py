"""Serialize the input of Responses requests: a longer history is only written at its end.

What was written is held by the list of the items that it was written from, up to where no later
item can change it.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.projection.growing_list import Form, SharedPrefix, share
from holdfast.providers.items.ids import call_id_of
from holdfast.providers.items.replay import Replay

MAX_EARLIER = 4
"""How many requests back a history may branch off without being written again."""
SHORT_PIECE = 4096
"""Shorter pieces are always joined with the next one."""


class _Serialized(Form):
    """The beginning of an input; its key is the `Replay` that it was written by."""

    pieces: tuple[bytes, ...] = ()
    used_ids: frozenset[str] = frozenset()
    call_ids: frozenset[str] = frozenset()
    earlier: "tuple[_Serialized, ...]" = ()
    """What it was at the requests before, the last one first. They share most of their bytes."""

    def cut(self, length: int) -> "_Serialized | None":
        """Return what was written of at most `length` items, for a history that branches off."""
        for place, state in enumerate((self, *self.earlier)):
            if state.length <= length:
                return replace(state, earlier=self.earlier[place:])
        return None


def write_input(replay: Replay, history: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return a request's input items as JSON in pieces, without the brackets around them."""
    items = history if isinstance(history, SharedPrefix) else share(history)
    forms = items.shared.forms
    serialized = forms[0] if forms else None
    if (
        not isinstance(serialized, _Serialized)
        or serialized.key != replay
        or serialized.length > items.length
    ):
        form = items.shared.find_form(replay, items.length)
        serialized = form if isinstance(form, _Serialized) else _Serialized(replay, 0)
    used_ids = set(serialized.used_ids)
    written = replay.write(items.shared[serialized.length : items.length], items, used_ids)
    pieces = serialized.pieces
    if written.items:
        pieces = append_piece(pieces, b",".join(written.items))
    if written.is_settled:
        if not serialized.length:
            items.shared.keep_form(serialized)
        elif serialized.length < items.length:
            before = _Serialized(
                replay, serialized.length, serialized.pieces, serialized.used_ids,
                serialized.call_ids,
            )  # fmt: skip
            serialized.earlier = (before, *serialized.earlier[: MAX_EARLIER - 1])
        serialized.pieces, serialized.length = pieces, items.length
        if used_ids:
            serialized.used_ids = frozenset(used_ids)
        if written.call_ids:
            serialized.call_ids |= written.call_ids
    return pieces


def has_call(call_id: str, replay: Replay, history: Sequence[bytes]) -> bool:
    """Return whether a history has a call of this id."""
    items = share(history)
    form = items.shared.find_form(replay, items.length)
    if isinstance(form, _Serialized) and call_id in form.call_ids:
        return True
    done = form.length if form is not None else 0
    return any(call_id_of(body) == call_id for body in items.shared[done : items.length])


def append_piece(pieces: tuple[bytes, ...], new: bytes) -> tuple[bytes, ...]:
    """Append a JSON piece, keeping each piece at least twice as long as the next.

    So there are few pieces, and a short new item copies few bytes of a long history.
    """
    if not pieces:
        return (new,)
    size, kept = len(new) + 1, len(pieces)
    while kept and len(pieces[kept - 1]) < max(2 * size, SHORT_PIECE):
        kept -= 1
        size += len(pieces[kept])
    return (*pieces[:kept], b"".join((*pieces[kept:], b",", new)))
