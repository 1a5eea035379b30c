"""Search queries: words and phrases, and the snippet of a text that shows them."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from holdfast.core.errors import InvalidInput
from holdfast.core.search.analysis import FoldedText, Term, is_character, query_phrase

MAX_QUERY = 1000
"""The longest query."""
MAX_PHRASES = 16
"""The most words and phrases of a query; further ones are ignored."""
SNIPPET = 200
"""The length of a snippet."""
_LEAD = 60
"""The characters before the first match in a snippet."""
_words = re.compile(r'"([^"]*)"|(\S+)').finditer


class Phrase(NamedTuple):
    """Consecutive terms; the last one may be a prefix."""

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
    phrases = split_query(text)
    if not phrases:
        raise InvalidInput("q has no word to search for", param="q")
    return phrases


def split_query(text: str) -> tuple[Phrase, ...]:
    """Return the phrases of a text of any length; none if it has no word."""
    phrases: dict[Phrase, None] = {}
    for match in _words(text[:MAX_QUERY]):
        quoted, word = match[1], match[2]
        phrase, is_pair = query_phrase(quoted if word is None else word)
        if phrase:
            is_prefix = is_pair or (word is not None and word.endswith("*"))
            phrases[Phrase(tuple(phrase), is_prefix)] = None
    return tuple(phrases)[:MAX_PHRASES]


def snippet(
    text: str, phrases: Sequence[Phrase], required: Sequence[Phrase] = ()
) -> Snippet | None:
    """Return the part of a text around its first match, on one line.

    Return None if the text lacks a `required` phrase.
    """
    folded = FoldedText(text)
    for phrase in required:
        if len(phrase.terms) > 1 and next(_occurrences(folded, [phrase]), None) is None:
            return None
    matches = _first_matches(folded, phrases)
    begin = max(matches[0][0] - _LEAD, 0) if matches else 0
    end = min(begin + SNIPPET, len(text))
    if begin:
        # Begin with a whole word if one starts nearby.
        blank = text.find(" ", begin, begin + _LEAD // 2)
        begin = blank + 1 if blank >= 0 else begin
    lead = "…" if begin else ""
    shown = lead + re.sub(r"\s", " ", text[begin:end]) + ("…" if end < len(text) else "")
    shift = len(lead) - begin
    inside = [(max(start, begin), min(stop, end)) for start, stop in matches]
    return Snippet(shown, tuple((a + shift, b + shift) for a, b in inside if a < b))


def _first_matches(folded: FoldedText, phrases: Sequence[Phrase]) -> list[tuple[int, int]]:
    """Return the ranges of the first match and of those that a snippet can show with it."""
    merged: list[tuple[int, int]] = []
    for start, end in _occurrences(folded, phrases):
        if merged and start > merged[0][0] + SNIPPET:
            break
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _occurrences(folded: FoldedText, phrases: Sequence[Phrase]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a text that match a phrase, in order."""
    # Compare term by term only from the first possible match.
    firsts = [place for phrase in phrases if (place := folded.find(phrase.terms[0])) >= 0]
    if not firsts:
        return
    longest = max(len(phrase.terms) for phrase in phrases)
    recent: deque[Term] = deque(maxlen=longest)
    for term in chain(folded.terms(min(firsts)), [None] * (longest - 1)):
        if term is not None:
            recent.append(term)
        elif recent:
            recent.popleft()
        if len(recent) == longest or term is None:
            part = list(recent)
            for phrase in phrases:
                if _is_at(part, phrase):
                    yield part[0].start, _end(part[len(phrase.terms) - 1], phrase)


def _end(found: Term, phrase: Phrase) -> int:
    """Return the end of a match: after a single character, not after the pair that it begins."""
    wanted = phrase.terms[-1]
    return found.start + 1 if is_character(wanted) else found.end


def _is_at(part: Sequence[Term], phrase: Phrase) -> bool:
    """Whether a phrase is at the beginning of a part."""
    if len(part) < len(phrase.terms):
        return False
    *whole, last = phrase.terms
    if any(term.term != wanted for term, wanted in zip(part, whole, strict=False)):
        return False
    found = part[len(whole)].term
    return found.startswith(last) if phrase.is_prefix else found == last
