"""`holdfast sessions export --all`: one stream, which an interruption does not void."""

import asyncio
import json
import re
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import holdfast
from tests.acceptance.gateway_process import running_gateway
from tests.cli.conftest import GatewayUnderTest
from tests.cli.terminals import in_pipe, in_process, in_terminal
from tests.cli.test_export_round_trip import doctor_codes, import_file
from tests.store_urls import sqlite_url

SESSIONS = 150
LONG = "long " * 20_000


async def _fill(url: str, sessions: int, text: str) -> None:
    async with holdfast.open(url) as hf:

        async def converse(number: int) -> None:
            session = await hf.session(f"filled:{number}")
            async with session.turn(f"{number} {text}") as turn:
                turn.add("answer")

        await asyncio.gather(*map(converse, range(sessions)))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayUnderTest]:
    """A gateway with more sessions than fit into a page or into the buffers of a connection."""
    store = sqlite_url(tmp_path_factory.mktemp("filled"))
    asyncio.run(_fill(store, SESSIONS, LONG))
    with running_gateway(store) as gateway:
        yield GatewayUnderTest(gateway, store)


@contextmanager
def cutting_proxy(url: str, size: int) -> Iterator[str]:
    """Pass connections on to a gateway, and cut each after so many bytes of its answers."""
    target = urlsplit(url)

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, socket.create_connection((target.hostname, target.port)) as gateway:
                gateway.sendall(client.recv(65536))
                left = size
                while left > 0 and (data := gateway.recv(min(65536, left))):
                    client.sendall(data)
                    left -= len(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def sessions_of(text: str) -> dict[str, list[Any]]:
    """Return the lines of each session of an export, which has no session twice."""
    found: dict[str, list[Any]] = {}
    lines: list[Any] = []
    for line in map(json.loads, text.splitlines()):
        if line["object"] == "session":
            assert line["id"] not in found
            lines = found[line["id"]] = []
        lines.append(line)
    return found


def test_all_sessions_are_exported_as_each_alone_and_imported(
    filled: GatewayUnderTest, postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.jsonl"
    outcome = in_pipe("sessions", "export", "--all", "--output", str(file), env=filled.env)
    assert outcome.code == 0
    assert f"{SESSIONS} session(s) written to {file}" in outcome.err
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_mode & 0o777 == 0o600
    exported = sessions_of(file.read_text())
    assert len(exported) == SESSIONS
    named = list(exported)[7:9]
    alone = in_pipe("sessions", "export", *named, env=filled.env).out
    assert sessions_of(alone) == {name: exported[name] for name in named}
    assert import_file(capsys, file, postgres_url) == {"added": SESSIONS}
    assert doctor_codes(postgres_url) == []
    assert import_file(capsys, file, filled.store) == {"unchanged": SESSIONS}
    with running_gateway(postgres_url) as second:
        again = in_pipe("sessions", "export", "--all", "--url", second.url).out
    assert {
        name: [line["item"] for line in lines if line["object"] == "session.item"]
        for name, lines in sessions_of(again).items()
    } == {
        name: [line["item"] for line in lines if line["object"] == "session.item"]
        for name, lines in exported.items()
    }


def test_an_interrupted_export_is_continued_where_it_ended(
    filled: GatewayUnderTest, tmp_path: Path
) -> None:
    file, part = tmp_path / "all.jsonl", tmp_path / ".all.jsonl.part"
    arguments = ("sessions", "export", "--all", "--output", str(file))
    sizes = [0]
    for size in (3_000_000, 5_000_001):
        with cutting_proxy(filled.url, size) as url:
            outcome = in_pipe(*arguments, "--resume", "--url", url)
        assert outcome.code == 1
        assert re.search(r"\d+ session\(s\) are kept, continue with --resume", outcome.err)
        assert not file.exists()
        sizes.append(part.stat().st_size)
    assert 0 < sizes[1] < sizes[2]
    other = in_pipe(*arguments, "--resume", "--generations", env=filled.env)
    assert (other.code, "without --generations" in other.err) == (1, True)
    outcome = in_pipe(*arguments, "--resume", env=filled.env)
    assert outcome.code == 0
    more = re.search(r"(\d+) more session\(s\) written", outcome.err)
    assert more is not None
    assert 0 < int(more[1]) < SESSIONS
    assert list(tmp_path.iterdir()) == [file]
    resumed = file.read_text()
    whole = in_pipe("sessions", "export", "--all", env=filled.env).out
    assert sessions_of(resumed) == sessions_of(whole)
    again = in_pipe(*arguments, env=filled.env)
    assert (again.code, file.read_text()) == (0, resumed)


def test_an_export_that_received_nothing_leaves_no_file(
    filled: GatewayUnderTest, tmp_path: Path
) -> None:
    arguments = ("sessions", "export", "--all", "--output", str(tmp_path / "all.jsonl"))
    with cutting_proxy(filled.url, 300) as url:
        outcome = in_pipe(*arguments, "--url", url)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert list(tmp_path.iterdir()) == []


def test_an_export_continues_on_its_own_store_only(
    filled: GatewayUnderTest, gateway: GatewayUnderTest, tmp_path: Path
) -> None:
    file = tmp_path / "all.jsonl"
    arguments = ("sessions", "export", "--all", "--output", str(file))
    with cutting_proxy(filled.url, 3_000_000) as url:
        in_pipe(*arguments, "--url", url)
    kept = (tmp_path / ".all.jsonl.part").read_bytes()
    outcome = in_pipe(*arguments, "--resume", env=gateway.env)
    assert (outcome.code, "there is no session" in outcome.err) == (1, True)
    left = (tmp_path / ".all.jsonl.part").read_bytes()
    assert kept.startswith(left)
    assert left.endswith(b"\n")


def test_options_that_exclude_each_other_are_rejected(
    filled: GatewayUnderTest, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = ("--output", str(tmp_path / "out"))
    for arguments in (("x", *output), ("--all",), ("--all", "--format", "markdown", *output)):
        outcome = in_process(
            capsys, "sessions", "export", *arguments, "--resume", "--url", filled.url
        )
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_shows_how_much_of_an_export_is_done(
    filled: GatewayUnderTest, tmp_path: Path
) -> None:
    arguments = ("sessions", "export", "--all", "--output", str(tmp_path / "all.jsonl"))
    shown = in_terminal(*arguments, env=filled.env)
    assert shown.code == 0
    assert f"exporting: {SESSIONS} of {SESSIONS}" in shown.out


@contextmanager
def unread(url: str) -> Iterator[bytes]:
    """Ask for an export and read nothing but the beginning of the answer."""
    target = urlsplit(url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((target.hostname, target.port))
        client.sendall(b"GET /v1/sessions/export HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield client.recv(1024)


def test_who_does_not_read_an_export_holds_up_neither_turns_nor_the_log(
    filled: GatewayUnderTest,
) -> None:
    with unread(filled.url) as first, unread(filled.url) as second:
        assert b" 200 OK" in first
        assert b" 200 OK" in second
        third = httpx.get(f"{filled.url}/v1/sessions/export")
        assert third.status_code == 429
        assert third.json()["error"]["code"] == "too_many_exports"
        assert third.headers["retry-after"] == "5"
        filled.say("beside", "hello")
        # A reader with an open snapshot would keep the log from being emptied.
        with closing(sqlite3.connect(filled.store.removeprefix("sqlite:///"))) as connection:
            connection.execute("pragma busy_timeout = 20000")
            busy, *_ = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
        assert busy == 0
    session = httpx.get(f"{filled.url}/v1/sessions", params={"key": "beside"}).json()["data"][0]
    httpx.delete(f"{filled.url}/v1/sessions/{session['id']}")


def test_a_cursor_that_names_no_session_is_rejected(gateway: GatewayUnderTest) -> None:
    gateway.say("cursor", "hello")
    url = f"{gateway.url}/v1/sessions/export"
    for after in ("ses_nobody", "x", "ses_%00"):
        reply = httpx.get(f"{url}?after={after}")
        assert reply.status_code == 400
    assert httpx.get(f"{url}?id=ses_nobody").status_code == 404
    assert httpx.get(f"{url}?generations=maybe").status_code == 400


def test_an_export_continues_after_a_session_that_was_erased(gateway: GatewayUnderTest) -> None:
    gone, kept = gateway.say("gone", "a")["session"], gateway.say("kept", "b")["session"]
    url = f"{gateway.url}/v1/sessions/export"
    httpx.delete(f"{gateway.url}/v1/sessions/{gone}")
    lines = [json.loads(line) for line in httpx.get(f"{url}?after={gone}").text.splitlines()]
    assert [line["id"] for line in lines if line["object"] == "session"] == [kept]
    assert (lines[0]["object"], lines[0]["total"]) == ("session.export", 1)
    cursor = {"object": "session.export.cursor", "after": kept, "sessions": 1, "has_more": False}
    assert lines[-1] == cursor
    assert gone not in httpx.get(url).text
