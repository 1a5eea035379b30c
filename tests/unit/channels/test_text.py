"""Commands, access and text of channels."""

import pytest

from holdfast.channels.access import judge
from holdfast.channels.commands import ChatCommand, parse_command
from holdfast.channels.rendering.splitting import split_markdown, units
from holdfast.channels.rendering.styles import to_telegram
from holdfast.channels.session_keys import session_key
from holdfast.channels.settings import ChannelSettings
from holdfast.ports.channel import ChatPlace, InboundMessage


def _settings(**more: object) -> ChannelSettings:
    return ChannelSettings(name="support", kind="telegram", **more)  # type: ignore[arg-type]  # any field


def _message(**more: object) -> InboundMessage:
    fields: dict[str, object] = {
        "unique_id": "1",
        "place": ChatPlace("7"),
        "sender": "7",
        "text": "x",
    }
    return InboundMessage(**{**fields, **more})  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", ChatCommand("new")),
        ("/new@bot hi there", ChatCommand("new", "hi there")),
        ("/STOP", ChatCommand("stop")),
        ("/nonsense", None),
        ("say /new", None),
        ("restart please", ChatCommand("reset", "please")),
    ],
)
def test_a_command_is_the_first_word_of_a_message(text: str, command: ChatCommand | None) -> None:
    assert parse_command(text, "/", ("restart",)) == command


def test_who_may_write_is_decided_by_platform_ids_alone() -> None:
    assert judge(_settings(), _message(), ()) == "pair"
    assert judge(_settings(), _message(), ("7",)) == "allow"
    assert judge(_settings(direct="allow", allow=("8",)), _message(), ()) == "ignore"
    group = _message(is_direct=False, place=ChatPlace("-5"))
    assert judge(_settings(direct="open"), group, ()) == "ignore", "open means direct messages"
    assert judge(_settings(allow_groups=("-5",)), group, ()) == "allow"
    assert judge(_settings(direct="open"), _message(is_bot=True), ()) == "ignore"
    assert judge(_settings(direct="open"), _message(is_anonymous=True), ()) == "ignore"


def test_one_person_has_one_memory_where_people_are_named() -> None:
    people = {"michael": ("telegram:7",)}
    assert session_key(_settings(), {}, _message()) == "agent:main:telegram:direct:7"
    per_peer = _settings(dm_scope="per-peer")
    assert session_key(per_peer, people, _message()) == "agent:main:direct:michael"
    topic = _message(is_direct=False, place=ChatPlace("-5", "3"))
    assert session_key(_settings(), people, topic) == "agent:main:telegram:group:-5:topic:3"


@pytest.mark.parametrize("limit", [40, 100, 400])
def test_parts_fit_and_never_break_code_blocks_links_or_characters(limit: int) -> None:
    link = "[a page](https://example.org/a)"
    text = (
        "Hello 😀😀 " * 12 + f"\n\n{link} words {link}\n\n```py\n"
        + "\n".join(f"line {number} 😀" for number in range(30)) + "\n```\nend"
    )  # fmt: skip
    parts = split_markdown(text, limit, is_utf16=True)
    assert all(units(part, is_utf16=True) <= limit for part in parts)
    assert all(part.count("```") % 2 == 0 for part in parts)
    assert sum(part.count(link) for part in parts) == 2
    joined = "".join(parts)
    assert all(f"line {number} 😀" in joined for number in range(30))


def test_markdown_is_rendered_for_each_platform_and_html_stays_text() -> None:
    text = "**a** <b>x</b> `c<d` [e](https://f.org) [g](javascript:h)"
    assert to_telegram(text) == (
        "<b>a</b> &lt;b&gt;x&lt;/b&gt; <code>c&lt;d</code> "
        '<a href="https://f.org">e</a> [g](javascript:h)'
    )
    assert to_telegram("# Title\n\n- **a**") == "<b>Title</b>\n\n• <b>a</b>"
