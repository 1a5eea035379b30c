"""Which item a provider cannot take: the one it names, else the likeliest, wider each time."""

import re
from collections.abc import Callable, Collection, Sequence

from holdfast.core.model.items import StoredItem
from holdfast.core.projection.placeholders import has_media

_TOKENS = re.compile(r"https?://[^\s'\"<>]+|\bfile[-_][\w-]{3,}|'([^'\s]{6,})'|\"([^\"\s]{6,})\"")
_ELSEWHERE = (b'"file_id"', b'"file_url"', b"http://", b"https://", b'"audio_id"')


def poison_candidates(
    history: Sequence[StoredItem],
    *,
    named: Collection[int] = (),
    words: str = "",
    turn_number: int = 0,
    quarantined: Collection[int] = (),
    is_only_named: bool = False,
) -> tuple[int, ...]:
    """Return the sequence numbers of the items to leave out next; none when nobody is left.

    First what the provider named, by place or in its words; then, unless only that is wanted,
    pictures and files that came with this turn; then those that lie elsewhere and may be gone;
    then all others.
    """
    tokens = [token.encode() for token in _quoted(words)]
    guesses: tuple[Callable[[StoredItem], bool], ...] = (
        lambda item: item.seq in named,
        lambda item: has_media(item) and any(token in item.body for token in tokens),
        lambda item: item.turn_number == turn_number and has_media(item),
        lambda item: has_media(item) and any(mark in item.body for mark in _ELSEWHERE),
        has_media,
    )
    for is_suspect in guesses[:2] if is_only_named else guesses:
        found = tuple(
            item.seq for item in history if item.seq not in quarantined and is_suspect(item)
        )
        if found:
            return found
    return ()


def _quoted(words: str) -> list[str]:
    """Return what a refusal quotes: an address, a file's id, or anything between quotes."""
    found = [next(filter(None, match.groups()), match[0]) for match in _TOKENS.finditer(words)]
    return [token.rstrip(".,;:)") for token in found]
