"""Commands, access and text of channels."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.channels.access import judge
from holdfast.channels.commands import ChatCommand, parse_command
from holdfast.channels.conversations.session_keys import session_key
from holdfast.channels.rendering.splitting import split_markdown, units
from holdfast.channels.rendering.styles import to_slack, to_telegram
from holdfast.channels.settings import ChannelSettings
from holdfast.cli.commands.config import masked
from holdfast.core.errors import InvalidSetting
from holdfast.ports.channel import ChatPlace, InboundMessage
from holdfast.settings import load


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
        ("/new\nfirst text\nsecond", ChatCommand("new", "first text\nsecond")),
        ("/reset\tx y", ChatCommand("reset", "x y")),
        ("/STOP", ChatCommand("stop")),
        (" ", None),
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
    assert session_key(_settings(dm_scope="main"), people, _message()) == "agent:main:main"
    account = _settings(dm_scope="per-account-channel-peer")
    assert session_key(account, {}, _message()) == "agent:main:telegram:support:direct:7"
    slack = ChannelSettings(name="work", kind="slack")
    thread = _message(is_direct=False, group_kind="channel", place=ChatPlace("C1", "1.5"))
    assert session_key(slack, people, thread) == "agent:main:slack:channel:C1:thread:1.5"
    mpim = _message(is_direct=False, is_thread_shared=True, place=ChatPlace("G1", "1.5"))
    assert session_key(slack, people, mpim) == "agent:main:slack:group:G1"
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


@pytest.mark.parametrize("code", ["```print(1)```", "``` a ` b"])
def test_code_within_a_line_begins_no_code_block(code: str) -> None:
    words = [f"word number {number}" for number in range(40)]
    parts = split_markdown("\n".join([code, *words]), 200)
    assert "\n".join(parts).split("\n") == [code, *words], "nothing is added or repeated"


def test_parts_leave_room_for_entities() -> None:
    text = "\n".join("if a < b && c > d:" for _ in range(200))
    parts = split_markdown(text, 400, escapes="&<>")
    assert all(len(to_slack(part)) <= 400 for part in parts)
    assert "".join(parts).count("&&") == 200


def test_a_bare_word_is_a_command_only_as_the_whole_message() -> None:
    assert parse_command("new", "!", is_bare=True) == ChatCommand("new")
    assert parse_command("!new hello", "!", is_bare=True) == ChatCommand("new", "hello")
    assert parse_command("new ideas for Sunday?", "!", is_bare=True) is None
    assert parse_command("new", "!") is None


def test_slack_tokens_are_required_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text('[[channel]]\nname = "work"\nkind = "slack"\nbot_token_env = "BOT"\n')
    tokens = {"BOT": "xoxb-secret", "APP": "xapp-secret"}
    with pytest.raises(InvalidSetting, match="needs app_token_env"):
        load(path, environment=tokens)
    path.write_text(path.read_text() + 'app_token_env = "APP"\n')
    settings = load(path, environment=tokens)
    assert (settings.channels[0].token, settings.channels[0].app_token) == (*tokens.values(),)
    assert "-secret" not in str(masked(settings)) + repr(settings)


def test_markdown_is_rendered_for_each_platform_and_html_stays_text() -> None:
    text = "**a** <b>x</b> `c<d` [e](https://f.org) [g](javascript:h)"
    assert to_telegram(text) == (
        "<b>a</b> &lt;b&gt;x&lt;/b&gt; <code>c&lt;d</code> "
        '<a href="https://f.org">e</a> [g](javascript:h)'
    )
    assert to_slack(text) == (
        "*a* &lt;b&gt;x&lt;/b&gt; `c&lt;d` <https://f.org|e> [g](javascript:h)"
    )
    assert to_slack("> one\n> two\n\n# **T**") == "> one\n> two\n\n*T*"
    assert to_slack("<!channel> [x](https://e.org/?a=1&b=<2>)").startswith("&lt;!channel&gt;")
    assert to_telegram("> one\n\ntwo") == "<blockquote>one</blockquote>\n\ntwo"
    assert to_telegram("# Title\n\n- **a**") == "<b>Title</b>\n\n• <b>a</b>"


@pytest.mark.parametrize("render", [to_telegram, to_slack])
@pytest.mark.parametrize("depth", [1, 9, 19, 20, 21, 60])
def test_nothing_is_left_out_however_deep_it_is_nested(
    render: Callable[[str], str], depth: int
) -> None:
    for text in ("> " * depth + "deepword", "".join(f"{'  ' * n}- x\n" for n in range(depth))):
        assert (render(text).count("x"), "deepword" in render(text)) == (
            text.count("x"), "deepword" in text,
        )  # fmt: skip


@pytest.mark.parametrize(("render", "limit"), [(to_telegram, 4096), (to_slack, 4000)])
def test_a_table_with_one_long_cell_fits_where_its_source_does(
    render: Callable[[str], str], limit: int
) -> None:
    rows = ["| name | remark |", "|---|---|", f"| {'long ' * 100}| x |"]
    rows += [f"| row {number} | y |" for number in range(100)]
    shown = render("\n".join(rows))
    assert len(shown) < limit
    assert "row 99 | y" in shown
    assert "a  | b\ncc | d" in render("| a | b |\n|---|---|\n| cc | d |"), "others are aligned"
