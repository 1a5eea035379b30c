"""`holdfast doctor`: every planted fault is found, explained and, where it can be, mended."""

import asyncio
import dataclasses
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

import holdfast
from holdfast.cli.output.masking import mask_url
from holdfast.core.ids import WorkerId
from holdfast.doctor.findings import KINDS
from holdfast.doctor.store_checks import check_from_outside
from holdfast.engine.embedded.api import Holdfast
from holdfast.stores.sql.schema_info import Outside
from tests.cli.terminals import Terminal, in_pipe, in_process, in_terminal

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

    async def model(items: list[dict[str, Any]]) -> str:
        return "well"

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
    statements: tuple[str, ...]
    is_mended: bool


GONE = "insert into workers (id, started_at, alive_until) values ('wrk_gone', 1, 2)"
TURN = (
    "insert into turns (id, session_id, tenant, number, position, source, owner, step, attempts, "
    "request, is_retryable, accepted_at, started_at, retry_claim, first_seq, kept_seq, last_seq) "
    "select 'turn_stuck', id, tenant, 2, 2, '{source}', '{owner}', 0, 1, x'', 0, 1, 1, 0, 3, 2, 2 "
    "from sessions where key = 'store_under_test'"
)
RUN = (
    "insert into runs (id, turn_id, session_id, generation, epoch, worker, step, first_seq, "
    "started_at) select 'run_stuck', 'turn_stuck', id, 1, epoch + 1, '{owner}', 0, 3, 1 "
    "from sessions where key = 'store_under_test'"
)
TAKE = (
    "update sessions set turn_count = 2, epoch = epoch + 1, active_turn_id = 'turn_stuck', "
    "active_run_id = 'run_stuck', owner = '{owner}' where key = 'store_under_test'"
)
HOLD = (
    "update sessions set turn_count = 2, active_turn_id = 'turn_stuck', hold_until = 5, "
    "pending_calls = '[\"call_1\"]' where key = 'store_under_test'"
)
STATE = (
    "insert into provider_state (session_id, slot, provider, account, model, value, "
    "covers_seq, saved_at) select id, 's', 'openai', 'a', 'gpt-5', x'00', 99, 1 from sessions"
)
FAIL = (
    "update turns set outcome = 'failed', error_code = 'upstream_error', "
    f"ended_at = {time.time() + 1000:.0f}"
)
FAULTS = [
    Fault("lease_expired", (GONE,), True),
    Fault(
        "run_orphaned",
        tuple(one.format(owner="wrk_gone", source="user") for one in (GONE, TURN, RUN, TAKE)),
        True,
    ),
    Fault(
        "turn_abandoned",
        (
            TURN.format(owner="wrk_gone", source="user"),
            "update sessions set turn_count = 2 where key = 'store_under_test'",
        ),
        True,
    ),
    Fault(
        "hold_expired",
        (
            TURN.format(owner="wrk_gone", source="user"),
            HOLD,
        ),
        True,
    ),
    Fault(
        "run_without_lane",
        ("update runs set outcome = null",),
        False,
    ),
    Fault("log_gap", ("delete from items where seq = 2",), False),
    Fault("turn_gap", ("update sessions set turn_count = 7",), False),
    Fault(
        "projection_invalid",
        ("update items set body = x'7b6e6f' where seq = 2",),
        True,
    ),
    Fault(
        "provider_state_stale",
        (STATE,),
        True,
    ),
    Fault("clock_went_back", ("update sessions set created_at = 99999999999",), False),
    Fault(
        "turn_failed",
        (FAIL,),
        False,
    ),
    Fault("schema_too_new", ("insert into schema_versions values (9999, 'future', 1)",), False),
    Fault(
        "schema_behind",
        ("delete from schema_versions where version = (select max(version) from schema_versions)",),
        False,
    ),
    Fault("schema_incomplete", ("alter table idempotency drop column step",), False),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.code)
def test_a_planted_fault_is_found_explained_and_fixed_only_on_request(
    store_under_test: StoreUnderTest, fault: Fault
) -> None:
    store_under_test.execute(*fault.statements)
    try:
        found = store_under_test.examine()
        assert fault.code in {one["code"] for one in found}
        kind = next(one for one in found if one["code"] == fault.code)
        assert kind["meaning"]
        assert kind["remedy"]
        assert fault.code in store_under_test.codes(), "looking does not mend"
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
        statements = [one.format(owner=worker, source="user") for one in (TURN, RUN, TAKE)]
        await asyncio.to_thread(store_under_test.execute, *statements)
        outcome = await asyncio.to_thread(
            in_pipe, "doctor", "--store", store_under_test.url, "--json"
        )
        return {one["code"] for one in json.loads(outcome.out)} - OF_THE_TEST_SERVER

    assert store_under_test.work(plant) == {"run_stuck"}


def test_a_provider_that_lost_its_state_is_noted_with_its_turn(
    store_under_test: StoreUnderTest,
) -> None:
    heals = json.dumps([{"failure_class": "stale_state", "action": "dropped_state", "code": "x"}])
    encoded = heals.encode().hex()
    store_under_test.execute(f"update runs set heals = x'{encoded}'")
    (found,) = store_under_test.examine()
    assert (found["code"], found["severity"]) == ("provider_forgot", "note")
    assert found["subject"].startswith("turn_")


# ── from outside ────────────────────────────────────────────────────────────────────────────

WELL = Outside(
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
        ({"clock_ahead_seconds": -7.0}, "clock_skewed"),
        ({"damage": ("page 7 is never used",)}, "store_damaged"),
        ({"missing": ("turns",)}, "schema_incomplete"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_problems_visible_from_outside_are_reported(change: dict[str, Any], code: str) -> None:
    assert list(check_from_outside(WELL)) == []
    assert [one.code for one in check_from_outside(dataclasses.replace(WELL, **change))] == [code]


def test_a_damaged_file_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_under_test = StoreUnderTest(f"sqlite:///{tmp_path / 'hurt.db'}", capsys)
    path = tmp_path / "hurt.db"
    sqlite3.connect(path).execute("pragma wal_checkpoint(truncate)").fetchall()
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


BROKEN = "update items set body = x'7b6e6f' where seq = 2"


def test_a_failed_fix_is_not_reported_as_fixed(damaged_store: StoreUnderTest) -> None:
    damaged_store.execute(
        BROKEN,
        "create trigger stubborn before insert on records begin select raise(abort, 'no'); end",
    )
    told = in_pipe("doctor", "--store", damaged_store.url, "--fix", "--json")
    mended = {one["code"]: one["mended"] for one in json.loads(told.out)}
    assert (told.code, mended) == (1, {"lease_expired": True, "projection_invalid": False})
    failure, store = told.err.splitlines()
    assert failure.startswith("holdfast: projection_invalid ")
    assert store == f"holdfast: used store {damaged_store.url}"


def test_a_deep_check_reads_retired_generations(
    damaged_store: StoreUnderTest,
) -> None:
    async def reset(hf: Holdfast) -> None:
        await (await hf.session("store_under_test")).reset()

    damaged_store.work(reset)
    damaged_store.execute(BROKEN)
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
        assert cells[1] == kind.severity, code
        assert cells[4] == ("yes" if kind.is_fixable else "no"), code
