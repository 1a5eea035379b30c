"""Every value of the configuration is checked, and a wrong one is named with its line."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from website import configuration

from holdfast.channels.settings import ChannelSettings
from holdfast.core.errors import InvalidSetting
from holdfast.providers.settings import UpstreamSettings
from holdfast.settings import AccessKey, Settings, load
from holdfast.settings.reading import SECRET_FIELDS
from tests.shell_walk import blocks_of

ROOT = Path(__file__).parents[3]
SECTIONS = {
    configuration.SECTIONS.get(field.name, field.name): type(getattr(Settings(), field.name))
    for field in dataclasses.fields(Settings)
    if field.name not in configuration.TABLES
}
FIELDS = [
    (section, field.name, get_type_hints(kind)[field.name])
    for section, kind in SECTIONS.items()
    for field in dataclasses.fields(kind)
]


def _wrong(hint: Any) -> str:
    """Return a value that a field cannot have, as TOML."""
    if get_origin(hint) is Union or "UnionType" in str(type(hint)):
        return _wrong(next(one for one in get_args(hint) if one is not type(None)))
    return '"nonsense"' if hint in (int, float, bool) or get_origin(hint) is Literal else "7"


@pytest.mark.parametrize(("section", "field", "hint"), FIELDS, ids=lambda v: str(v)[:40])
def test_a_wrong_value_is_rejected_with_file_line_and_valid_values(
    section: str, field: str, hint: Any, tmp_path: Path
) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(f"# a comment\n\n[{section}]\n{field} = {_wrong(hint)}\n")
    with pytest.raises(InvalidSetting) as refused:
        load(path, environment={})
    assert refused.value.message.startswith(f"{path}:4: {section}.{field} must be ")
    for choice in get_args(hint) if get_origin(hint) is Literal else ():
        assert str(choice) in refused.value.message
    variable = f"HOLDFAST_{section.replace('.', '_')}_{field}".upper()
    if hint in (int, float, bool):
        with pytest.raises(InvalidSetting, match=f"^{variable} must be "):
            load(environment={variable: "nonsense"})


FIRST = "[[upstream]]\nurl = 'http://a/v1'\n"
DAILY = "[[schedule]]\nname = 'a'\nevery = '1d'\nprompt = 'x'"
BOT = "[[channel]]\nkind = 'telegram'\ntoken_env = 'HOLDFAST_TEST_TOKEN'\n"
RANGES = [
    ("[server]\nport = 70000", 2, "65535"),
    ("[server]\ngrace_seconds = -1", 2, "negative"),
    ("[lanes]\nlease_seconds = 0", 2, "positive"),
    ("[store]\ncache_bytes = -1", 2, "negative"),
    ("[lanes]\nmax_waiting = -1", 2, "negative"),
    ("[lanes]\nmax_attempts = 0", 2, "at least 1"),
    ("[sessions]\nkeep_alive_seconds = 0", 2, "positive"),
    ("[sessions.reset]\nidle_minutes = 0", 2, "positive"),
    ("[sessions.reset]\nat = '25:00'", 2, "HH:MM"),
    ("[sessions.reset]\ntimezone = 'Mars/Olympus'", 2, "IANA"),
    ("[limits]\nbody_bytes = 1", 2, "1024"),
    ("[limits]\nrequests_per_minute = -1", 2, "negative"),
    ("[heals]\nturn_seconds = 0", 2, "positive"),
    ("[[upstream]]\nurl = 'ftp://x'", 2, "http://"),
    ("[[upstream]]\nname = 'a'", 1, "url"),
    (FIRST + "[[upstream]]\nurl = 'http://b/v1'\napi = 'soap'", 5, "chat"),
    (FIRST + "[[upstream]]\nurl = 'http://b/v1'\nmodles = []", 5, "models"),
    (FIRST + "[[upstream]]\nurl = 'x'", 4, "http://"),
    ("[[upstream]]\nurl = 'http://a/v1'\ncontext_tokens = 0", 3, "positive"),
    ("[[upstream]]\nurl = 'http://a/v1'\nstate = 'chain'\napi = 'chat'", 3, "responses"),
    ("[server]\nhots = 'x'", 2, "host"),
    ("# one\n[upstream]\nurl = 'http://a/v1'", 2, "[[upstream]]"),
    ("# one\nlanes = 3", 2, "[lanes]"),
    ("[sessions]\nreset = 'idle'", 2, "[sessions.reset]"),
    ("[log]\n[[key]]\ntenant = 'a'\nkey_env = 'NOWHERE'", 4, "NOWHERE is not set"),
    ("[retention]\nsessions_days = 1", 2, "retention.archive"),
    (FIRST + "[upstream.timeouts]\nconnect_seconds = 0", 4, "upstream.timeouts.connect_seconds"),
    (FIRST + "timeouts = { connect_seconds = 0 }", 3, "upstream.timeouts.connect_seconds"),
    (FIRST + "[upstream.timeouts]\n\nconect_seconds = 1", 5, "connect_seconds"),
    (FIRST + FIRST + "[upstream.timeouts]\nchunk_seconds = 'x'", 6, "a number"),
    ("[server]\nport = 1\nport = 2", 3, "overwrite"),
    ("[context]\nprompt = '''\nmode = 3\n'''\nmode = 'x'", 5, "context.mode"),
    (FIRST + "name = 'a'\n" + FIRST + "name = 'a'", 6, "'a' is used by another [[upstream]]"),
    (FIRST + "\n" + FIRST, 4, "'upstream' is used by another [[upstream]]"),
    ("[server]\ncors_origins = 'x'", 2, "must be a list, not 'x'"),
    ("[sessions.reset]\ntriggers = '/new'", 2, "must be a list, not '/new'"),
    (FIRST + "models = 'z'", 3, "must be a list, not 'z'"),
    ("[sessions.reset]\ntriggers = ['/new', '']", 2, "empty"),
    ("[store]\nurl = ''", 2, "sqlite:///file.db"),
    ("[store]\nurl = 'mysql://x'", 2, "none of memory:"),
    ("[store]\nurl = 'memory:x'", 2, "none of memory:"),
    ("[store]\nurl = 'sqlite:x.db'", 2, "sqlite:///relative.db"),
    ("[store]\nurl = 'postgresql://u:p@h:notaport/d'", 2, "port that is no number"),
    ("[server]\nhost = ''", 2, "an address or a name"),
    (DAILY + "\n" + DAILY, 6, "'a' is used by another [[schedule]]"),
    (BOT + "name = 'a'\n" + BOT + "name = 'b'", 5, "channel 'a' has the same token"),
    (BOT + "name = 'a'\noutbox_hours = 0", 5, "positive"),
    (BOT + "name = 'a'\napp_token = 'xapp-1'", 5, "app_token"),
    ("[people]\na = ['telegram:1']\nb = ['slack:U1', 'telegram:1']", 3, "belongs to 'a'"),
    ("[people]\na = ['123']", 2, "'telegram:123'"),
    ("[people]\na = ['teltgram:123']", 2, "signal"),
    ("[server]\nhost = 'a b'", 2, "an address or a name"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "named"), RANGES, ids=lambda v: str(v)[:30])
def test_a_value_out_of_range_is_rejected_with_its_line(
    text: str, line: int, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(text + "\n")
    with pytest.raises(InvalidSetting) as refused:
        load(path, environment={"HOLDFAST_TEST_TOKEN": "42:TEST"})
    assert refused.value.message.startswith(f"{path}:{line}: "), refused.value.message
    assert named in refused.value.message


def test_all_mistakes_of_a_configuration_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(
        """
[server]
prot = 1
grace_seconds = "x"
host = 3
[lanes]
max_waiting = -1
[[upstream]]
url = "http://127.0.0.1:1/v1"
modles = ["a"]
api = "chat!"
[[mcp]]
name = "a"
[people]
a = ["123"]
[sevrer]
port = 1
"""
    )
    with pytest.raises(InvalidSetting) as refused:
        load(path, environment={})
    first, *problems = refused.value.message.splitlines()
    assert first == "9 problems in the configuration:"
    lines = sorted(int(problem.partition(".toml:")[2].partition(":")[0]) for problem in problems)
    assert lines == [3, 4, 5, 7, 10, 11, 12, 15, 16]


def test_a_key_set_twice_at_the_end_of_a_file_is_rejected_with_its_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("[server]\nport = 1\nport = 2")
    with pytest.raises(InvalidSetting) as refused:
        load(path, environment={})
    assert refused.value.message.startswith(f"{path}:3: ")


def test_a_wrong_table_of_the_file_is_not_reported_as_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("[[upstream]]\nurl = 'ftp://x'\n")
    with pytest.raises(InvalidSetting) as refused:
        load(path, environment={"HOLDFAST_UPSTREAM_URL": "http://a/v1"})
    assert refused.value.message.startswith(f"{path}:2: ")


def test_fractions_of_minutes_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("[sessions.reset]\nmode = 'idle'\nidle_minutes = 0.5\nrollover = 'hard'\n")
    assert load(path, environment={}).reset_policy.idle_seconds == 30.0


def test_the_configuration_reference_matches_the_code() -> None:
    page = configuration.page()
    assert (ROOT / configuration.PAGE).read_text() == page, "run `make docs`"
    for kind in (UpstreamSettings, AccessKey, ChannelSettings):
        for field in dataclasses.fields(kind):
            if field.name not in SECRET_FIELDS:
                assert f"| `{field.name}` |" in page


@pytest.mark.parametrize("name", ["settings.md", "configuration.md"])
def test_the_examples_of_a_page_load(name: str, tmp_path: Path) -> None:
    blocks = [b for b in blocks_of(ROOT / "docs/reference" / name) if b.language == "toml"]
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        path.write_text(block.text)
        environment = dict.fromkeys(re.findall(r'key_env = "(\w+)"', block.text), "secret")
        assert load(path, environment=environment) != Settings()
