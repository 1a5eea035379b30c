"""Text as terms, the same for both databases.

Case, width and accents are folded. Scripts without spaces between words (Chinese, Japanese, Thai
and others) are indexed as overlapping pairs of characters: most of their words have two, so triples
could not find them. A query in such a script becomes a phrase of pairs.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import NamedTuple

MAX_TERM = 64
"""The longest term; longer words are cut."""
MAX_FOLDED = 50_000
"""How many foldings of characters are cached."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Myanmar, Khmer, kana, Hangul and Han."""
_has_unspaced = partial(re.search, f"[{_UNSPACED}]")
_runs = partial(re.finditer, f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
"""Compiled when first used: compiling these ranges takes milliseconds."""
_words = re.compile(r"\S+").finditer


class Term(NamedTuple):
    """A term and where its characters are in the text."""

    term: str
    start: int
    end: int


class _Folding(dict[int, str]):
    """Maps each character to its indexed form; separators become a blank."""

    def __missing__(self, code: int) -> str:
        folded = _fold(chr(code))
        if len(self) < MAX_FOLDED:
            self[code] = folded
        return folded


def _fold(character: str) -> str:
    decomposed = unicodedata.normalize("NFKD", character).casefold()
    if not character.isascii() and _has_unspaced(character):
        # Composed: a syllable or a voiced kana is one character.
        decomposed = unicodedata.normalize("NFKC", character)
    kept = []
    for char in decomposed:
        if "\u0300" <= char <= "\u036f":
            continue
        kept.append(char if unicodedata.category(char)[0] in "LNM" else " ")
    return "".join(kept)


_FOLDING = _Folding()


_ASCII_FOLDING = "".join(_FOLDING[code] for code in range(128)).encode().ljust(256)


def _folded(text: str) -> str:
    """Return a text without case and accents, with separators as blanks."""
    if text.isascii():
        # Four times as fast as looking up each character.
        return text.encode().translate(_ASCII_FOLDING).decode()
    return text.translate(_FOLDING)


def terms(text: str) -> list[str]:
    """Return the terms of a text in order, repeated ones included."""
    folded = _folded(text)
    words = folded.split()
    is_spaced = folded.isascii() or not _has_unspaced(folded)
    if is_spaced and max(map(len, words), default=0) <= MAX_TERM:
        return words
    terms_found: list[str] = []
    for word in words:
        if _has_unspaced(word):
            for run in _runs(word):
                terms_found += _pairs(run[0]) if _has_unspaced(run[0]) else [run[0][:MAX_TERM]]
        else:
            terms_found.append(word[:MAX_TERM])
    return terms_found


def query_phrase(text: str) -> tuple[list[str], bool]:
    """Return the terms of one word or phrase of a query, and whether the last one is a prefix."""
    words: list[str] = []
    is_prefix = False
    for word in _folded(text).split():
        for run in _runs(word):
            is_prefix = False
            if not _has_unspaced(run[0]):
                words.append(run[0][:MAX_TERM])
            elif len(run[0]) == 1:
                words.append(run[0])
                is_prefix = True
            else:
                words += _pairs(run[0])[:-1]
    return words, is_prefix


def is_character(term: str) -> bool:
    """Whether a term of a query is one character, which also matches pairs that begin with it."""
    return len(term) == 1 and _has_unspaced(term) is not None


def _pairs(run: str) -> list[str]:
    """Return the overlapping pairs of a run, then its last character, for one-character queries."""
    return [*(run[index : index + 2] for index in range(len(run) - 1)), run[-1]]


def _changing(text: str) -> list[str]:
    """Return the characters of a text whose folding is not exactly one character."""
    return [char for char in set(text) if len(_FOLDING[ord(char)]) != 1]


class FoldedText:
    """A folded text that maps its places back to the original text.

    Most characters fold to exactly one character. Only the others are recorded, so that a long text
    costs little more than its folding.
    """

    def __init__(self, text: str) -> None:
        self.folded = _folded(text)
        self._changes: list[tuple[int, int, int]] = []
        """For each character that folds to none or several: their start, their end, and its own
        place."""
        # ASCII characters fold to one character each.
        changing = () if text.isascii() else _changing(text)
        if changing:
            longer = 0
            for match in re.finditer(f"[{re.escape(''.join(changing))}]", text):
                begin, size = match.start() + longer, len(_FOLDING[ord(match[0])])
                self._changes.append((begin, begin + size, match.start()))
                longer += size - 1

    def find(self, term: str) -> int:
        """Return where the first word that may contain a term begins in the folded text, or -1."""
        start = self.folded.find(term)
        return start if start < 0 else self.folded.rfind(" ", 0, start) + 1

    def terms(self, first: int = 0) -> Iterator[Term]:
        """Yield the terms with their places in the text, starting at the word at `first`."""
        for word in _words(self.folded, first):
            for run in _runs(word[0]):
                begin = word.start() + run.start()
                if not _has_unspaced(run[0]):
                    yield self._term(run[0][:MAX_TERM], begin, begin + len(run[0]))
                    continue
                for index, pair in enumerate(_pairs(run[0]), begin):
                    yield self._term(pair, index, index + len(pair))

    def _term(self, term: str, begin: int, end: int) -> Term:
        return Term(term, self._place(begin), self._place(end - 1) + 1)

    def _place(self, folded: int) -> int:
        if not self._changes:
            return folded
        index = bisect_right(self._changes, folded, key=itemgetter(0)) - 1
        if index < 0:
            return folded
        _, end, place = self._changes[index]
        return place if folded < end else place + 1 + folded - end
