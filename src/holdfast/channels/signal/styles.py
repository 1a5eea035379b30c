"""Markdown as Signal's text with style ranges."""

from holdfast.channels.rendering.markdown import Style, render

_STYLES = ("BOLD", "ITALIC", "STRIKETHROUGH", "MONOSPACE")
_OPEN, _CLOSE = 0xE100, 0xE200
"""Private-use characters that mark where a style begins and ends during rendering."""
_MARKS = {chr(base + index) for base in (_OPEN, _CLOSE) for index in range(len(_STYLES))}


def _escape(text: str) -> str:
    return "".join(character for character in text if character not in _MARKS)


def _mark(style: str) -> tuple[str, str]:
    index = _STYLES.index(style)
    return chr(_OPEN + index), chr(_CLOSE + index)


def _link(text: str, address: str) -> str:
    return text if not address or address in text else f"{text} ({address})"


_SIGNAL = Style(
    escape=_escape,
    marks={
        "bold": _mark("BOLD"),
        "italic": _mark("ITALIC"),
        "struck": _mark("STRIKETHROUGH"),
        "code": _mark("MONOSPACE"),
        "block": _mark("MONOSPACE"),
        "heading": _mark("BOLD"),
    },
    link=_link,
    quote=lambda inner: "\n".join(f"> {line}" for line in inner.split("\n")),
    max_length=2000,
)


def to_signal(text: str) -> tuple[str, list[str]]:
    """Return the text, and its styles as `start:length:STYLE` in UTF-16 units."""
    plain: list[str] = []
    units = 0
    opened: dict[int, list[int]] = {}
    styles: list[str] = []
    for character in render(text, _SIGNAL):
        code = ord(character)
        if _OPEN <= code < _OPEN + len(_STYLES):
            opened.setdefault(code - _OPEN, []).append(units)
        elif _CLOSE <= code < _CLOSE + len(_STYLES):
            start = opened[code - _CLOSE].pop()
            if units > start:
                styles.append(f"{start}:{units - start}:{_STYLES[code - _CLOSE]}")
        else:
            plain.append(character)
            units += 2 if code > 0xFFFF else 1
    return "".join(plain), styles
