"""The programs of the cluster: Debian's Patroni, etcd, haproxy and PostgreSQL 15."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from tests.clients.environments import apt_program

POSTGRES_BIN = Path("/usr/lib/postgresql/15/bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where the programs are, and the user that PostgreSQL accepts."""

    patroni: str
    etcd: str
    haproxy: str
    user: pwd.struct_passwd


def find_programs() -> Programs:
    """Return the programs; install what is missing, or fail."""
    _program("postgresql-15", str(POSTGRES_BIN / "postgres"))
    patroni = _program("patroni", "patroni")
    etcd = _program("etcd-server", "etcd")
    haproxy = _program("haproxy", "haproxy")
    is_root = os.geteuid() == 0
    user = pwd.getpwnam("postgres") if is_root else pwd.getpwuid(os.geteuid())
    return Programs(patroni=patroni, etcd=etcd, haproxy=haproxy, user=user)


def _program(package: str, name: str) -> str:
    found = apt_program(package, name)
    assert found is not None, f"this test needs {package}: install it, or run as root"
    return found
