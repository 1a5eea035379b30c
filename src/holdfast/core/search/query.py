"""What is searched for: words and phrases, and the part of a text that shows them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.errors import InvalidInput
from holdfast.core.search.analysis import Term, located_terms, query_phrase

MAX_QUERY = 1000
"""Characters of a query."""
MAX_PHRASES = 16
"""Words and phrases of a query; further ones are ignored."""
SNIPPET = 200
"""Characters of a snippet."""
_LEAD = 60
"""Characters before the first match."""
_words = re.compile(r'"([^"]*)"|(\S+)').finditer


class Phrase(NamedTuple):
    """Terms that follow each other; the last one may be the beginning of a term."""

    terms: tuple[str, ...]
    is_prefix: bool = False


class Snippet(NamedTuple):
    """A part of a text, and the ranges of it that match."""

    text: str
    highlights: tuple[tuple[int, int], ...]


def parse_query(text: str) -> tuple[Phrase, ...]:
    """Return the words, `"phrases"` and `prefixes*` of a query, each once."""
    if len(text) > MAX_QUERY:
        raise InvalidInput(
            f"q has {len(text)} characters; at most {MAX_QUERY} are allowed", param="q"
        )
    found: dict[Phrase, None] = {}
    for match in _words(text):
        quoted, word = match[1], match[2]
        phrase, is_pair = query_phrase(quoted if word is None else word)
        if phrase:
            is_prefix = is_pair or (word is not None and word.endswith("*"))
            found[Phrase(tuple(phrase), is_prefix)] = None
    if not found:
        raise InvalidInput("q has no word to search for", param="q")
    return tuple(found)[:MAX_PHRASES]


def snippet(
    text: str, phrases: Sequence[Phrase], required: Sequence[Phrase] = ()
) -> Snippet | None:
    """Return the part of a text around its first match, on one line.

    None for a text that lacks a phrase that is `required`.
    """
    located = list(located_terms(text))
    if not all(_occurs(located, phrase) for phrase in required if len(phrase.terms) > 1):
        return None
    matches = _matches(located, phrases)
    begin = max(matches[0][0] - _LEAD, 0) if matches else 0
    end = min(begin + SNIPPET, len(text))
    if begin:
        # Begin with a whole word if there is one close by.
        blank = text.find(" ", begin, begin + _LEAD // 2)
        begin = blank + 1 if blank >= 0 else begin
    lead = "…" if begin else ""
    shown = lead + re.sub(r"\s", " ", text[begin:end]) + ("…" if end < len(text) else "")
    shift = len(lead) - begin
    inside = [(max(start, begin), min(stop, end)) for start, stop in matches]
    return Snippet(shown, tuple((a + shift, b + shift) for a, b in inside if a < b))


def _occurs(located: list[Term], phrase: Phrase) -> bool:
    size = len(phrase.terms)
    return any(_is_at(located[at : at + size], phrase) for at in range(len(located)))


def _matches(located: list[Term], phrases: Sequence[Phrase]) -> list[tuple[int, int]]:
    """Return the ranges of a text that match a phrase, merged and in order."""
    ranges: list[tuple[int, int]] = []
    for at in range(len(located)):
        for phrase in phrases:
            size = len(phrase.terms)
            if _is_at(located[at : at + size], phrase):
                ranges.append((located[at].start, located[at + size - 1].end))
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _is_at(part: list[Term], phrase: Phrase) -> bool:
    if len(part) < len(phrase.terms):
        return False
    *whole, last = phrase.terms
    if any(term.term != wanted for term, wanted in zip(part, whole, strict=False)):
        return False
    found = part[-1].term
    return found.startswith(last) if phrase.is_prefix else found == last
