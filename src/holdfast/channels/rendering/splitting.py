"""Split Markdown into messages: never inside a code block's fence, a link or a character."""

import re

_FENCE = re.compile(r"^(\s*)(```+(?!.*`)|~~~+)(.*)$")
"""A line that opens or closes a code block; "```x```" in one line is code within the text."""
_LINK = re.compile(r"!?\[[^\]\n]*\]\([^)\n]*\)|https?://\S+")
SPARE_UNITS = 16
"""Room for a fence that has to be closed at the end of a part."""


ENTITY_UNITS = 5
"""Length of the longest entity that replaces a character: `&amp;`."""


def units(text: str, *, is_utf16: bool, escapes: str = "") -> int:
    """Return the length of a text in the units that the platform counts."""
    length = len(text.encode("utf-16-le")) // 2 if is_utf16 else len(text)
    return length + (ENTITY_UNITS - 1) * sum(map(text.count, escapes))


def split_markdown(
    text: str, max_units: int, *, is_utf16: bool = False, escapes: str = ""
) -> list[str]:
    """Return the parts of a text, each at most `max_units` long, none of them empty.

    A code block that does not fit is closed at the end of a part and reopened in the next.
    """
    if units(text, is_utf16=is_utf16, escapes=escapes) <= max_units:
        return [text]
    splitter = _Splitter(max_units, is_utf16, escapes)
    for line in text.split("\n"):
        splitter.add(line)
    return splitter.finish()


class _Splitter:
    """Collects lines into parts."""

    def __init__(self, max_units: int, is_utf16: bool, escapes: str) -> None:
        self._max = max_units
        self._is_utf16 = is_utf16
        self._escapes = escapes
        self._parts: list[str] = []
        self._lines: list[str] = []
        self._size = 0
        self._opening: str | None = None
        """The line that opened the current code block; None outside of one."""

    def add(self, line: str) -> None:
        fence = _FENCE.match(line)
        if fence is not None and self._opening is not None and self._closes(fence):
            self._put(line, reserve=0)
            self._opening = None
            return
        room = self._max - self._reserve() - (self._units(self._opening or "") + 1)
        for piece in self._pieces(line, max(room, 1)):
            self._put(piece, reserve=self._reserve())
        if fence is not None and self._opening is None:
            self._opening = line

    def _closes(self, fence: "re.Match[str]") -> bool:
        opened = _FENCE.match(self._opening or "")
        return opened is not None and fence[2].startswith(opened[2]) and not fence[3].strip()

    def _reserve(self) -> int:
        return SPARE_UNITS if self._opening is not None else 0

    def _units(self, text: str) -> int:
        return units(text, is_utf16=self._is_utf16, escapes=self._escapes)

    def _put(self, line: str, *, reserve: int) -> None:
        size = self._units(line) + 1
        if self._lines and self._size + size + reserve > self._max + 1:
            self._close_part()
        self._lines.append(line)
        self._size += size

    def _close_part(self) -> None:
        if self._opening is not None and self._lines[-1] == self._opening:
            self._lines.pop()  # an empty block: open it in the next part
        elif self._opening is not None:
            fence = _FENCE.match(self._opening)
            assert fence is not None
            self._lines.append(fence[1] + fence[2])
        self._emit()
        if self._opening is not None:
            self._lines = [self._opening]
            self._size = self._units(self._opening) + 1

    def _emit(self) -> None:
        part = "\n".join(self._lines).strip("\n")
        if part.strip():
            self._parts.append(part)
        self._lines, self._size = [], 0

    def _pieces(self, line: str, room: int) -> list[str]:
        """Return a line in pieces that fit, cut at blanks outside of links where possible."""
        pieces: list[str] = []
        while self._units(line) > room:
            at = self._cut(line, room)
            pieces.append(line[:at].rstrip())
            line = line[at:].lstrip(" ") if self._opening is None else line[at:]
        return [*pieces, line]

    def _cut(self, line: str, room: int) -> int:
        end = len(line)
        if self._units(line) > room:
            # Characters outside the basic plane take two units, so count what fits.
            end, size = 0, 0
            for character in line:
                size += self._units(character)
                if size > room:
                    break
                end += 1
        links = [match.span() for match in _LINK.finditer(line)]
        for at in range(end, end // 2, -1):
            is_blank = at < len(line) and line[at] == " "
            if is_blank and not any(first < at < last for first, last in links):
                return at
        for first, last in links:
            if 0 < first < end < last:
                return first
        return max(end, 1)

    def finish(self) -> list[str]:
        if self._lines:
            self._emit()
        return self._parts
