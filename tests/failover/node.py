"""One node of the cluster: Patroni and its PostgreSQL."""

import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.acceptance.gateway_process import free_port
from tests.failover import processes
from tests.failover.programs import POSTGRES_BIN, Programs

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "patroni.yml"
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Passwords of the cluster."""

    superuser: str = "of-postgres"
    replication: str = "of-replicator"
    gateways: str = "of-holdfast"


class Node:
    """A node whose processes can be killed, frozen and started again."""

    def __init__(self, name: str, *, folder: Path, programs: Programs, etcd: str) -> None:
        self.name = name
        self.port, self._api_port = free_port(), free_port()
        self.api = f"http://{HOST}:{self._api_port}"
        self._folder = folder / name
        self._programs = programs
        self._etcd = etcd
        self._patroni: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where its PostgreSQL listens."""
        return f"{HOST}:{self.port}"

    @property
    def api_port(self) -> int:
        """The port of Patroni's REST API."""
        return self._api_port

    @property
    def log(self) -> Path:
        """What Patroni and PostgreSQL wrote."""
        return self._folder / "patroni.log"

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL."""
        self._folder.mkdir(exist_ok=True)
        user = self._programs.user
        processes.own(self._folder, user)
        # The user may not be able to read the project's own folder.
        config = self._folder / CONFIGURATION.name
        config.write_text(CONFIGURATION.read_text())
        self._patroni = processes.start(
            [self._programs.patroni, str(config)],
            user=user,
            folder=self._folder,
            name="patroni",
            env=self._environment(),
        )

    def _environment(self) -> dict[str, str]:
        accounts = Accounts()
        return {
            "PATRONI_NAME": self.name,
            "PATRONI_ETCD_HOSTS": self._etcd,
            "PATRONI_RESTAPI_LISTEN": f"{HOST}:{self._api_port}",
            "PATRONI_RESTAPI_CONNECT_ADDRESS": f"{HOST}:{self._api_port}",
            "PATRONI_POSTGRESQL_LISTEN": self.address,
            "PATRONI_POSTGRESQL_CONNECT_ADDRESS": self.address,
            "PATRONI_POSTGRESQL_DATA_DIR": str(self._folder / "data"),
            "PATRONI_POSTGRESQL_BIN_DIR": str(POSTGRES_BIN),
            "PATRONI_POSTGRESQL_PGPASS": str(self._folder / "pgpass"),
            "PATRONI_SUPERUSER_USERNAME": "postgres",
            "PATRONI_SUPERUSER_PASSWORD": accounts.superuser,
            "PATRONI_REPLICATION_USERNAME": "replicator",
            "PATRONI_REPLICATION_PASSWORD": accounts.replication,
        }

    def postgres(self) -> list[psutil.Process]:
        """Return the processes of PostgreSQL, its first one at the front."""
        try:
            text = (self._folder / "data" / "postmaster.pid").read_text()
            first = psutil.Process(int(text.split("\n", 1)[0]))
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
            return []
        # A number in a file that was left behind may be another process by now.
        return processes.tree(first) if first.name().startswith("postgres") else []

    def patroni(self) -> list[psutil.Process]:
        """Return the processes of Patroni."""
        if self._patroni is None or self._patroni.poll() is not None:
            return []
        return processes.tree(psutil.Process(self._patroni.pid))

    def senders(self) -> list[psutil.Process]:
        """Return the processes that send the log of this primary to the standbys."""
        return [one for one in self.postgres() if "walsender" in " ".join(one.cmdline())]

    def kill_postgres(self) -> None:
        """Kill the first process of PostgreSQL; the others notice and end themselves."""
        processes.kill(self.postgres()[:1])

    def kill(self) -> None:
        """Kill everything on the node at once."""
        every = [*self.patroni(), *self.postgres()]
        processes.send(every, signal.SIGCONT)
        processes.kill(every)
        if self._patroni is not None:
            self._patroni.wait()

    def freeze(self) -> list[psutil.Process]:
        """Stop everything on the node, so that connections stay open and nothing answers."""
        every = [*self.patroni(), *self.postgres()]
        processes.send(every, signal.SIGSTOP)
        return every
