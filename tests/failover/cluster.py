"""A cluster on loopback: etcd, three nodes of Patroni, and haproxy in front of them."""

import asyncio
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from tests.acceptance.gateway_process import free_port
from tests.failover import processes
from tests.failover.node import HOST, Accounts, Node
from tests.failover.programs import Programs, find_programs

HAPROXY = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
NODES = 3
START_SECONDS = 180.0
LOOK_SECONDS = 0.3
RUNNING = ("running", "streaming")


class Cluster:
    """Three nodes, of which one is the primary."""

    def __init__(self, folder: Path, programs: Programs, *, is_synchronous: bool) -> None:
        self._folder = folder
        self._programs = programs
        self._is_synchronous = is_synchronous
        self._etcd_port, self._proxy_port = free_port(), free_port()
        etcd = f"{HOST}:{self._etcd_port}"
        self.nodes = [
            Node(f"node-{number}", folder=folder, programs=programs, etcd=etcd)
            for number in range(1, NODES + 1)
        ]
        self._others: list[subprocess.Popen[bytes]] = []
        self._client = httpx.AsyncClient(timeout=5.0)

    @property
    def url(self) -> str:
        """The URL that names all nodes."""
        hosts = ",".join(node.address for node in self.nodes)
        return self._url(hosts) + "?target_session_attrs=read-write"

    @property
    def proxy_url(self) -> str:
        """The URL through haproxy."""
        return self._url(f"{HOST}:{self._proxy_port}")

    @staticmethod
    def _url(hosts: str) -> str:
        return f"postgresql://holdfast:{Accounts().gateways}@{hosts}/holdfast"

    async def start(self) -> None:
        """Start everything, and make the database of the gateways."""
        self._start_etcd()
        first, *others = self.nodes
        # Standbys copy the first one, which must be there for them.
        first.start()
        await self._wait(lambda members: _leader_name(members) is not None)
        for node in others:
            node.start()
        self._start_haproxy()
        if not self._is_synchronous:
            reply = await self._client.patch(
                f"{first.api}/config",
                json={"synchronous_mode": False, "synchronous_mode_strict": False},
            )
            reply.raise_for_status()
        await self.wait_until_whole()
        await self._make_database(await self.leader())

    def _start_etcd(self) -> None:
        folder = self._folder / "etcd"
        folder.mkdir()
        processes.own(folder, self._programs.user)
        peer = f"http://{HOST}:{free_port()}"
        client = f"http://{HOST}:{self._etcd_port}"
        self._start(
            "etcd",
            [self._programs.etcd, "--name", "etcd", "--data-dir", str(folder / "data"),
             # Over the version 3 API, a primary of Patroni 3.0.2 that hung takes the lead back from
             # its successor, and what was acknowledged since is lost.
             "--enable-v2",
             "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", f"etcd={peer}"],
            folder,
        )  # fmt: skip

    def _start_haproxy(self) -> None:
        folder = self._folder / "haproxy"
        folder.mkdir()
        processes.own(folder, self._programs.user)
        text = HAPROXY.read_text().replace("bind :5000", f"bind {HOST}:{self._proxy_port}")
        for number, node in enumerate(self.nodes, 1):
            written = rf"db-{number}:5432 check port 8008"
            assert written in text
            text = re.sub(written, f"{node.address} check port {node.api_port}", text)
        config = folder / "haproxy.cfg"
        config.write_text(text)
        self._start("haproxy", [self._programs.haproxy, "-db", "-f", str(config)], folder)

    def _start(self, name: str, command: list[str], folder: Path) -> None:
        process = processes.start(
            command, user=self._programs.user, folder=folder, name=name, env={}
        )
        self._others.append(process)

    async def _make_database(self, leader: Node) -> None:
        connection = await asyncpg.connect(self.superuser_url(leader))
        try:
            await connection.execute(f"create role holdfast login password '{Accounts().gateways}'")
            await connection.execute("create database holdfast owner holdfast")
            await connection.execute("create database probe")
        finally:
            await connection.close()

    def superuser_url(self, node: Node, database: str = "postgres") -> str:
        """Return the URL of a node's own database."""
        return f"postgresql://postgres:{Accounts().superuser}@{node.address}/{database}"

    async def members(self) -> list[dict[str, Any]]:
        """Return the cluster as any of its nodes sees it."""
        for node in self.nodes:
            try:
                reply = await self._client.get(f"{node.api}/cluster", timeout=2.0)
                members: list[dict[str, Any]] = reply.json()["members"]
            except (httpx.HTTPError, ValueError, KeyError):
                continue
            return members
        return []

    async def leader(self) -> Node:
        """Return the primary."""
        name = _leader_name(await self.members())
        return next(node for node in self.nodes if node.name == name)

    async def switch_over(self, leader: Node) -> None:
        """Let a standby become the primary, as for maintenance."""
        reply = await self._client.post(
            f"{leader.api}/switchover", json={"leader": leader.name}, timeout=60.0
        )
        assert reply.status_code == 200, reply.text

    async def wait_until_whole(self) -> None:
        """Wait until both standbys follow the primary, one of them synchronously if it should."""
        await self._wait(self._is_whole)

    def _is_whole(self, members: list[dict[str, Any]]) -> bool:
        roles = sorted(str(member["role"]) for member in members)
        standbys = ["replica", "sync_standby"] if self._is_synchronous else ["replica", "replica"]
        return (
            roles == ["leader", *standbys]
            and all(member["state"] in RUNNING for member in members)
            and len({member.get("timeline") for member in members}) == 1
            and all(member.get("lag", 0) == 0 or _is_close(member) for member in members)
        )

    async def _wait(self, is_reached: Any) -> None:
        began = time.monotonic()
        while not is_reached(members := await self.members()):
            assert time.monotonic() - began < START_SECONDS, f"{members}\n{self.logs()}"
            await asyncio.sleep(LOOK_SECONDS)

    def logs(self) -> str:
        """Return the ends of the nodes' logs."""
        return "\n".join(
            f"{node.name}: {node.log.read_text(errors='replace')[-3000:]}"
            for node in self.nodes
            if node.log.exists()
        )

    async def stop(self) -> None:
        """Stop everything, whatever state it is in."""
        await self._client.aclose()
        for node in self.nodes:
            node.kill()
        for process in self._others:
            process.kill()
            process.wait()


def _leader_name(members: list[dict[str, Any]]) -> str | None:
    """Return the name of the member that is the primary and runs as one."""
    return next(
        (
            str(member["name"])
            for member in members
            if member["role"] == "leader" and member["state"] == "running"
        ),
        None,
    )


def _is_close(member: dict[str, Any]) -> bool:
    """Whether a standby lacks less than a megabyte."""
    lag = member["lag"]
    return isinstance(lag, int) and lag < 1_000_000


def _open_folder() -> Path:
    """Return a folder that the user of PostgreSQL can enter."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-failover-"))
    folder.chmod(0o755)
    return folder


@asynccontextmanager
async def running_cluster(*, is_synchronous: bool) -> AsyncIterator[Cluster]:
    """Run a cluster for the length of a block."""
    programs = find_programs()
    folder = _open_folder()
    cluster = Cluster(folder, programs, is_synchronous=is_synchronous)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
