"""Word wrap for text that arrives in pieces."""

import sys
import unicodedata


class WordWrapper:
    """Wraps streamed text at word boundaries, without waiting for more than one word.

    A word longer than a line is split. Line breaks of the text stay.
    """

    def __init__(self, width: int) -> None:
        self._width = max(width, 1)
        self._column = 0
        self._word = ""

    def feed(self, text: str) -> str:
        """Return the text that can be printed now; the last, unfinished word is held back."""
        out: list[str] = []
        for char in text:
            if char in " \t\n":
                out.append(self._take_word())
                out.append(self._space(char))
            else:
                self._word += char
                if _cells(self._word) >= self._width:
                    out.append(self._take_word())
        return "".join(out)

    def flush(self) -> str:
        """Return the word that was held back."""
        return self._take_word()

    def _take_word(self) -> str:
        word, self._word = self._word, ""
        if not word:
            return ""
        size = _cells(word)
        if self._column and self._column + size > self._width:
            self._column = size
            return "\n" + word
        self._column += size
        return word

    def _space(self, char: str) -> str:
        if char == "\n":
            self._column = 0
            return char
        if self._column >= self._width:
            return ""  # the next word starts a new line anyway
        self._column += 1
        return " " if char == "\t" else char


def _cells(text: str) -> int:
    """Return how many terminal cells text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def terminal_width() -> int:
    """Return the width of the terminal, or 80."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
