"""Files, environment and flags: the order they beat each other in, and how mistakes are named."""

from pathlib import Path

import pytest

from holdfast.core.errors import InvalidSetting
from holdfast.settings import Settings, load
from holdfast.stores.open import sqlite_path

FILE = """
[server]
port = 9000
[store]
url = "memory:"
[[upstream]]
name = "local"
url = "http://127.0.0.1:8000/v1"
api = "chat"
models = ["llama*"]
key_env = "LOCAL_KEY"
timeouts = { connect_seconds = 1.5 }
[[upstream]]
url = "http://127.0.0.1:8001/v1"
[sessions.reset]
mode = "daily"
at = "05:30"
timezone = "Europe/Berlin"
[[key]]
key_env = "DOOR"
tenant = "acme"
admin = true
"""


def _load(
    tmp_path: Path, text: str, env: dict[str, str] | None = None, **flags: object
) -> Settings:
    path = tmp_path / "holdfast.toml"
    path.write_text(text)
    return load(path, flags={"server": flags}, environment=env or {})


def test_defaults_apply_without_any_source() -> None:
    settings = load(environment={})
    assert settings.server.port == 8377
    assert settings.upstreams == ()
    assert settings.reset_policy.mode == "none"


def test_a_file_is_read_in_every_section(tmp_path: Path) -> None:
    env = {"LOCAL_KEY": "sk-1", "OPENAI_API_KEY": "sk-2", "DOOR": "hf_x"}
    settings = _load(tmp_path, FILE, env)
    local, other = settings.upstreams
    assert (local.name, local.api, local.models, local.key) == (
        "local",
        "chat",
        ("llama*",),
        "sk-1",
    )
    assert local.timeouts.connect_seconds == 1.5
    assert other.key == "sk-2"
    assert settings.reset_policy.at.hour == 5
    assert str(settings.reset_policy.zone) == "Europe/Berlin"
    assert [(key.tenant, key.admin, key.key) for key in settings.keys] == [("acme", True, "hf_x")]


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    text = "[server]\nport = 1\n"
    assert _load(tmp_path, text).server.port == 1
    env = {"HOLDFAST_SERVER_PORT": "2"}
    assert _load(tmp_path, text, env).server.port == 2
    assert _load(tmp_path, text, env, port=3).server.port == 3


@pytest.mark.parametrize(
    ("text", "listed"), [("/a, /b", ("/a", "/b")), ("/a", ("/a",)), ("", ()), (" ", ())]
)
def test_a_list_in_the_environment_is_separated_by_commas(
    text: str, listed: tuple[str, ...]
) -> None:
    settings = load(environment={"HOLDFAST_SESSIONS_RESET_TRIGGERS": text})
    assert settings.reset.triggers == listed


def test_an_empty_text_between_commas_is_reported_with_its_variable() -> None:
    with pytest.raises(InvalidSetting, match=r"^HOLDFAST_SESSIONS_RESET_TRIGGERS: .* empty"):
        load(environment={"HOLDFAST_SESSIONS_RESET_TRIGGERS": "/a,,/b"})


def test_an_upstream_in_the_environment_replaces_those_of_the_file(tmp_path: Path) -> None:
    env = {"HOLDFAST_UPSTREAM_URL": "http://127.0.0.1:1/v1", "HOLDFAST_UPSTREAM_API": "chat",
           "HOLDFAST_UPSTREAM_KEY": "sk-3", "LOCAL_KEY": "x", "DOOR": "y"}  # fmt: skip
    settings = _load(tmp_path, FILE, env)
    assert [(one.api, one.key) for one in settings.upstreams] == [("chat", "sk-3")]


@pytest.mark.parametrize("field", ["level", "format"])
def test_a_wrong_flag_is_named_as_it_was_written(field: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"^--log-{field} must be one of "):
        load(flags={"log": {field: "loud"}}, environment={})


def test_fields_of_an_upstream_without_its_url_are_not_ignored() -> None:
    flags: dict[str, dict[str, object]] = {"upstream": {"api": "chat"}}
    with pytest.raises(InvalidSetting, match=r"--upstream-api: has no effect without --upstream"):
        load(flags=flags, environment={})
    with pytest.raises(InvalidSetting, match=r"HOLDFAST_UPSTREAM_API.*HOLDFAST_UPSTREAM_URL"):
        load(environment={"HOLDFAST_UPSTREAM_API": "chat"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[lanes]\n\non_busy = 'wait'\n", "toml:3: lanes.on_busy must be one of enqueue"),
        ("[lanes]\nlease_seconds = -1\n", "toml:2: lanes.lease_seconds must be positive"),
        (
            "[server]\nprot = 1\n",
            "toml:2: server.prot is not a setting; did you mean port?",
        ),
        ("[sever]\nport = 1\n", "toml:1: sever is not a setting; did you mean server?"),
        ("[server]\nport = 'x'\n", "toml:2: server.port must be a number from 0 to 65535, not 'x'"),
        (
            "[server]\nport = 70000\n",
            "server.port must be a number from 0 to 65535, not 70000",
        ),
        ("[server]\nport = true\n", "must be a number from 0 to 65535, not true"),
        ("[server]\nport = 1.5\n", "must be a number from 0 to 65535, not 1.5"),
        ("[lanes]\nlease_seconds = inf\n", "toml:2: lanes.lease_seconds must be a number, not inf"),
        ("[lanes]\nlease_seconds = nan\n", "toml:2: lanes.lease_seconds must be a number, not nan"),
        (
            "[lanes]\nlease_seconds = true\n",
            "lanes.lease_seconds must be a number, not true",
        ),
        ("[server]\nhost = 1\n", "must be text"),
        (
            "[sessions.reset]\nat = 04:00:00\n",
            "reset.at must be text, not 04:00:00",
        ),
        ("[server]\nhost = 2026-01-02\n", "server.host must be text, not 2026-01-02"),
        ("[server]\nport = [true, { a = 'b' }]\n", "65535, not [true, { a = 'b' }]"),
        ("[sessions.reset]\ntimezone = 'Mars/Base'\n", "is not an IANA time zone"),
        ("[sessions.reset]\nat = 'noon'\n", "must be a time of day as HH:MM"),
        ("[[upstream]]\nname = 'x'\n", "upstream needs url"),
        ("[[upstream]]\nurl = 'ftp://x'\n", "must be http:// or https://"),
        ("[[upstream]]\nurl = 'http://x/v1'\nstat = 'chain'\n", "did you mean state?"),
        ("[[key]]\nkey_env = 'NOWHERE'\n", "NOWHERE is not set"),
        ("[server\n", "holdfast.toml"),
        ("server = 1\n", "server is a section"),
    ],
)
def test_a_mistake_is_reported_with_its_location(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        _load(tmp_path, text)
    assert message in caught.value.message


@pytest.mark.parametrize("pasted", ["sk-proj-Abc123", "my key", "1KEY", "A=b", "", "KEY\\n"])
@pytest.mark.parametrize(
    ("table", "name"),
    [("[[upstream]]\nurl = 'http://x/v1'\n", "upstream.key_env"), ("[[key]]\n", "key.key_env")],
    ids=["upstream", "key"],
)
def test_a_key_in_place_of_its_variable_is_rejected_without_printing_it(
    tmp_path: Path, table: str, name: str, pasted: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        _load(tmp_path, f'{table}key_env = "{pasted}"\n', {pasted: "x"})
    assert f"{name} is the name of an environment variable, not a key" in caught.value.message
    assert not pasted or pasted not in caught.value.message.replace(str(tmp_path), "")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml", environment={})


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory that is not the configuration's."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


PATHS_IN_FILE = """
[store]
url = "sqlite:///data/a.db"
[retention]
archive = "old"
[[upstream]]
name = "agent"
api = "acp"
command = "./agent"
sandbox = true
workdir = "work/{session}"
credentials = "login.json"
[[mcp]]
name = "files"
command = "bin/server"
workdir = "~/files"
[[mcp]]
name = "found"
command = "server"
"""


def test_relative_paths_of_a_file_start_at_its_directory(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(PATHS_IN_FILE)
    settings = load(Path("../holdfast.toml"), environment={})
    base = tmp_path.resolve()
    assert settings.store.url == f"sqlite:///{base}/data/a.db"
    assert settings.retention.archive == f"{base}/old"
    [agent] = settings.upstreams
    assert (agent.command, agent.workdir, agent.credentials) == (
        f"{base}/agent",
        f"{base}/work/{{session}}",
        f"{base}/login.json",
    )
    files, found = settings.mcp
    assert (files.command, files.workdir) == (f"{base}/bin/server", str(Path.home() / "files"))
    assert (found.command, found.workdir) == ("server", "")


def test_relative_paths_of_variables_and_flags_start_at_the_current_directory(
    tmp_path: Path, elsewhere: Path
) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text('[store]\nurl = "sqlite:///a.db"\n')
    by_variable = load(path, environment={"HOLDFAST_STORE_URL": "sqlite:///b.db?x=1"})
    assert by_variable.store.url == f"sqlite:///{elsewhere}/b.db?x=1"
    by_flag = load(path, flags={"store": {"url": "sqlite:///c%20d%3F.db"}}, environment={})
    assert by_flag.store.url == f"sqlite:///{elsewhere}/c d%3F.db"
    assert sqlite_path(by_flag.store.url) == elsewhere / "c d?.db"


def test_stores_without_a_file_stay_as_they_are() -> None:
    for url in ("memory:", "postgresql://localhost/a"):
        assert load(environment={"HOLDFAST_STORE_URL": url}).store.url == url


def test_a_relative_data_directory_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert load().store.url == f"sqlite:///{Path.home()}/.local/share/holdfast/holdfast.db"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("HOLDFAST_STORE_ULR", "did you mean HOLDFAST_STORE_URL?"),
        ("HOLDFAST_STORE", "did you mean HOLDFAST_STORE_URL?"),
        ("HOLDFAST_DATABASE_URL", "did you mean HOLDFAST_STORE_URL?"),
        ("HOLDFAST_DB", "did you mean HOLDFAST_STORE_URL?"),
        ("HOLDFAST_PORT", "did you mean HOLDFAST_SERVER_PORT?"),
        ("HOLDFAST_HOST", "did you mean HOLDFAST_SERVER_HOST?"),
        ("HOLDFAST_LOGLEVEL", "did you mean HOLDFAST_LOG_LEVEL?"),
        ("HOLDFAST_GRACE_SECONDS", "did you mean HOLDFAST_SERVER_GRACE_SECONDS?"),
        ("HOLDFAST_UPSTREAM", "did you mean HOLDFAST_UPSTREAM_URL?"),
        ("HOLDFAST_UPSTREAM_API_KEY", "did you mean HOLDFAST_UPSTREAM_KEY?"),
        ("HOLDFAST_KEY", "did you mean HOLDFAST_API_KEY?"),
        ("HOLDFAST_CONFIG_FILE", "did you mean HOLDFAST_CONFIG?"),
        ("HOLDFAST_OTEL", "did you mean HOLDFAST_OTEL_CONTENT or HOLDFAST_OTEL_ENDPOINT?"),
        ("HOLDFAST_TURN_SECONDS", "HOLDFAST_HEALS_TURN_SECONDS"),
        ("HOLDFAST_TURN_SECONDS", "HOLDFAST_TOOLS_TURN_SECONDS"),
        ("HOLDFAST_BANANA", "`holdfast config show` prints the settings"),
    ],
)
def test_an_unknown_variable_is_answered_with_what_may_be_meant(name: str, hint: str) -> None:
    with pytest.raises(InvalidSetting) as rejected:
        load(environment={name: "x"})
    assert rejected.value.message.startswith(f"environment variable {name} is not a setting; ")
    assert hint in rejected.value.message
    assert len(rejected.value.message) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[transcribe]\nupstream = "whisper"', "no [[upstream]] with a url is named 'whisper'"),
        (
            '[[upstream]]\nname = "a"\napi = "codex"\n[transcribe]\nupstream = "a"',
            "no [[upstream]] with a url is named 'a'",
        ),
        ('[transcribe]\nmodel = ""', "transcribe.model must not be empty"),
        ("[transcribe]\nseconds = 0", "transcribe.seconds must be positive"),
        ("[transcribe]\nseconds = 601", "transcribe.seconds must be positive and at most 600"),
    ],
)
def test_voice_goes_only_to_an_upstream_that_exists(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(text)
    with pytest.raises(InvalidSetting) as refused:
        load(path, environment={})
    assert message in refused.value.message
