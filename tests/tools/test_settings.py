"""Settings of MCP servers: what is refused, and that no secret is shown."""

import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cli.commands.config import masked
from holdfast.core.errors import InvalidSetting
from holdfast.core.model.request import TurnRequest
from holdfast.core.tools.requested import add_tools
from holdfast.settings import load
from holdfast.tools.mcp.check import check_servers
from holdfast.tools.settings import McpSettings

SERVER = Path(__file__).with_name("odd_mcp_server.py")


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "holdfast.toml"
    path.write_text(text)
    return path


def test_variables_are_read_and_never_shown(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        '[[mcp]]\nname = "a"\nurl = "https://example.com/mcp"\nbearer_env = "TOKEN"\n'
        'headers_env = ["X-Team=TEAM"]\n',
    )
    settings = load(path, environment={"TOKEN": "secret-1", "TEAM": "secret-2", "OTHER": "x"})
    (server,) = settings.mcp
    assert server.headers() == {"Authorization": "Bearer secret-1", "X-Team": "secret-2"}
    assert "OTHER" not in server.secrets
    assert "secret-" not in str(masked(settings))
    assert "secret-" not in repr(server)


def test_a_name_is_used_once_by_each_tenant(tmp_path: Path) -> None:
    table = '[[mcp]]\nname = "a"\ncommand = "x"\n'
    assert len(load(_write(tmp_path, f'{table}{table}tenant = "t"\n'), environment={}).mcp) == 2
    with pytest.raises(InvalidSetting, match="used by another"):
        load(_write(tmp_path, table + table), environment={})


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "with space", "command": "x"}, {"name": "x" * 33, "command": "x"},
        {"name": "holdfast", "command": "x"}, {"name": "a"},
        {"name": "a", "command": "x", "url": "http://x"}, {"name": "a", "url": "ftp://x"},
        {"name": "a", "command": "x", "env": ("sk-1234",)},
        {"name": "a", "url": "http://x", "headers_env": ("no variable",)},
        {"name": "a", "command": "x", "concurrency": 0},
        {"name": "a", "command": "x", "start_seconds": 0.0},
    ],
)  # fmt: skip
def test_a_server_that_cannot_work_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting) as refused:
        McpSettings(**fields)
    assert "sk-1234" not in refused.value.message


async def test_a_check_starts_every_server(tmp_path: Path) -> None:
    good = McpSettings(
        name="good", command=sys.executable, args=(str(SERVER), str(tmp_path / "state"))
    )
    bad = McpSettings(name="bad", command=str(tmp_path / "missing"))
    unset = McpSettings(name="unset", url="http://127.0.0.1:9", bearer_env="NOT_SET")
    found = await check_servers([good.filled({}), bad.filled({}), unset.filled({})])
    assert [check.is_ok for check in found] == [True, False, False]
    assert re.fullmatch(r"answers, [1-9]\d* tool\(s\)", found[0].detail)
    assert "NOT_SET" in found[2].detail


def test_an_upstream_adds_tools_to_a_request_once() -> None:
    sent = msgspec.Raw(b'[{"type":"mcp","server_label":"git"},{"type":"function","name":"f"}]')
    request = TurnRequest(api="responses", model="m", fields={"tools": sent})
    named = add_tools(request, ("session_status", "mcp:git"))
    assert msgspec.json.decode(named.fields["tools"]) == [
        {"type": "mcp", "server_label": "git"},
        {"type": "function", "name": "f"},
        {"type": "holdfast", "name": "session_status"},
    ]
    chat = add_tools(TurnRequest(api="chat", model="m"), ("mcp:git",))
    assert msgspec.json.decode(chat.chat_fields["tools"]) == [
        {"type": "mcp", "server_label": "git"}
    ]
    assert add_tools(request, ()) is request


CHANNEL = '[[channel]]\nname = "c"\nkind = "telegram"\ntoken_env = "T"\n'


@pytest.mark.parametrize("scope", ["agent", "tenant"])
@pytest.mark.parametrize("place", ['groups = "mention"', 'groups = "off"\ndirect = "open"'])
def test_a_wide_scope_is_refused_for_channels_that_strangers_reach(
    scope: str, place: str, tmp_path: Path
) -> None:
    text = f'[tools]\nscope = "{scope}"\n{CHANNEL}{place}\ntools = ["memory_search"]\n'
    with pytest.raises(InvalidSetting, match="other people's sessions"):
        load(_write(tmp_path, text), environment={"T": "x"})


@pytest.mark.parametrize(
    ("scope", "channel"),
    [
        ("key", 'direct = "open"\ntools = ["memory_search"]'),
        ("tenant", 'groups = "off"\ntools = ["memory_search"]'),
        ("tenant", 'direct = "open"\ntools = ["mcp:notes"]'),
    ],
)
def test_a_scope_is_accepted_where_nobody_else_is_shown(
    scope: str, channel: str, tmp_path: Path
) -> None:
    text = f'[tools]\nscope = "{scope}"\n{CHANNEL}{channel}\n'
    assert load(_write(tmp_path, text), environment={"T": "x"}).tools.scope == scope
