"""`holdfast config check` looks at everything that a configuration names, and changes nothing."""

import json
import socket
import sqlite3
import sys
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import httpx
import pytest

from holdfast.cli.output.masking import mask_url
from holdfast.simulator.platforms.telegram import TelegramSimulator
from tests.acceptance.gateway_process import free_port, running_gateway
from tests.cli.terminals import in_pipe, in_process
from tests.postgres import PostgresServer


class Check:
    """Runs the check on a configuration with a store and a port of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = folder / "holdfast.toml"
        self.port = free_port()
        self.store = f"sqlite:///{folder / 'own.db'}"
        self.warned: set[str] = set()
        self._capsys = capsys

    def run(self, more: str = "", *, host: str = "127.0.0.1") -> dict[str, tuple[bool, str]]:
        """Return result and detail by subject; the exit code tells whether all is well."""
        self.path.write_text(
            f'[server]\nhost = "{host}"\nport = {self.port}\n[store]\nurl = "{self.store}"\n{more}'
        )
        outcome = in_process(self._capsys, "config", "check", "--config", str(self.path), "--json")
        assert outcome.err == "", outcome.err
        checks = json.loads(outcome.out)["checks"]
        self.warned = {one["subject"] for one in checks if one["is_warning"]}
        assert outcome.code == (0 if all(one["is_ok"] for one in checks) else 1)
        return {one["subject"]: (one["is_ok"], one["detail"]) for one in checks}

    @property
    def server(self) -> str:
        return f"server 127.0.0.1:{self.port}"


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """A configuration that can be checked."""
    return Check(tmp_path, capsys)


def test_a_default_configuration_is_fine_and_nothing_is_created(
    check: Check, tmp_path: Path
) -> None:
    results = check.run()
    assert all(is_ok for is_ok, _ in results.values()), results
    assert results[check.server] == (True, "free")
    assert [path.name for path in tmp_path.iterdir()] == ["holdfast.toml"]


# ── the server ──────────────────────────────────────────────────────────────────────────────


def test_an_address_for_others_needs_an_api_key(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = f"server 0.0.0.0:{check.port}"
    is_ok, detail = check.run(host="0.0.0.0")[subject]
    assert not is_ok
    assert "`holdfast keys create --store sqlite:///" in detail
    monkeypatch.setenv("GATEWAY_KEY", "hf_a-key-of-an-admin")
    assert check.run('[[key]]\nkey_env = "GATEWAY_KEY"\n', host="0.0.0.0")[subject][0]


def test_a_key_in_the_store_counts_until_it_is_revoked(check: Check) -> None:
    subject = f"server 0.0.0.0:{check.port}"
    created = json.loads(in_pipe("keys", "create", "--store", check.store, "--json").out)
    assert check.run(host="0.0.0.0")[subject][0]
    assert in_pipe("keys", "revoke", created["id"], "--store", check.store).code == 0
    assert not check.run(host="0.0.0.0")[subject][0]


def test_a_port_that_another_program_uses_is_found(check: Check) -> None:
    with socket.create_server(("127.0.0.1", check.port)):
        is_ok, detail = check.run()[check.server]
    assert not is_ok
    assert "in use" in detail


def test_a_port_that_our_own_gateway_uses_is_fine(check: Check) -> None:
    with running_gateway(check.store, "--port", str(check.port)):
        assert check.run()[check.server] == (True, "a gateway answers there")


# ── traces ──────────────────────────────────────────────────────────────────────────────────


class _Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(200 if self.path == "/v1/traces" else 404)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[str]:
    """A server that accepts traces."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_check_reports_whether_a_collector_accepts_traces(check: Check, collector: str) -> None:
    def result(endpoint: str) -> tuple[bool, str]:
        return check.run(f'[otel]\nendpoint = "{endpoint}"\n')[f"otel {endpoint}"]

    assert result(collector) == (True, "accepts traces")
    is_ok, detail = result(f"{collector}/wrong")
    assert not is_ok
    assert "status 404" in detail
    assert not result("http://127.0.0.1:1")[0]


# ── upstreams and the store ─────────────────────────────────────────────────────────────────


class _Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_known = self.path == "/v1/models"
        is_allowed = self.headers["authorization"] == "Bearer right-key"
        body = b'{"object":"list","data":[{"id":"gpt-4.1","object":"model"}]}'
        if not is_known:
            body = b'{"error":{"message":"no such page"}}'
        elif not is_allowed:
            body = b'{"error":{"message":"who are you?"}}'
        self.send_response(404 if not is_known else 200 if is_allowed else 401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def models() -> Iterator[str]:
    """A server that lists one model under /v1, for those who have its key."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Models) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


TOLD = 'api = "responses"'
"""So that the server, which only lists models, is not asked what it speaks."""


def upstream(url: str, more: str = "") -> str:
    return f'[[upstream]]\nname = "one"\nurl = "{url}"\nkey_env = "ONE_KEY"\n{more}\n'


def test_an_address_without_v1_is_a_warning(
    check: Check, models: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE_KEY", "right-key")
    assert check.run(upstream(f"{models}/v1", TOLD))["upstream one"] == (
        True,
        "answers, 1 model(s)",
    )
    assert check.warned == set()
    is_ok, detail = check.run(upstream(models, TOLD))["upstream one"]
    assert is_ok
    assert detail == "/models answers with status 404: is /v1 missing at the end of `url`?"
    assert check.warned == {"upstream one"}
    outcome = in_pipe("config", "check", "--config", str(check.path))
    assert "warning" in outcome.out


def test_models_that_the_upstream_does_not_have_are_a_warning(
    check: Check, models: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE_KEY", "right-key")
    found = check.run(upstream(f"{models}/v1", f'{TOLD}\nmodels = ["claude-*", "x"]'))[
        "upstream one"
    ]
    assert found == (True, "answers, but lists no model that `models` matches: claude-*, x")
    assert check.warned == {"upstream one"}


def test_a_key_of_an_upstream_that_is_not_set_is_named(check: Check, models: str) -> None:
    unset = "called without a key: the environment variable ONE_KEY is not set"
    is_ok, detail = check.run(upstream(f"{models}/v1"))["upstream one"]
    assert not is_ok
    assert unset in detail
    assert "not accepted" not in detail
    is_ok, detail = check.run(upstream(models))["upstream one"]
    assert is_ok, "some servers need no key"
    assert unset in detail


@pytest.mark.parametrize("folder", ["file/inner", "program/inner", "dangling", "/proc/none"])
def test_a_store_whose_folder_cannot_be_created_is_found(
    check: Check, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "program").touch(0o755)
    (tmp_path / "dangling").symlink_to("nowhere")
    check.store = f"sqlite:///{tmp_path / folder / 'own.db'}"
    is_ok, detail = check.run()[f"store {check.store}"]
    assert not is_ok
    assert "folder" in detail or "writable" in detail
    assert not (tmp_path / "nowhere").exists()


def test_what_a_killed_gateway_left_is_not_changed(check: Check, tmp_path: Path) -> None:
    with running_gateway(check.store, "--port", str(check.port)) as gateway:
        body = {"model": "holdfast-demo", "messages": [{"role": "user", "content": "hello"}]}
        chatted = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=60)
        assert chatted.status_code == 200, chatted.text
        gateway.kill()
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("own.db*") if path.is_file()}
    assert kept["own.db-wal"], "the last turns are in the WAL only"
    assert check.run()[f"store {check.store}"] == (True, "writable")
    found = {path.name: path.read_bytes() for path in tmp_path.glob("own.db*") if path.is_file()}
    # The index of the WAL is rebuilt by every reader.
    assert found | {"own.db-shm": b""} == kept | {"own.db-shm": b""}


def test_a_store_that_somebody_writes_to_is_not_waited_for(check: Check, tmp_path: Path) -> None:
    assert in_pipe("keys", "create", "--store", check.store).code == 0
    connection = sqlite3.connect(tmp_path / "own.db", isolation_level=None)
    try:
        connection.execute("begin immediate")
        assert check.run()[f"store {check.store}"] == (True, "writable")
    finally:
        connection.close()


def test_a_database_is_only_read(
    check: Check, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A role that may do nothing else is enough."""
    assert in_pipe("keys", "create", "--store", postgres_url).code == 0
    target, role = urlsplit(postgres_url), f"reader_{check.port}"
    execute = partial(postgres_server.execute, database=target.path.removeprefix("/"))
    execute(
        f"create role {role} login password 'secret'",
        f"grant select on all tables in schema public to {role}",
        "revoke create on schema public from public",
    )
    try:
        place = target.netloc.rpartition("@")[2]
        check.store = target._replace(netloc=f"{role}:secret@{place}").geturl()
        assert check.run(host="0.0.0.0")[f"server 0.0.0.0:{check.port}"] == (True, "free")
        examined = in_pipe("doctor", "--store", check.store)
        assert examined.err == f"holdfast: used store {mask_url(check.store)}\n"
    finally:
        execute(f"drop owned by {role}", f"drop role {role}")


# ── channels ────────────────────────────────────────────────────────────────────────────────


def telegram(url: str, more: str = "") -> str:
    return (
        f'[[channel]]\nname = "bot"\nkind = "telegram"\nurl = "{url}"\n'
        f'token_env = "BOT_TOKEN"\n{more}\n'
    )


def test_a_channel_check_reports_the_account(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    with TelegramSimulator() as platform:
        monkeypatch.setenv("BOT_TOKEN", platform.token)
        is_ok, detail = check.run(telegram(platform.url))["channel bot"]
        assert (is_ok, detail) == (True, f"telegram answers: @{platform.bot['username']}")
        assert [method for method, _ in platform.calls] == ["getMe"]
        monkeypatch.setenv("BOT_TOKEN", "4711:wrong-token")
        is_ok, detail = check.run(telegram(platform.url))["channel bot"]
        assert not is_ok
        assert "Unauthorized" in detail
    is_ok, detail = check.run(telegram("http://127.0.0.1:1"))["channel bot"]
    assert not is_ok
    assert "wrong-token" not in detail


def test_a_webhook_without_a_secret_is_found(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    with TelegramSimulator() as platform:
        monkeypatch.setenv("BOT_TOKEN", platform.token)
        more = 'receive = "webhook"'
        is_ok, detail = check.run(telegram(platform.url, more))["channel bot"]
    assert not is_ok
    assert "signing_secret_env" in detail


# ── tools, agents and schedules ─────────────────────────────────────────────────────────────


def test_missing_programs_of_tools_and_agents_are_found(check: Check) -> None:
    results = check.run(
        '[[mcp]]\nname = "files"\ncommand = "no-such-server"\n'
        '[[upstream]]\nname = "claude"\napi = "claude-code"\ncommand = "no-such-agent"\n'
    )
    for subject, program in (("mcp files", "no-such-server"), ("upstream claude", "no-such-agent")):
        is_ok, detail = results[subject]
        assert not is_ok
        assert program in detail


def test_an_mcp_server_that_is_no_program_is_found(check: Check) -> None:
    is_ok, detail = check.run(
        f'[[mcp]]\nname = "files"\ncommand = "{sys.executable}"\nargs = ["-c", "exit(3)"]\n'
    )["mcp files"]
    assert not is_ok
    assert detail


def test_schedules_name_existing_channels_and_tools_and_tell_their_next_run(check: Check) -> None:
    results = check.run(
        '[[schedule]]\nname = "news"\nprompt = "p"\ncron = "0 9 * * *"\n'
        'tools = ["session_status", "mcp:none", "nothing"]\n'
        '[[schedule]]\nname = "lost"\nprompt = "p"\nevery = "1h"\n'
        'deliver = { channel = "bot", to = "1" }\n'
        '[[schedule]]\nname = "past"\nprompt = "p"\nat = "2020-01-01T00:00:00Z"\n'
    )
    assert results["schedule past"] == (False, "its time is past")
    assert results["schedule lost"] == (False, "deliver.channel: there is no [[channel]] 'bot'")
    assert results["tools of schedule news"][0] is False
    assert "mcp:none, nothing" in results["tools of schedule news"][1]
    is_ok, detail = results["schedule news"]
    assert is_ok
    assert detail.startswith("runs next at 20")


def test_tools_that_belong_to_another_tenant_are_found(check: Check) -> None:
    results = check.run(
        '[[mcp]]\nname = "ledger"\nurl = "http://127.0.0.1:1/mcp"\ntenant = "acme"\n'
        '[[upstream]]\nname = "one"\nurl = "http://127.0.0.1:1/v1"\ntools = ["mcp:ledger"]\n'
        '[[schedule]]\nname = "ours"\nprompt = "p"\nevery = "1h"\ntools = ["mcp:ledger"]\n'
        '[[schedule]]\nname = "theirs"\nprompt = "p"\nevery = "1h"\ntools = ["mcp:ledger"]\n'
        'tenant = "acme"\n'
    )
    detail = "mcp:ledger belongs to tenant acme"
    subject = "tools of upstream one"
    assert results[subject] == (True, f"{detail}; requests of other tenants go without")
    assert subject in check.warned
    assert results["tools of schedule ours"] == (False, f"{detail}, not default")
    assert "tools of schedule theirs" not in results


def test_models_that_no_upstream_serves_are_found(check: Check) -> None:
    served = '[[upstream]]\nname = "one"\nurl = "http://127.0.0.1:1/v1"\nmodels = ["gpt-*"]\n'
    tables = (
        '[[schedule]]\nname = "news"\nprompt = "p"\nevery = "1h"\nmodel = "gtp-5"\n'
        '[[schedule]]\nname = "right"\nprompt = "p"\nevery = "1h"\nmodel = "gpt-5"\n'
        '[[channel]]\nname = "bot"\nkind = "telegram"\ntoken_env = "T"\n'
    )
    results = check.run(served + tables)
    assert results["model of schedule news"] == (False, "no upstream serves 'gtp-5'")
    assert results["model of channel bot"] == (False, "no upstream serves ''")
    assert "model of schedule right" not in results
    assert not any(subject.startswith("model of") for subject in check.run(tables))


def test_an_archive_that_cannot_be_written_is_found(check: Check, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    more = '[retention]\nsessions_days = 1\narchive = "{}"\n'
    assert check.run(more.format("old"))[f"archive {tmp_path / 'old'}"] == (True, "writable")
    assert not check.run(more.format("file/old"))[f"archive {tmp_path / 'file/old'}"][0]


# ── secrets ─────────────────────────────────────────────────────────────────────────────────


def test_every_variable_that_is_not_set_is_named(check: Check) -> None:
    results = check.run(
        '[[key]]\nkey_env = "NOT_SET_KEY"\n' + telegram("http://127.0.0.1:1"), host="0.0.0.0"
    )
    assert results["key NOT_SET_KEY"] == (False, "the environment variable is not set")
    assert results["channel bot"] == (False, "the environment variable BOT_TOKEN is not set")
    assert not results[f"server 0.0.0.0:{check.port}"][0], "a key without a value protects nothing"


# ── an empty database ───────────────────────────────────────────────────────────────────────


def test_an_empty_database_is_called_empty_and_stays_empty(
    check: Check, bare_postgres_url: str
) -> None:
    check.store = bare_postgres_url
    [(is_ok, detail)] = [
        result for subject, result in check.run().items() if subject.startswith("store ")
    ]
    assert (is_ok, detail) == (True, "empty: the first start creates its tables")
    listed = in_pipe("keys", "list", "--store", bare_postgres_url)
    assert listed.code == 1
    assert "has no tables yet; start `holdfast serve` once" in listed.err
    examined = in_pipe("doctor", "--store", bare_postgres_url)
    assert examined.code == 0
    assert "warning: store_missing: postgres has no tables yet" in examined.out
    assert "schema_behind" not in examined.out


def test_the_path_of_the_configuration_is_printed_without_detours(
    check: Check,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check.run()
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    outcome = in_process(capsys, "config", "check", "--config", "../holdfast.toml")
    assert outcome.out.startswith(f"configuration: {tmp_path / 'holdfast.toml'}\n")


def test_a_webhook_whose_variable_is_not_set_is_found(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[[webhook]]\nname = "w"\nurl = "https://example.com/in"\n'
    text += 'events = ["turn.failed"]\nsecret_env = "W_SECRET"\n'
    assert check.run(text)["webhook w"] == (False, "the environment variable W_SECRET is not set")
    monkeypatch.setenv("W_SECRET", "whsec_" + "MDEy" * 11)
    assert check.run(text)["webhook w"] == (True, "signs facts for example.com")


def test_every_mistake_of_a_file_is_on_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("[server]\nprot = 1\n[lanes]\nmax_waiting = -1\n")
    outcome = in_process(capsys, "config", "check", "--config", str(path))
    assert outcome.code == 2
    first, *problems = outcome.err.splitlines()
    assert first == "holdfast: 2 problems in the configuration:"
    assert [one.split(": ")[1] for one in problems] == [f"{path}:4", f"{path}:2"]
