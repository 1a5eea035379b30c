"""`holdfast doctor`: every planted fault is found, explained and, where it can be, mended."""

import asyncio
import dataclasses
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec
import pytest

import holdfast
from holdfast.cli.output.masking import mask_url
from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import Change, Entry, LogAppended, QueueSaved
from holdfast.doctor.findings import KINDS
from holdfast.doctor.store_checks import FailuresInARow, check_inspection
from holdfast.engine.embedded.api import Holdfast
from holdfast.stores.postgres.dialect import spelled
from holdfast.stores.sql.change_writer import writes
from holdfast.stores.sql.entries import (
    Body,
    Items,
    pack,
    read_body,
    read_items,
)
from holdfast.stores.sql.health_checks import TurnEnd
from holdfast.stores.sql.schema_info import StoreInspection
from holdfast.stores.sql.worker_locks import FileTokens
from tests.cli.terminals import Terminal, in_own_process, in_pipe, in_process, in_terminal

DOCUMENTED = Path(__file__).parents[2] / "docs/reference/doctor.md"
OF_THE_TEST_SERVER = {"durability_weak"}
"""The tests' own PostgreSQL runs without fsync, and the doctor says so."""


class StoreUnderTest:
    """A store with one conversation in it, and somebody who plants faults in its tables."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys
        self.session_id = self.work(_talk)

    def work(self, do: Callable[[Holdfast], Awaitable[Any]]) -> Any:
        """Do something with the store, open."""

        async def doing() -> Any:
            async with holdfast.open(self.url) as hf:
                return await do(hf)

        return asyncio.run(doing())

    def execute(self, *statements: str) -> None:
        """Change the tables by hand."""
        if self.url.startswith("sqlite:"):
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            try:
                for statement in statements:
                    connection.execute(statement)
                connection.commit()
            finally:
                connection.close()
            return

        async def doing() -> None:
            connection = await asyncpg.connect(self.url)
            try:
                for statement in statements:
                    await connection.execute(statement.replace("x'", "'\\x"))
            finally:
                await connection.close()

        asyncio.run(doing())

    def read(self, query: str) -> Any:
        """Return the first value of a query."""
        if self.url.startswith("sqlite:"):
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            try:
                return connection.execute(query).fetchone()[0]
            finally:
                connection.close()

        async def doing() -> Any:
            connection = await asyncpg.connect(self.url)
            try:
                return await connection.fetchval(query)
            finally:
                await connection.close()

        return asyncio.run(doing())

    def write(self, changes: list[Change]) -> None:
        """Write changes that no decision would make, by the store's own statements."""
        if self.url.startswith("sqlite:"):
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            try:
                for statement, parameters in writes(changes):
                    connection.execute(statement.text, parameters)
                connection.commit()
            finally:
                connection.close()
            return

        async def doing() -> None:
            connection = await asyncpg.connect(self.url)
            try:
                for statement, parameters in writes(changes):
                    await connection.execute(spelled(statement), *parameters)
            finally:
                await connection.close()

        asyncio.run(doing())

    def session(self) -> Session:
        """Return the session as the store has it."""

        async def check(hf: Holdfast) -> Session:
            view = await hf.gateway.store.read.session(DEFAULT_TENANT, key=Key("store_under_test"))
            assert view is not None
            return view.session

        session: Session = self.work(check)
        return session

    def edit_body(self, edit: Callable[[Body], None]) -> None:
        """Change the body of the last entry."""
        body = read_body(self.read(f"select body from log {LAST}"))
        edit(body)
        self.execute(f"update log set body = x'{pack(body).hex()}' {LAST}")

    def edit_items(self, edit: Callable[[Items], None]) -> None:
        """Change the items of the last entry that has some."""
        where = "where n = (select max(n) from log where items is not null)"
        items = read_items(self.read(f"select items from log {where}"))
        edit(items)
        self.execute(f"update log set items = x'{pack(items).hex()}' {where}")

    def examine(self, *flags: str) -> list[dict[str, Any]]:
        """Return what the doctor finds, but for what the test's own server is known for."""
        outcome = in_process(self._capsys, "doctor", "--store", self.url, "--json", *flags)
        assert outcome.err == f"holdfast: used store {mask_url(self.url)}\n"
        found = [one for one in json.loads(outcome.out) if one["code"] not in OF_THE_TEST_SERVER]
        is_bad = any(
            one["severity"] == "problem" and not ("--fix" in flags and one["fixable"])
            for one in json.loads(outcome.out)
        )
        assert outcome.code == int(is_bad)
        return found

    def codes(self, *flags: str) -> set[str]:
        """Return the kinds of findings."""
        return {one["code"] for one in self.examine(*flags)}


async def _talk(hf: Holdfast) -> str:
    session = await hf.session("store_under_test")

    async def model(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"id": "msg_of_a_server", "role": "assistant", "content": "well"}]

    await session.run("how are you?", model)
    return session.id


@pytest.fixture(params=["sqlite", "postgres"])
def store_under_test(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> StoreUnderTest:
    """A healthy store, on each database."""
    url = f"sqlite:///{tmp_path / 'store_under_test.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    return StoreUnderTest(url, capsys)


def test_a_healthy_store_has_no_findings(store_under_test: StoreUnderTest) -> None:
    assert store_under_test.examine() == []
    assert store_under_test.examine("--deep", "--fix") == []


class Fault(NamedTuple):
    """How a fault is planted by hand, and whether the doctor mends it."""

    code: str
    plant: Callable[[StoreUnderTest], None]
    is_mended: bool


LAST = "where n = (select max(n) from log)"
# Later than the start of any server: one that has just started still waits for older workers.
GONE = "insert into workers (id, started_at, alive_until) values ('wrk_gone', 9e9, 2)"
STATE = (
    "insert into provider_state (session_id, slot, provider, account, model, value, "
    "covers_seq, saved_at) select id, 's', 'openai', 'a', 'gpt-5', x'00', 99, 1 from sessions"
)
INDEXED = (
    f"insert into search_items (id, pos, back, terms) select 1, pos, 0, 'well' from log {LAST}"
)


def by_sql(*statements: str) -> Callable[[StoreUnderTest], None]:
    """Return how a fault is planted by statements alone."""
    return lambda store_under_test: store_under_test.execute(*statements)


def plant_turn(
    store_under_test: StoreUnderTest,
    place: str = "nowhere",
    owner: str = "wrk_gone",
    session: Session | None = None,
) -> None:
    """Accept a turn by hand that runs, is held, waits, or is nowhere at all."""
    before = session or store_under_test.session()
    worker = WorkerId(owner)
    turn = Turn(
        id=TurnId("turn_stuck"), session_id=before.id, tenant=before.tenant, number=2,
        position=2, source="user", owner=worker, attempts=1, accepted_at=1.0, started_at=1.0,
        first_seq=3, kept_seq=2, last_seq=2,
    )  # fmt: skip
    run = Run(
        id=RunId("run_stuck"), turn_id=turn.id, session_id=before.id, generation=1,
        epoch=before.version + 1, worker=worker, step=0, first_seq=3, started_at=1.0,
    )  # fmt: skip
    after = msgspec.structs.replace(before, version=before.version + 1, turn_count=2)
    if place == "lane":
        after = msgspec.structs.replace(
            after, epoch=run.epoch, active_turn_id=turn.id, active_run_id=run.id, owner=worker
        )
    elif place == "hold":
        after = msgspec.structs.replace(
            after, active_turn_id=turn.id, hold_until=5.0, pending_calls='["call_1"]'
        )
    entry = Entry(turn=turn, is_new_turn=True, runs=[run] if place == "lane" else [])
    changes: list[Change] = [LogAppended(after, before, (entry,))]
    if place == "queue":
        changes.append(QueueSaved(turn))
    store_under_test.write(changes)


def plant_orphan(store_under_test: StoreUnderTest) -> None:
    store_under_test.execute(GONE)
    plant_turn(store_under_test, "lane")


def take_lane_away(store_under_test: StoreUnderTest) -> None:
    plant_turn(store_under_test, "lane")
    store_under_test.execute("delete from lanes")


def fail_turn(store_under_test: StoreUnderTest) -> None:
    def edit(body: Body) -> None:
        assert body.turn is not None
        body.turn.outcome, body.turn.error_code = "failed", "upstream_error"

    store_under_test.edit_body(edit)


def break_item(store_under_test: StoreUnderTest) -> None:
    def edit(items: Items) -> None:
        items.listed[-1].body = b"{no"

    store_under_test.edit_items(edit)


def lose_item(store_under_test: StoreUnderTest) -> None:
    store_under_test.edit_items(lambda items: items.listed.clear())


LANE = (
    "insert into lanes (session, turn, run, owner) "
    f"select session, turn, 'run_none', 'wrk_none' from log {LAST}"
)
QUEUE = (
    "insert into queue (session, position, turn, owner) "
    f"select session, 1, turn, 'wrk_none' from log {LAST}"
)
FAULTS = [
    Fault("lease_expired", by_sql(GONE), True),
    Fault("run_orphaned", plant_orphan, True),
    Fault("turn_abandoned", partial(plant_turn, place="queue"), True),
    Fault("hold_expired", partial(plant_turn, place="hold"), True),
    Fault("run_without_lane", plant_turn, False),
    Fault("lane_wrong", by_sql(LANE), False),
    Fault("lane_wrong", by_sql(QUEUE), False),
    Fault("lane_wrong", take_lane_away, False),
    Fault("log_gap", by_sql("delete from log where n = 1"), False),
    Fault("log_gap", by_sql(f"delete from log {LAST}"), False),
    Fault("log_gap", by_sql(INDEXED, "delete from item_ids", f"delete from log {LAST}"), False),
    Fault("log_gap", by_sql("delete from sessions"), False),
    Fault("log_gap", lose_item, False),
    Fault("log_counts_wrong", by_sql(f"update log set events = 0 {LAST}"), False),
    Fault("turn_gap", by_sql("update log set turns = 7"), False),
    Fault("item_ids_wrong", by_sql("update item_ids set item_id = 'other' where seq = 2"), False),
    Fault("projection_invalid", break_item, True),
    Fault("provider_state_stale", by_sql(STATE), True),
    Fault("clock_went_back", by_sql("update sessions set created_at = 99999999999"), False),
    Fault("turn_failed", fail_turn, False),
    Fault(
        "schema_too_new", by_sql("insert into schema_versions values (9999, 'future', 1)"), False
    ),
    Fault(
        "schema_too_old",
        by_sql("update schema_versions set name = 'kernel' where version = 1"),
        False,
    ),
    Fault(
        "schema_behind",
        by_sql(
            "delete from schema_versions where version = (select max(version) from schema_versions)"
        ),
        False,
    ),
    Fault("schema_incomplete", by_sql("alter table idempotency drop column step"), False),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.code)
def test_a_planted_fault_is_found_explained_and_fixed_only_on_request(
    store_under_test: StoreUnderTest, fault: Fault
) -> None:
    fault.plant(store_under_test)
    try:
        found = store_under_test.examine()
        assert fault.code in {one["code"] for one in found}
        kind = next(one for one in found if one["code"] == fault.code)
        assert kind["meaning"]
        assert kind["remedy"]
        assert fault.code in store_under_test.codes("--deep"), "looking does not mend"
        if fault.is_mended:
            assert kind["fixable"]
            store_under_test.examine("--fix")
            assert fault.code not in store_under_test.codes()
            store_under_test.work(_talk)
    finally:
        if fault.code.startswith("schema"):
            # The database is used again by other tests: it is dropped if it says it is changed.
            store_under_test.execute("insert into schema_versions values (9998, 'changed', 1)")


def test_a_run_that_takes_too_long_is_reported(store_under_test: StoreUnderTest) -> None:
    async def plant(hf: Holdfast) -> set[str]:
        worker = WorkerId("wrk_slow")
        await hf.gateway.store.enlist(worker, 3600)
        view = await hf.gateway.store.read.session(DEFAULT_TENANT, key=Key("store_under_test"))
        assert view is not None
        await asyncio.to_thread(plant_turn, store_under_test, "lane", worker, view.session)
        outcome = await asyncio.to_thread(
            in_own_process, "doctor", "--store", store_under_test.url, "--json"
        )
        return {one["code"] for one in json.loads(outcome.out)} - OF_THE_TEST_SERVER

    assert store_under_test.work(plant) == {"run_stuck"}


def test_a_provider_that_lost_its_state_is_noted_with_its_turn(
    store_under_test: StoreUnderTest,
) -> None:
    heals = json.dumps([{"failure_class": "stale_state", "action": "dropped_state", "code": "x"}])

    def edit(body: Body) -> None:
        body.runs[-1].heals = heals.encode()

    store_under_test.edit_body(edit)
    (found,) = store_under_test.examine()
    assert (found["code"], found["severity"]) == ("provider_forgot", "note")
    assert found["subject"].startswith("turn_")


def test_an_error_that_came_again_without_state_is_not_the_providers_memory(
    store_under_test: StoreUnderTest,
) -> None:
    heals = json.dumps([{"failure_class": "stale_state", "action": "dropped_state", "code": "bad"}])

    def edit(body: Body) -> None:
        assert body.turn is not None
        body.runs[-1].heals = heals.encode()
        body.turn.outcome, body.turn.error_code = "failed", "bad"

    store_under_test.edit_body(edit)
    assert [found["code"] for found in store_under_test.examine()] == ["turn_failed"]


@pytest.mark.parametrize(
    ("code", "printed"), [("invalid_value", "invalid_value"), ("I have cancer", "no code")]
)
def test_a_failed_turn_is_reported_with_its_code_and_without_the_providers_words(
    store_under_test: StoreUnderTest, code: str, printed: str
) -> None:
    def edit(body: Body) -> None:
        assert body.turn is not None
        body.turn.outcome, body.turn.error_code = "failed", code
        body.turn.error_message = "Bad input: cancer"

    store_under_test.edit_body(edit)
    (found,) = store_under_test.examine()
    assert found["code"] == "turn_failed"
    assert found["detail"].endswith(f": {printed}")
    assert "cancer" not in json.dumps(found)


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ("xxx", 3), ("oxxxx", 4), ("yxxx", 3), ("xx", None), ("xxxo", None), ("xxyx", None),
        ("xxyyxx", None),
    ],
)  # fmt: skip
def test_a_session_is_failing_if_its_last_turns_failed_with_the_same_code(
    ends: str, found: int | None
) -> None:
    row = FailuresInARow()
    session_id = SessionId("ses_1")
    for number, end in reversed(list(enumerate(ends))):
        row.add([TurnEnd(TurnId(f"turn_{number}"), session_id, None if end == "o" else end)])
    assert [count for _, count, _ in row.found()] == ([found] if found else [])


def test_a_session_whose_last_turns_failed_alike_is_a_problem(
    store_under_test: StoreUnderTest,
) -> None:
    async def refuse(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        raise RuntimeError("refused")

    async def talk(hf: Holdfast) -> str:
        session = await hf.session("failing")
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await session.run("hi", refuse)
        return str(session.id)

    session_id = store_under_test.work(talk)
    [found] = [one for one in store_under_test.examine() if one["code"] == "session_failing"]
    assert (found["severity"], found["subject"]) == ("problem", session_id)
    assert found["detail"].endswith("its last 3 turns failed with turn_failed")


# ── from outside ────────────────────────────────────────────────────────────────────────────

WELL = StoreInspection(
    kind="sqlite", settings={"journal_mode": "wal"},
    free_bytes=10 * 1024**3, total_bytes=100 * 1024**3, path="x.db",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"free_bytes": 2**20}, "disk_low"),
        ({"wal_bytes": 2**31}, "wal_large"),
        ({"settings": {"journal_mode": "delete"}}, "durability_weak"),
        ({"settings": {"fsync": "off"}}, "durability_weak"),
        ({"settings": {"full_page_writes": "off"}}, "durability_weak"),
        ({"settings": {"transaction_read_only": "on"}}, "store_read_only"),
        ({"clock_ahead_seconds": -7.0}, "clock_skewed"),
        ({"damage": ("page 7 is never used",)}, "store_damaged"),
        ({"missing": ("turns",)}, "schema_incomplete"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_problems_visible_from_outside_are_reported(change: dict[str, Any], code: str) -> None:
    assert list(check_inspection(WELL)) == []
    assert [one.code for one in check_inspection(dataclasses.replace(WELL, **change))] == [code]


def test_a_database_that_accepts_no_writes_is_found_and_not_fixed(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store_under_test = StoreUnderTest(postgres_url, capsys)
    plant_orphan(store_under_test)
    name = store_under_test.read("select current_database()")
    store_under_test.execute(f"alter database {name} set default_transaction_read_only = on")
    for flags in ((), ("--fix",)):
        outcome = in_process(capsys, "doctor", "--store", postgres_url, "--json", *flags)
        found = {one["code"]: one for one in json.loads(outcome.out)}
        assert outcome.code == 1
        assert found["store_read_only"]["detail"] == "postgres: default_transaction_read_only is on"
        assert not found["run_orphaned"]["mended"]


def test_a_damaged_file_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_under_test = StoreUnderTest(f"sqlite:///{tmp_path / 'hurt.db'}", capsys)
    path = tmp_path / "hurt.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    broken = bytearray(path.read_bytes())
    for page in range(2, len(broken) // 4096):
        broken[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(broken)
    assert store_under_test.codes() == {"store_damaged"}


def test_a_missing_store_is_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.db"
    outcome = in_process(capsys, "doctor", "--store", f"sqlite:///{path}")
    assert outcome.code == 0
    assert "store_missing" in outcome.out
    assert not path.exists()
    assert "store_in_memory" in in_process(capsys, "doctor", "--store", "memory:").out


# ── as people and programs meet it ──────────────────────────────────────────────────────────


@pytest.fixture
def damaged_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> StoreUnderTest:
    """A store with a fault."""
    store_under_test = StoreUnderTest(f"sqlite:///{tmp_path / 'store_under_test.db'}", capsys)
    store_under_test.execute(GONE)
    return store_under_test


def test_findings_are_printed_with_meaning_and_remedy(
    damaged_store: StoreUnderTest,
) -> None:
    shown = in_terminal("doctor", "--store", damaged_store.url)
    assert shown.code == 0
    assert "warning: lease_expired: worker wrk_gone" in shown.out
    assert "meaning: a worker is dead" in shown.out
    assert "remedy: any running gateway" in shown.out
    assert "0 problem(s), 1 warning(s), 0 note(s)" in shown.out
    fixed = in_pipe("doctor", "--store", damaged_store.url, "--fix")
    assert "  fixed\n" in fixed.out
    well = in_pipe("doctor", "--store", damaged_store.url)
    assert (well.code, well.out) == (0, "no problems found\n")


def test_a_failed_fix_is_not_reported_as_fixed(damaged_store: StoreUnderTest) -> None:
    break_item(damaged_store)
    damaged_store.execute(
        "create trigger stubborn before insert on log when new.record is not null "
        "begin select raise(abort, 'no'); end",
    )
    told = in_pipe("doctor", "--store", damaged_store.url, "--fix", "--json")
    mended = {one["code"]: one["mended"] for one in json.loads(told.out)}
    assert (told.code, mended) == (1, {"lease_expired": True, "projection_invalid": False})
    failure, store = told.err.splitlines()
    assert failure.startswith("holdfast: projection_invalid ")
    assert store == f"holdfast: used store {damaged_store.url}"


def test_a_worker_whose_process_still_runs_is_not_reported_as_fixed(
    damaged_store: StoreUnderTest,
) -> None:
    """Its lease is over and its token is held: it hangs, or the clock was set."""
    tokens = FileTokens(Path(f"{damaged_store.url.removeprefix('sqlite:///')}-workers"))
    asyncio.run(tokens.take(WorkerId("wrk_gone")))
    try:
        told = in_pipe("doctor", "--store", damaged_store.url, "--fix")
        assert told.code == 0
        assert "  fixed\n" not in told.out
        assert "lease_expired wrk_gone: its worker's process still runs" in told.err
    finally:
        asyncio.run(tokens.close())
    assert "  fixed\n" in in_pipe("doctor", "--store", damaged_store.url, "--fix").out


def test_a_deep_check_reads_retired_generations(
    damaged_store: StoreUnderTest,
) -> None:
    async def reset(hf: Holdfast) -> None:
        await (await hf.session("store_under_test")).reset()

    damaged_store.work(reset)
    break_item(damaged_store)
    assert "projection_invalid" not in damaged_store.codes()
    deep = in_pipe("doctor", "--store", damaged_store.url, "--deep", "--fix", "--json")
    assert "projection_invalid" in {one["code"] for one in json.loads(deep.out) if one["mended"]}
    assert in_pipe("doctor", "--store", damaged_store.url, "--deep").code == 0


def test_watching_reports_each_finding_once(damaged_store: StoreUnderTest) -> None:
    with Terminal("doctor", "--store", damaged_store.url, "--watch", "--every", "0.1") as terminal:
        terminal.expect("warning: lease_expired: worker wrk_gone")
        damaged_store.execute(
            "insert into workers (id, started_at, alive_until) values ('wrk_2', 1, 2)"
        )
        terminal.expect("warning: lease_expired: worker wrk_2")
        damaged_store.execute("delete from workers")
        damaged_store.execute(
            "insert into workers (id, started_at, alive_until) values ('wrk_3', 1, 2)"
        )
        terminal.expect("warning: lease_expired: worker wrk_3")
        damaged_store.execute(
            "insert into workers (id, started_at, alive_until) values ('wrk_2', 1, 2)"
        )
        terminal.expect("warning: lease_expired: worker wrk_2")
        terminal.type("\x03")
        outcome = terminal.wait()
    assert outcome.code == 0
    assert outcome.out.count("wrk_gone") == 1
    assert outcome.out.count("wrk_3") == 1


def test_an_unreachable_store_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"
    outcome = in_process(capsys, "doctor", "--store", url)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)


@pytest.mark.parametrize("command", ["doctor", "keys list", "sessions import ."])
def test_an_unknown_store_type_prints_one_line_without_its_password(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, *command.split(), "--store", "mysql://me:secret@db/x")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "secret" not in outcome.err


def test_every_kind_of_finding_is_documented() -> None:
    page = DOCUMENTED.read_text()
    for code, kind in KINDS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{code}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[1:4] == [kind.severity, kind.meaning, kind.remedy], code
        assert cells[4] == ("yes" if kind.is_fixable else "no"), code
