"""Commands that only read, with URLs of several servers, and what the doctor says of standbys."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from holdfast.app import open_application
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.clock import SystemClock
from holdfast.settings import Settings, StoreSettings
from holdfast.stores.open import open_store
from holdfast.stores.sql.schema_info import Replication
from tests.cli.terminals import Outcome, in_own_process, in_process
from tests.postgres import PostgresServer, client_tools, private_server, standby_of

SECONDS = 30.0
Pair = tuple[PostgresServer, PostgresServer]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A primary with a store, and its standby."""
    with private_server() as primary:
        asyncio.run(_migrate(primary.url()))
        with standby_of(primary) as standby:
            asyncio.run(_until_attached(primary.url()))
            yield primary, standby


async def _migrate(url: str) -> None:
    store = await open_store(url, clock=SystemClock())
    await store.close()


async def _until_attached(url: str, sync_state: str = "async") -> None:
    connection = await asyncpg.connect(url)
    states: list[str] = []
    async with asyncio.timeout(SECONDS):
        while states != [sync_state]:
            rows = await connection.fetch("select sync_state, state from pg_stat_replication")
            states = [row[0] for row in rows if row[1] == "streaming"]
    await connection.close()


@contextmanager
def configured(server: PostgresServer, **settings: str) -> Iterator[None]:
    """Change settings of a running server until the block ends."""
    reload = "select pg_reload_conf()"
    server.execute(*(f"alter system set {k} = '{v}'" for k, v in settings.items()), reload)
    try:
        yield
    finally:
        server.execute(*(f"alter system reset {name}" for name in settings), reload)


def url_of(first: PostgresServer, second: PostgresServer, **options: str) -> str:
    """Return the URL that names both servers."""
    query = "".join(f"&{name}={value}" for name, value in options.items())
    return f"postgresql://postgres@/postgres?host={first.host()},{second.host()}{query}"


def codes(outcome: Outcome) -> list[str]:
    return [finding["code"] for finding in json.loads(outcome.out)]


@pytest.mark.parametrize("attributes", ["primary", "read-write", None])
def test_commands_that_read_ask_the_primary_whichever_host_is_named_first(
    pair: Pair, attributes: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"target_session_attrs": attributes} if attributes else {}
    for first, second in (pair, pair[::-1]):
        url = url_of(first, second, **options)
        outcome = in_process(capsys, "doctor", "--json", "--store", url)
        assert (outcome.code, codes(outcome)) == (0, ["replication_asynchronous"])
        assert in_process(capsys, "keys", "list", "--store", url).code == 0


@pytest.mark.parametrize("attributes", ["standby", "prefer-standby", "read-only"])
def test_a_standby_that_the_url_asks_for_is_read_and_noted(
    pair: Pair, attributes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = url_of(*pair, target_session_attrs=attributes)
    outcome = in_process(capsys, "doctor", "--json", "--fix", "--store", url)
    assert (outcome.code, codes(outcome)) == (0, ["store_standby"])
    assert in_process(capsys, "keys", "list", "--store", url).code == 0


def test_a_standby_that_nobody_asked_for_is_a_problem(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    url = url_of(*pair[::-1], target_session_attrs="any")
    outcome = in_process(capsys, "doctor", "--json", "--store", url)
    assert (outcome.code, codes(outcome)) == (1, ["store_read_only"])


def test_a_backup_takes_the_url_of_several_servers(pair: Pair, tmp_path: Path) -> None:
    several = url_of(*pair[::-1])
    for number, url in enumerate((several, f"{several}&target_session_attrs=read-write")):
        target = tmp_path / f"{number}.dump"
        arguments = ("backup", str(target), "--store", url)
        outcome = in_own_process(*arguments, env={"PATH": str(client_tools())})
        assert (outcome.code, target.is_file()) == (0, True), outcome.err


def test_the_doctor_and_the_start_name_what_replication_endangers_once(
    pair: Pair, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    primary, _ = pair
    url = primary.url()
    assert _found_at_start(url, caplog) == ["replication_asynchronous"]
    with configured(primary, synchronous_standby_names="standby"):
        asyncio.run(_until_attached(url, "sync"))
        assert codes(in_process(capsys, "doctor", "--json", "--store", url)) == []
        assert _found_at_start(url, caplog) == []
        local = f"{url}&synchronous_commit=local"
        assert codes(in_process(capsys, "doctor", "--json", "--store", local)) == [
            "durability_weak"
        ]
        assert _found_at_start(local, caplog) == ["durability_weak"]


def _found_at_start(url: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Start a gateway; return what it warned of."""

    async def start() -> None:
        settings = Settings(store=StoreSettings(url=url))
        async with open_application(settings):
            pass

    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        asyncio.run(start())
    events = [one for one in caplog.records if one.message == "store.replication_at_risk"]
    return [str(vars(event)["finding"]) for event in events]


@pytest.mark.parametrize(
    ("commit", "names", "standbys", "code"),
    [
        ("on", "", (), None),
        ("local", "", (), None),
        ("on", "", (("a", "async"),), "replication_asynchronous"),
        ("local", "", (("a", "async"),), "replication_asynchronous"),
        ("on", "", (("", None),), "replication_asynchronous"),
        ("on", "a", (("a", "sync"),), None),
        ("on", "ANY 1 (a, b)", (("a", "quorum"), ("b", "quorum")), None),
        ("remote_apply", "a", (("a", "sync"), ("b", "async")), None),
        ("remote_write", "a", (("a", "sync"),), "durability_weak"),
        ("local", "a", (("a", "sync"),), "durability_weak"),
        ("local", "a", (), "durability_weak"),
        ("on", "a", (("b", "async"),), "replication_stalled"),
        ("on", "a", (), "replication_stalled"),
        ("on", "a", (("", None),), None),
    ],
)
def test_one_cause_is_one_finding(
    commit: str, names: str, standbys: tuple[tuple[str, str | None], ...], code: str | None
) -> None:
    found = Replication(synchronous_commit=commit, standby_names=names, standbys=standbys).risk()
    assert (None if found is None else found.code) == code


def test_without_a_primary_among_the_hosts_commands_say_so(pair: Pair) -> None:
    _, standby = pair
    with pytest.raises(StoreUnavailable, match="primary"):
        asyncio.run(_migrate(url_of(standby, standby)))
