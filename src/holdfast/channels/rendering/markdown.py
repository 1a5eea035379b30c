"""Render Markdown with a parser to the formats that platforms support."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


class Style(NamedTuple):
    """How a platform writes text and its formatting."""

    escape: Callable[[str], str]
    marks: Mapping[str, tuple[str, str]]
    """The marks before and after bold, italic, struck, code, block and heading."""
    link: Callable[[str, str], str]
    """Returns a link from its rendered text and its address."""
    quote: Callable[[str], str]
    """Returns a block quote from its rendered text."""
    max_length: int
    """Maximum length of a message in UTF-16 units; tables are aligned only if they fit."""


@lru_cache(maxsize=1)
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    # Raw HTML is treated as text: nothing in an answer may become a platform's markup.
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


def render(text: str, style: Style) -> str:
    """Return Markdown in a platform's format."""
    parser = _parser()
    tokens = parser.parse(text)
    deepest = max((token.level + 1 for token in tokens if token.nesting > 0), default=0)
    if deepest >= parser.options.maxNesting:
        return style.escape(text)  # the parser omits content that is nested deeper
    length = len(style.escape(text).encode("utf-16-le")) // 2
    return _Renderer(style, style.max_length - length).render(tokens).strip("\n")


class _Renderer:
    """Walks the parser's tokens."""

    def __init__(self, style: Style, spare: int) -> None:
        self._style = style
        self._spare = spare
        """By how many units the text may grow."""
        self._out: list[str] = []
        self._lists: list[int | None] = []
        """The number of the next item of each open list; None for bullets."""
        self._quotes: list[int] = []
        """Where in the output each open block quote begins."""
        self._is_heading = False

    def render(self, tokens: "Sequence[Token]") -> str:
        index = 0
        while index < len(tokens):
            token = tokens[index]
            if token.type == "table_open":
                end = next(
                    at for at in range(index, len(tokens)) if tokens[at].type == "table_close"
                )
                self._table(tokens[index:end])
                index = end
            else:
                self._block(token)
            index += 1
        return "".join(self._out)

    def _mark(self, name: str, side: int) -> str:
        return self._style.marks.get(name, ("", ""))[side]

    def _block(self, token: "Token") -> None:
        out, kind = self._out, token.type
        if kind == "inline":
            out.append(self._inline(token.children or []))
        elif kind in ("fence", "code_block"):
            inner = self._style.escape(token.content.rstrip("\n"))
            out.append(f"{self._mark('block', 0)}{inner}{self._mark('block', 1)}\n\n")
        elif kind == "heading_open":
            self._is_heading = True
            out.append(self._mark("heading", 0))
        elif kind == "heading_close":
            self._is_heading = False
            out.append(self._mark("heading", 1) + "\n\n")
        elif kind == "paragraph_close":
            out.append("\n" if self._lists else "\n\n")
        elif kind == "hr":
            out.append("———\n\n")
        else:
            self._container(token)

    def _container(self, token: "Token") -> None:
        out, kind = self._out, token.type
        if kind == "blockquote_open":
            self._quotes.append(len(out))
        elif kind == "blockquote_close":
            begin = self._quotes.pop()
            inner = "".join(out[begin:]).strip("\n")
            out[begin:] = [self._style.quote(inner) + "\n\n"]
        elif kind in ("bullet_list_open", "ordered_list_open"):
            start = token.attrGet("start") if kind == "ordered_list_open" else None
            is_ordered = kind == "ordered_list_open"
            self._lists.append(int(start or 1) if is_ordered else None)
        elif kind in ("bullet_list_close", "ordered_list_close"):
            self._lists.pop()
            if not self._lists:
                out.append("\n")
        elif kind == "list_item_open":
            self._item()

    def _item(self) -> None:
        number = self._lists[-1]
        indent = "  " * (len(self._lists) - 1)
        if number is None:
            self._out.append(f"{indent}• ")
        else:
            self._out.append(self._style.escape(f"{indent}{number}. "))
            self._lists[-1] = number + 1

    def _inline(self, tokens: "Sequence[Token]") -> str:
        out: list[str] = []
        links: list[tuple[str, int]] = []
        for token in tokens:
            kind = token.type
            if kind == "text":
                out.append(self._style.escape(token.content))
            elif kind in ("softbreak", "hardbreak"):
                out.append("\n")
            elif kind == "code_inline":
                inner = self._style.escape(token.content)
                out.append(f"{self._mark('code', 0)}{inner}{self._mark('code', 1)}")
            elif kind == "image":
                address = str(token.attrGet("src") or "")
                out.append(self._style.link(self._style.escape(token.content or address), address))
            elif kind == "link_open":
                links.append((str(token.attrGet("href") or ""), len(out)))
            elif kind == "link_close":
                address, start = links.pop()
                inner = "".join(out[start:])
                del out[start:]
                out.append(self._style.link(inner, address))
            else:
                out.append(self._inline_mark(kind))
        return "".join(out)

    def _inline_mark(self, kind: str) -> str:
        name, _, side = kind.rpartition("_")
        mark = {"em": "italic", "strong": "bold", "s": "struck"}.get(name, "")
        if mark == "bold" and self._is_heading:
            return ""  # A heading is bold already; the same mark twice would cancel itself.
        return self._mark(mark, side == "close")

    def _table(self, tokens: "Sequence[Token]") -> None:
        """Write a table as aligned text in a code block, because no platform has tables.

        One long cell makes every row long. If the message has no room for that, columns are not
        aligned.
        """
        rows: list[list[str]] = []
        for token in tokens:
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "inline":
                rows[-1].append(token.content)
        joined = [" | ".join(row) for row in rows]
        widths = [max(len(row[at]) for row in rows if at < len(row)) for at in range(len(rows[0]))]
        lines = [
            " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
            for row in rows
        ]
        added = sum(map(len, lines)) - sum(map(len, joined))
        if added > self._spare:
            lines = joined
        else:
            self._spare -= added
        inner = self._style.escape("\n".join(lines))
        self._out.append(f"{self._mark('block', 0)}{inner}{self._mark('block', 1)}\n\n")
