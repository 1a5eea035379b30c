"""The forms of the platforms: Telegram's HTML, Slack's mrkdwn, plain text."""

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


def _slack_escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack_link(text: str, address: str) -> str:
    if not address.startswith(_SAFE_SCHEMES):
        return text
    return f"<{address.replace('>', '%3E').replace('|', '%7C')}|{text.replace('|', '¦')}>"


SLACK = Style(
    escape=_slack_escape,
    marks={
        "bold": ("*", "*"),
        "italic": ("_", "_"),
        "struck": ("~", "~"),
        "code": ("`", "`"),
        "block": ("```\n", "\n```"),
        "quote": ("> ", ""),
        "heading": ("*", "*"),
    },
    link=_slack_link,
)

PLAIN = Style(
    escape=lambda text: text,
    marks={"quote": ("> ", "")},
    link=lambda text, address: text if text == address else f"{text} ({address})",
)


def to_telegram(text: str) -> str:
    """Return Markdown as Telegram's HTML."""
    return render(text, TELEGRAM)


def to_slack(text: str) -> str:
    """Return Markdown as Slack's mrkdwn."""
    return render(text, SLACK)


def to_plain(text: str) -> str:
    """Return Markdown as text without marks."""
    return render(text, PLAIN)
