"""Markdown in the formats of the platforms: Telegram's HTML, Slack's mrkdwn."""

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
        "heading": ("<b>", "</b>"),
    },
    link=_html_link,
    quote=lambda inner: f"<blockquote>{inner}</blockquote>",
    max_length=4050,
)


def escape_slack(text: str) -> str:
    """Return a text without links, mentions and other control sequences."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack_link(text: str, address: str) -> str:
    if not address.startswith(_SAFE_SCHEMES):
        return text
    target = escape_slack(address).replace("|", "%7C")
    return f"<{target}|{text.replace('|', '¦')}>"


SLACK = Style(
    escape=escape_slack,
    marks={
        "bold": ("*", "*"),
        "italic": ("_", "_"),
        "struck": ("~", "~"),
        "code": ("`", "`"),
        "block": ("```\n", "\n```"),
        "heading": ("*", "*"),
    },
    link=_slack_link,
    quote=lambda inner: "\n".join(f"> {line}" for line in inner.split("\n")),
    max_length=3950,
)


def to_telegram(text: str) -> str:
    """Return Markdown as Telegram's HTML."""
    return render(text, TELEGRAM)


def to_slack(text: str) -> str:
    """Return Markdown as Slack's mrkdwn."""
    return render(text, SLACK)
