"""Debian's PgBouncer between a test and the run's PostgreSQL, with PgBouncer's own defaults."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests.clients.environments import apt_program

STOP_SECONDS = 20.0
PORT = 6432
"""Of the socket file only; no two tests share a folder."""


@contextmanager
def pgbouncer(url: str, **settings: str) -> Iterator[str]:
    """Run a pooler in front of the database of `url`; yield its URL. `settings` are PgBouncer's."""
    program = apt_program("pgbouncer", "pgbouncer")
    assert program is not None, "this test needs pgbouncer: install it, or run as root"
    parts = urlsplit(url)
    host = parse_qs(parts.query)["host"][0]
    database, user = parts.path.removeprefix("/"), unquote(parts.username or "postgres")
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    options = {
        "listen_port": str(PORT),
        "unix_socket_dir": str(folder),
        "auth_type": "any",
        "pool_mode": "session",
        **settings,
    }
    lines = [f"{name} = {value}" for name, value in options.items()]
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n{database} = host={host} port=5432 user={user}\n[pgbouncer]\n"
        + "\n".join(lines)
        + "\n"
    )
    command = [program, "--quiet", str(config)]
    if os.geteuid() == 0:
        # PgBouncer refuses to run as root, and only its owner reaches the server's socket.
        owner = pwd.getpwuid(Path(host).stat().st_uid)
        for path in (folder, config):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        command[1:1] = ["--user", owner.pw_name]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        _wait_for(folder / f".s.PGSQL.{PORT}", process)
        yield f"postgresql://{user}@/{database}?host={folder}&port={PORT}"
    finally:
        process.kill()
        process.communicate(timeout=STOP_SECONDS)
        shutil.rmtree(folder)


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the pooler accepts connections."""
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except OSError:
                assert process.poll() is None, process.communicate()[1]
            else:
                return
