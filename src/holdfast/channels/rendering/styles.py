"""Markdown as Telegram's HTML."""

from html import escape

from holdfast.channels.rendering.markdown import Style, render

_SAFE_SCHEMES = ("http://", "https://", "mailto:", "tel:", "tg://")


def _html_link(text: str, address: str) -> str:
    if not address.startswith(_SAFE_SCHEMES):
        return text
    return f'<a href="{escape(address)}">{text}</a>'


TELEGRAM = Style(
    escape=lambda text: escape(text, quote=False),
    marks={
        "bold": ("<b>", "</b>"),
        "italic": ("<i>", "</i>"),
        "struck": ("<s>", "</s>"),
        "code": ("<code>", "</code>"),
        "block": ("<pre>", "</pre>"),
        "quote": ("<blockquote>", "</blockquote>"),
        "heading": ("<b>", "</b>"),
    },
    link=_html_link,
)


def to_telegram(text: str) -> str:
    """Return Markdown as Telegram's HTML."""
    return render(text, TELEGRAM)
