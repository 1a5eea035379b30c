"""Text as terms, the same for both databases.

Letters lose case, width and accents. Scripts that put no blanks between words (Chinese, Japanese,
Thai and others) are indexed as overlapping pairs of characters: most of their words have two, which
an index of three could not find. A query for them becomes a phrase of pairs.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

MAX_TERM = 64
"""Characters of a term; longer words are cut."""
MAX_FOLDED = 50_000
"""Characters whose folding is remembered."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Myanmar, Khmer, kana, Hangul and Han."""
_has_unspaced = re.compile(f"[{_UNSPACED}]").search
_runs = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+").finditer


class Term(NamedTuple):
    """A term and where its characters are in the text."""

    term: str
    start: int
    end: int


class _Folding(dict[int, str]):
    """Maps each character to what is indexed of it; separators to a blank."""

    def __missing__(self, code: int) -> str:
        folded = _fold(chr(code))
        if len(self) < MAX_FOLDED:
            self[code] = folded
        return folded


def _fold(character: str) -> str:
    decomposed = unicodedata.normalize("NFKD", character).casefold()
    if _has_unspaced(character):
        # Composed: a syllable or a voiced kana is one character.
        decomposed = unicodedata.normalize("NFKC", character)
    kept = []
    for one in decomposed:
        if "\u0300" <= one <= "\u036f":
            continue
        kept.append(one if unicodedata.category(one)[0] in "LNM" else " ")
    return "".join(kept)


_FOLDING = _Folding()


def terms(text: str) -> list[str]:
    """Return the terms of a text in order, with their repetitions."""
    found: list[str] = []
    for word in text.translate(_FOLDING).split():
        if _has_unspaced(word):
            for run in _runs(word):
                found += _pairs(run[0]) if _has_unspaced(run[0]) else [run[0][:MAX_TERM]]
        else:
            found.append(word[:MAX_TERM])
    return found


def query_phrase(text: str) -> tuple[list[str], bool]:
    """Return the terms of one word or phrase of a query, and whether the last one is a prefix."""
    found: list[str] = []
    is_prefix = False
    for word in text.translate(_FOLDING).split():
        for run in _runs(word):
            is_prefix = False
            if not _has_unspaced(run[0]):
                found.append(run[0][:MAX_TERM])
            elif len(run[0]) == 1:
                found.append(run[0])
                is_prefix = True
            else:
                found += _pairs(run[0])[:-1]
    return found, is_prefix


def _pairs(run: str) -> list[str]:
    """Return the overlapping pairs of a run, and its last character, for queries of one."""
    return [*(run[index : index + 2] for index in range(len(run) - 1)), run[-1]]


def located_terms(text: str) -> Iterator[Term]:
    """Yield the terms of a text with their places; slower than `terms`."""
    folded: list[str] = []
    places: list[int] = []
    for index, character in enumerate(text):
        kept = _FOLDING[ord(character)]
        folded.append(kept)
        places += [index] * len(kept)
    joined = "".join(folded)
    for word in re.finditer(r"\S+", joined):
        for run in _runs(word[0]):
            first = word.start() + run.start()
            if not _has_unspaced(run[0]):
                last = first + len(run[0]) - 1
                yield Term(run[0][:MAX_TERM], places[first], places[last] + 1)
                continue
            for index, pair in enumerate(_pairs(run[0])):
                begin = first + index
                yield Term(pair, places[begin], places[begin + len(pair) - 1] + 1)
