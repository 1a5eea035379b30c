"""Import of each format, against golden results; twice; and never against what was done here."""

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zstandard
from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession

import holdfast
from holdfast.agents_sdk import HoldfastSession
from holdfast.cli.output.masking import mask_url
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.engine.embedded.api import Holdfast
from holdfast.ports.store import ItemQuery
from tests.cli.terminals import Outcome, in_pipe, in_process, in_terminal
from tests.importing.picture import picture

GOLDEN = Path(__file__).parent / "golden"
OPENCLAW = GOLDEN / "openclaw"
SESSIONS = OPENCLAW / "agents/main/sessions"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh store."""
    return f"sqlite:///{tmp_path / 'store.db'}"


class Importer:
    """Runs the command in this process, and reads its report."""

    def __init__(self, capsys: pytest.CaptureFixture[str], url: str) -> None:
        self._capsys = capsys
        self.url = url

    def run(self, *arguments: str) -> Outcome:
        """Run the command."""
        return in_process(self._capsys, "sessions", "import", *arguments, "--store", self.url)

    def report(self, *arguments: str) -> dict[str, Any]:
        """Run the command and return what it did."""
        outcome = self.run(*arguments, "--json")
        assert (outcome.code, outcome.err) == (
            0,
            f"holdfast: used store {mask_url(self.url)}\n",
        )
        report: dict[str, Any] = json.loads(outcome.out)
        return report

    def counts(self, *arguments: str) -> dict[str, int]:
        """Run the command and return how often it did what."""
        counts: dict[str, int] = self.report(*arguments)["counts"]
        return counts

    def picture(self) -> str:
        """Return what the store has."""
        return asyncio.run(picture(self.url))


def event(name: str, parent: str, role: str, text: str) -> dict[str, Any]:
    """Return a message as OpenClaw writes it."""
    message = {"role": role, "content": [{"type": "text", "text": text}]}
    return {"type": "message", "id": name, "parentId": parent, "message": message}


def golden(name: str, actual: str) -> None:
    """Compare with the golden result of that name."""
    assert actual == (GOLDEN / name).read_text()


# ── OpenClaw's files ────────────────────────────────────────────────────────────────────────


def test_an_openclaw_folder_is_imported_completely(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    importer = Importer(capsys, store_url)
    report = importer.report(str(OPENCLAW))
    assert report["counts"] == {"added": 8}
    golden("openclaw.txt", importer.picture())
    problems = {one["key"]: one["problems"] for one in report["sessions"] if one["problems"]}
    torn = "1 line(s) of 3be623d2-0000-4000-8000-000000000002.jsonl could not be read"
    assert problems == {
        "agent:main:telegram:direct:42": [torn],
        "agent:main:lost": ["its transcript is missing"],
    }


@pytest.mark.parametrize("path", [OPENCLAW / "agents/main", SESSIONS, SESSIONS / "sessions.json"])
def test_any_part_of_the_folder_can_be_imported(
    path: Path, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    importer = Importer(capsys, sqlite_url)
    assert importer.counts(str(path)) == {"added": 8}
    golden("openclaw.txt", importer.picture())
    assert importer.counts(str(OPENCLAW)) == {"unchanged": 8}


def test_a_second_import_adds_nothing_and_a_longer_source_adds_the_rest(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "openclaw"
    shutil.copytree(OPENCLAW, source)
    importer = Importer(capsys, sqlite_url)
    importer.counts(str(source))
    before = importer.picture()
    assert importer.counts(str(source)) == {"unchanged": 8}
    assert importer.picture() == before
    file = source / "agents/main/sessions/3be623d2-0000-4000-8000-000000000003.jsonl"
    with file.open("a") as more:
        for line in (event("c9", "c8", "user", "four"), event("c10", "c9", "assistant", "4")):
            more.write(json.dumps(line) + "\n")
    assert importer.counts(str(source)) == {"unchanged": 7, "extended": 1}
    assert "  7  user: four\n  7  assistant: 4\n" in importer.picture()


def test_a_dry_run_prints_the_same_report_and_writes_nothing(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importer = Importer(capsys, sqlite_url)
    dry = importer.report(str(OPENCLAW), "--dry-run")
    assert dry["dry_run"] is True
    assert list(tmp_path.iterdir()) == []
    assert importer.picture() == "\n"
    wet = importer.report(str(OPENCLAW))
    assert {**dry, "dry_run": False} == wet


# ── what was done here stands ───────────────────────────────────────────────────────────────

KEY = "agent:main:main"


def in_store(url: str, work: Any) -> Any:
    """Do something with an open store."""

    async def do() -> Any:
        async with holdfast.open(url) as hf:
            return await work(hf)

    return asyncio.run(do())


async def _reset(hf: Holdfast) -> None:
    await (await hf.session(KEY)).reset()


async def _delete(hf: Holdfast) -> None:
    await (await hf.session(KEY)).delete()


async def _go_on(hf: Holdfast) -> None:
    await (await hf.session(KEY)).append("said here")


def test_an_import_does_not_undo_a_reset(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    importer = Importer(capsys, store_url)
    importer.counts(str(OPENCLAW))
    in_store(store_url, _reset)
    before = importer.picture()
    assert importer.counts(str(OPENCLAW)) == {"unchanged": 8}
    assert importer.picture() == before
    assert f"{KEY} #2 idle\n" in before


def test_an_import_does_not_restore_deleted_sessions(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    importer = Importer(capsys, store_url)
    importer.counts(str(OPENCLAW))
    in_store(store_url, _delete)
    assert importer.counts(str(OPENCLAW)) == {"unchanged": 7, "erased": 1}
    assert KEY + " " not in importer.picture()


def test_a_key_with_a_live_session_keeps_it(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    importer = Importer(capsys, store_url)
    in_store(store_url, _go_on)
    assert importer.counts(str(OPENCLAW)) == {"added": 7, "set_aside": 1}
    shown = importer.picture()
    assert f"{KEY} #1 idle\n  1  user: said here\n{KEY} #2 retired\n" in shown
    assert importer.counts(str(OPENCLAW)) == {"unchanged": 8}


def test_a_session_that_was_continued_here_is_not_changed(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importer = Importer(capsys, sqlite_url)
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps([{"role": "user", "content": "one"}]))
    assert importer.counts(str(chat), "--key", KEY) == {"added": 1}
    in_store(sqlite_url, _go_on)
    assert importer.counts(str(chat), "--key", KEY) == {"unchanged": 1}
    longer = [{"role": r, "content": r} for r in ("user", "assistant", "user")]
    longer[0]["content"] = "one"
    chat.write_text(json.dumps(longer))
    assert importer.counts(str(chat), "--key", KEY) == {"differs": 1}
    assert importer.picture() == f"{KEY} #1 idle\n  1  user: one\n  2  user: said here\n"


def test_a_history_that_changed_at_its_source_is_not_changed_here(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importer = Importer(capsys, sqlite_url)
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps([{"role": "user", "content": "one"}]))
    importer.counts(str(chat), "--key", KEY)
    chat.write_text(json.dumps([{"role": "user", "content": "another"}]))
    assert importer.counts(str(chat), "--key", KEY) == {"differs": 1}


def test_an_imported_session_continues_under_its_key(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    importer = Importer(capsys, sqlite_url)
    importer.counts(str(OPENCLAW))

    async def shown(items: list[dict[str, Any]]) -> str:
        return " | ".join(str(item.get("role") or item["type"]) for item in items)

    async def go_on(hf: Holdfast) -> str:
        answer = await (await hf.session("agent:main:counting")).run("four", shown)
        text: str = answer[0]["content"][0]["text"]
        return text

    # The summary, what was kept behind it, the note, the last turn, and the new question.
    told = "user | user | assistant | user | user | assistant | user"
    assert in_store(sqlite_url, go_on) == told


# ── OpenClaw's database ─────────────────────────────────────────────────────────────────────


def openclaw_database(folder: Path) -> Path:
    """Make a database as the newer OpenClaw does."""
    path = folder / "agents/main/agent/openclaw-agent.sqlite"
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.executescript((GOLDEN / "openclaw_database.sql").read_text())
    last = json.dumps(event("e4", "e3", "assistant", "packed answer")).encode()
    packed = zstandard.ZstdCompressor().compress(last)
    connection.execute(
        "insert into transcript_events (session_id, seq, event_zstd, created_at) "
        "values ('w1', 4, ?, 1794728288000)",
        (packed,),
    )
    connection.commit()
    connection.close()
    return path


def test_an_openclaw_database_is_imported_completely(
    store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = openclaw_database(tmp_path)
    importer = Importer(capsys, store_url)
    assert importer.counts(str(path)) == {"added": 7}
    golden("openclaw_database.txt", importer.picture())
    assert importer.counts(str(tmp_path)) == {"unchanged": 7}


def test_files_beside_the_database_add_what_it_lacks(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    openclaw_database(tmp_path)
    shutil.copytree(SESSIONS, tmp_path / "agents/main/sessions")
    importer = Importer(capsys, sqlite_url)
    # One key is in both: what the newer database says of it is what lives.
    assert importer.counts(str(tmp_path)) == {"added": 14, "set_aside": 1}
    assert "agent:main:main #2 idle\n  1  user: after the idle hour\n" in importer.picture()


# ── the Agents SDK, chat messages, our own ──────────────────────────────────────────────────


def test_sessions_of_the_agents_sdk_are_imported(
    store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agents.db"
    answer = [{"type": "output_text", "text": "42", "annotations": []}]
    items: list[Any] = [
        {"role": "user", "content": "What is 6 by 7?"},
        {"type": "function_call", "call_id": "c1", "name": "times", "arguments": "{}", "id": "fc1"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"id": "msg_1", "type": "message", "role": "assistant", "content": answer},
        {"role": "user", "content": "thanks"},
    ]
    session = SQLiteSession("math", path)
    asyncio.run(session.add_items(items))
    asyncio.run(SQLiteSession("empty", path).add_items([]))
    session.close()
    importer = Importer(capsys, store_url)
    assert importer.counts(str(path), "--prefix", "sdk:") == {"added": 1}
    golden("agents.txt", importer.picture())
    assert importer.counts(str(path), "--prefix", "sdk:") == {"unchanged": 1}


def test_inactive_branches_of_the_agents_sdk_are_imported_hidden(
    tmp_path: Path, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "branches.db"

    async def talk() -> None:
        session = AdvancedSQLiteSession(session_id="adv", db_path=path, create_tables=True)
        for text in ("one", "two", "three"):
            await session.add_items([{"role": "user", "content": text}])
        await session.create_branch_from_turn(2)
        await session.add_items([{"role": "user", "content": "elsewhere"}])
        session.close()

    async def told() -> tuple[list[Any], list[Any]]:
        async with HoldfastSession("adv", store_url) as session:
            shown = await session.get_items()
        async with holdfast.open(store_url) as opened:
            view = await opened.gateway.read.session(DEFAULT_TENANT, key=Key("adv"))
            assert view is not None
            log = await opened.gateway.read.listing(view.session, ItemQuery(view="log"))
        return shown, [json.loads(one.item.body)["content"] for one in log]

    asyncio.run(talk())
    assert Importer(capsys, store_url).counts(str(path)) == {"added": 1}
    shown, log = asyncio.run(told())
    assert [item["content"] for item in shown] == ["one", "two", "three"]
    assert log == ["one", "two", "three", "elsewhere"]


def test_an_id_that_is_not_text_does_not_block_other_sessions(
    tmp_path: Path, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sessions.db"
    session = SQLiteSession("math", path)
    asyncio.run(session.add_items([{"role": "user", "content": "hello"}]))
    session.close()
    with closing(sqlite3.connect(path)) as connection:
        row = (b"k\xff", '{"role": "user", "content": "odd"}')
        connection.execute(
            "insert into agent_messages (session_id, message_data) values (?, ?)", row
        )
        connection.commit()
    assert Importer(capsys, store_url).counts(str(path)) == {"added": 2}


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "assistant", "content": "Rain."},
]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CHAT),
        json.dumps({"model": "gpt-5", "messages": CHAT}, indent=1),
        "\n".join(json.dumps(message) for message in CHAT),
        json.dumps({"messages": CHAT}) + "\n",
    ],
    ids=["list", "request", "lines", "one line"],
)
def test_chat_messages_are_imported(
    text: str, sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weather.json"
    path.write_text(text)
    importer = Importer(capsys, sqlite_url)
    assert importer.counts(str(path)) == {"added": 1}
    golden("chat.txt", importer.picture())


def test_several_conversations_in_one_file_get_separate_keys(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text((json.dumps({"messages": CHAT[1:2]}) + "\n") * 2)
    importer = Importer(capsys, sqlite_url)
    report = importer.report(str(path), "--key", "talk")
    assert [one["key"] for one in report["sessions"]] == ["talk:1", "talk:2"]


def test_invalid_messages_are_counted_and_the_rest_is_imported(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps([CHAT[1], {"role": "wizard", "content": "x"}, 7, CHAT[4]]))
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps(CHAT[1]) + "\n" + json.dumps(CHAT[4]) + '\n{"role":"us')
    importer = Importer(capsys, sqlite_url)
    for path, unread in ((listed, 2), (lines, 1)):
        [taken] = importer.report(str(path))["sessions"]
        assert (taken["status"], taken["added"]) == ("added", 2)
        assert taken["problems"] == [f"{unread} message(s) could not be read"]


def own_lines(name: str, *texts: str) -> list[str]:
    """Return a session as an export writes it."""
    entries: list[dict[str, Any]] = [{"object": "session", "id": name, "key": name}]
    for number, text in enumerate(texts, 1):
        item = {"type": "message", "role": "user", "content": text}
        entry = {"object": "session.item", "session_id": name, "sequence": number}
        entries.append({**entry, "turn_number": number, "item": item})
    return [json.dumps(entry) for entry in entries]


def test_a_stream_of_an_export_is_imported_without_what_was_erased_meanwhile(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stream.jsonl"
    lines = [
        json.dumps({"object": "session.export", "version": 1, "total": 3}),
        *own_lines("ses_a", "one"),
        *own_lines("ses_b", "two"),
        json.dumps({"object": "session.export.erased", "session_id": "ses_b"}),
        json.dumps({"object": "session.export.cursor", "after": "ses_b", "has_more": True}),
        *own_lines("ses_c", "three"),
        json.dumps({"object": "session.export.cursor", "after": "ses_c", "has_more": False}),
    ]
    path.write_text("\n".join(lines))
    taken = in_process(capsys, "sessions", "import", str(path), "--store", sqlite_url, "--json")
    sessions = json.loads(taken.out)["sessions"]
    assert [one["session_id"] for one in sessions] == ["ses_a", "ses_c"]
    assert [one["problems"] for one in sessions] == [[], []]


def test_invalid_lines_of_an_export_are_counted_and_the_rest_is_imported(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "torn.jsonl"
    first, second = own_lines("ses_a", "one", "two", "three"), own_lines("ses_b", "x", "y")
    first[2] = first[2][:-9]
    path.write_text("\n".join([*first, *second])[:-9])
    report = Importer(capsys, sqlite_url).report(str(path))
    torn = "1 line(s) of torn.jsonl could not be read"
    assert [(one["key"], one["added"], one["problems"]) for one in report["sessions"]] == [
        ("ses_a", 2, [torn]),
        ("ses_b", 1, [torn]),
    ]


@pytest.mark.parametrize("said_before", [(), ("one", "two")])
def test_lines_after_an_invalid_session_are_not_added_to_the_previous_one(
    said_before: tuple[str, ...],
    sqlite_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "torn.jsonl"
    lost = own_lines("ses_b", "x", "y", "z")
    lost[0] = lost[0][:-9]
    lines = [*own_lines("ses_a", *said_before), *lost, *own_lines("ses_c", "three")]
    path.write_text("\n".join(lines))
    report = Importer(capsys, sqlite_url).report(str(path))
    assert [(one["key"], one["added"], one["problems"]) for one in report["sessions"]] == [
        ("ses_a", len(said_before), ["4 line(s) of torn.jsonl could not be read"]),
        ("ses_c", 1, []),
    ]


# ── good and bad input, in a terminal and in a pipe ─────────────────────────────────────────


def test_the_report_in_a_terminal_is_a_table_and_a_summary(sqlite_url: str) -> None:
    shown = in_terminal("sessions", "import", str(OPENCLAW), "--store", sqlite_url, columns=120)
    assert shown.code == 0
    assert "8 added: imported" in shown.out
    assert "agent:main:recovered:3be623d2-0000-4000-8000-000000000006" in shown.out
    again = in_pipe("sessions", "import", str(OPENCLAW), "--store", sqlite_url, "--dry-run")
    assert again.code == 0
    assert "8 unchanged: imported before, unchanged\ndry run: nothing was written\n" in again.out
    *problems, used = again.err.splitlines()
    assert len(problems) == 2
    assert used == f"holdfast: used store {sqlite_url}"


BAD = {
    "text.json": b"hello",
    "number.json": b"7",
    "binary.bin": b"\xff\xfe\x00",
    "empty.json": b"",
    "other.json": b'{"a": 1}',
    "other.sqlite": b"SQLite format 3\0 and then nothing",
    "torn.jsonl": b'{"object":"session.export","version":1}\n{"object":"sess',
    "roles.json": b'[{"role":"wizard","content":"x"}]',
    "sessions.json": b"[1]",
    "deep.json": b"[" * 100_000,
    "session.jsonl": b'{"object":"session","id":{"a":1}}',
    "generation.jsonl": b'{"object":"session","id":"ses_a","key":"k","generation":"a"}',
    "key.jsonl": b'{"object":"session","id":"ses_a","key":5}',
    "time.jsonl": b'{"object":"session","id":"ses_a","created_at":1e300}',
}


@pytest.mark.parametrize("name", BAD)
def test_an_unreadable_file_prints_one_line(
    name: str, sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(BAD[name])
    outcome = Importer(capsys, sqlite_url).run(str(path))
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("holdfast: ")
    assert outcome.err.count("\n") == 1
    assert name in outcome.err


def test_an_empty_source_is_an_error(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importer = Importer(capsys, sqlite_url)
    (tmp_path / "empty").mkdir()
    for path, named in (
        (tmp_path / "missing", "does not exist"),
        (tmp_path / "empty", "no OpenClaw sessions"),
    ):
        outcome = importer.run(str(path))
        assert outcome.code == 1
        assert named in outcome.err
