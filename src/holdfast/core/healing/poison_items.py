"""Find the item that a provider refuses: the one it names, else the likeliest ones."""

import re
from collections.abc import Callable, Collection, Sequence

from holdfast.core.model.items import StoredItem
from holdfast.core.projection.placeholders import has_media

_TOKENS = re.compile(r"https?://[^\s'\"<>]+|\bfile[-_][\w-]{3,}|'([^'\s]{6,})'|\"([^\"\s]{6,})\"")
_REMOTE_CONTENT = (b'"file_id"', b'"file_url"', b"http://", b"https://", b'"audio_id"')


def poison_candidates(
    history: Sequence[StoredItem],
    *,
    named: Collection[int] = (),
    message: str = "",
    turn_number: int = 0,
    quarantined: Collection[int] = (),
    is_only_named: bool = False,
) -> tuple[int, ...]:
    """Return the sequence numbers of the items to leave out next; empty when no guess is left.

    First come the items that the provider named, by index or in its message. Then, unless
    `is_only_named`, images and files of this turn, then those stored elsewhere, which may be gone,
    then all others.
    """
    tokens = [token.encode() for token in _quoted(message)]
    guesses: tuple[Callable[[StoredItem], bool], ...] = (
        lambda item: item.seq in named,
        lambda item: has_media(item) and any(token in item.body for token in tokens),
        lambda item: item.turn_number == turn_number and has_media(item),
        lambda item: has_media(item) and any(sign in item.body for sign in _REMOTE_CONTENT),
        has_media,
    )
    for is_suspect in guesses[:2] if is_only_named else guesses:
        found = tuple(
            item.seq for item in history if item.seq not in quarantined and is_suspect(item)
        )
        if found:
            return found
    return ()


def _quoted(message: str) -> list[str]:
    """Return what a refusal quotes: a URL, a file id, or anything between quotes."""
    found = [next(filter(None, match.groups()), match[0]) for match in _TOKENS.finditer(message)]
    return [token.rstrip(".,;:)") for token in found]
