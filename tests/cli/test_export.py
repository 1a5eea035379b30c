"""`holdfast sessions export`, and the way back."""

import contextlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.stores.sql.entries import HEAD_FIELDS, pack, read_body
from tests.acceptance.gateway_process import running_gateway
from tests.cli.conftest import GatewayUnderTest
from tests.cli.terminals import in_own_process, in_pipe, in_process, in_terminal


def list_everything(url: str) -> list[dict[str, Any]]:
    """Return all sessions with their logs, and when they were spoken to."""
    listed = httpx.get(f"{url}/v1/sessions", params={"generations": "true", "order": "asc"}).json()
    found = []
    for session in listed["data"]:
        log = httpx.get(f"{url}/v1/sessions/{session['id']}/items", params={"view": "log"}).json()
        kept = (
            "id", "key", "generation", "status", "item_count", "turn_count", "metadata",
            "created_at", "last_user_activity_at",
        )  # fmt: skip
        turns = httpx.get(f"{url}/v1/sessions/{session['id']}/turns").json()["data"]
        times = [(one["number"], one["started_at"], one["ended_at"]) for one in turns]
        entries = [
            (one["id"], one["turn_number"], one["hidden_by"] is None, one["item"])
            for one in log["data"]
        ]
        found.append({**{name: session[name] for name in kept}, "log": entries, "times": times})
    return found


def make_older(store: Path, *, seconds: int) -> None:
    """Move every time in a closed store into the past."""
    activity = HEAD_FIELDS.index("last_user_activity_at")
    with contextlib.closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(
            "update sessions set created_at = created_at - ?1, retired_at = retired_at - ?1",
            (seconds,),
        )
        for place, head, body in connection.execute("select pos, head, body from log").fetchall():
            values, entry = msgspec.msgpack.decode(head), read_body(body)
            if values[activity] is not None:
                values[activity] -= seconds
            for state in [*([entry.turn] if entry.turn else []), *entry.runs]:
                for name in {"accepted_at", "started_at", "ended_at"} & set(
                    state.__struct_fields__
                ):
                    if (at := getattr(state, name)) is not None:
                        setattr(state, name, at - seconds)
            connection.execute(
                "update log set at = at - ?, head = ?, body = ? where pos = ?",
                (seconds, msgspec.msgpack.encode(values), pack(entry), place),
            )


def test_an_export_can_be_imported_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = f"sqlite:///{tmp_path / 'first.db'}"
    second = f"sqlite:///{tmp_path / 'second.db'}"
    file = tmp_path / "export.jsonl"
    with running_gateway(first) as process:
        gateway = GatewayUnderTest(process)
        said = gateway.say("a", "one")
        gateway.say("a", "two")
        items = httpx.get(f"{gateway.url}/v1/sessions/{said['session']}/items").json()["data"]
        conversation = said["session"].replace("ses_", "conv_")
        httpx.delete(f"{gateway.url}/v1/conversations/{conversation}/items/{items[0]['id']}")
        in_process(capsys, "sessions", "reset", "a", "--url", gateway.url)
        gateway.say("a", "three")
        gateway.say("b", "other")
    make_older(tmp_path / "first.db", seconds=100_000)
    with running_gateway(first) as process:
        gateway = GatewayUnderTest(process)
        before = list_everything(gateway.url)
        written = in_terminal(
            "sessions", "export", "--all", "--generations", "--output", str(file), env=gateway.env
        )
        assert written.code == 0
        assert "3 session(s) written" in written.out
    imported = in_process(capsys, "sessions", "import", str(file), "--store", second, "--json")
    assert json.loads(imported.out)["counts"] == {"added": 3}
    with running_gateway(second) as process:
        assert list_everything(process.url) == before
    again = in_process(capsys, "sessions", "import", str(file), "--store", first, "--json")
    assert json.loads(again.out)["counts"] == {"unchanged": 3}
    other = in_process(
        capsys, "sessions", "import", str(file), "--store", first, "--tenant", "acme", "--json"
    )
    assert json.loads(other.out)["counts"] == {"added": 3}


def test_a_jsonl_export_shows_what_hides_each_item(
    gateway: GatewayUnderTest,
) -> None:
    said = gateway.say("lines", "hello")
    out = in_own_process("sessions", "export", "lines", env=gateway.env)
    head, session, *entries = [json.loads(line) for line in out.out.splitlines()]
    assert (out.code, out.err) == (0, f"holdfast: used gateway {gateway.url}\n")
    assert (head["object"], head["version"]) == ("session.export", 1)
    assert (session["id"], session["key"]) == (said["session"], "lines")
    turn, *entries = entries
    assert (turn["object"], turn["id"], len(turn["runs"])) == ("turn", said["turn"], 1)
    assert [(one["sequence"], one["hidden_by"]) for one in entries] == [(1, None), (2, None)]


def test_markdown_shows_the_conversation(gateway: GatewayUnderTest) -> None:
    gateway.say("talk*with*stars", "hello ``` there")
    out = in_pipe("sessions", "export", "talk*with*stars", "--format", "markdown", env=gateway.env)
    assert out.out.startswith("# talk\\*with\\*stars\n\nSession `ses_")
    assert "\n## Turn 1\n\n**user**\n\nhello ``` there\n\n**assistant**\n\n" in out.out


def test_the_openai_format_is_the_input_of_a_request(gateway: GatewayUnderTest) -> None:
    gateway.say("input", "hello")
    out = in_pipe("sessions", "export", "input", "--format", "openai", env=gateway.env)
    items = json.loads(out.out)
    assert [item["role"] for item in items] == ["user", "assistant"]
    reply = httpx.post(
        f"{gateway.url}/v1/responses", json={"model": "holdfast-demo", "input": items}, timeout=60
    )
    assert reply.status_code == 200
    two = in_pipe("sessions", "export", "--all", "--format", "openai", env=gateway.env)
    assert (two.code, two.out, two.err.count("\n")) == (2, "", 1)


def test_an_export_needs_sessions_or_all(
    gateway: GatewayUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], ["x", "--all"]):
        outcome = in_process(capsys, "sessions", "export", *arguments, "--url", gateway.url)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)


def test_an_export_file_is_complete_or_absent(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    outcome = in_pipe("sessions", "export", "nobody", "--output", str(file), env=gateway.env)
    assert outcome.code == 1
    assert list(tmp_path.iterdir()) == []
    nowhere = tmp_path / "no" / "folder.jsonl"
    os.mkfifo(tmp_path / "pipe")
    for place in (nowhere, tmp_path, tmp_path / "pipe"):
        outcome = in_pipe("sessions", "export", "--all", "--output", str(place), env=gateway.env)
        assert (outcome.code, outcome.err.count("\n")) == (1, 1)
        assert outcome.err.startswith(f"holdfast: {place} ")
    assert (tmp_path / "pipe").is_fifo()


def test_an_unknown_session_leaves_no_file(
    gateway: GatewayUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, "sessions", "export", "nosuch", "--url", gateway.url)
    assert (outcome.code, outcome.out) == (1, "")


def test_an_export_from_no_gateway_prints_nothing_but_the_error() -> None:
    outcome = in_pipe("sessions", "export", "--all", "--url", "http://127.0.0.1:1")
    assert (outcome.code, outcome.out) == (1, "")
    assert "no gateway at http://127.0.0.1:1 " in outcome.err
