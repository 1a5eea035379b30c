"""Identify processes by pid and start time, and end process groups; Linux only, through /proc."""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

_PROC = Path("/proc")
KILL_PASSES = 100
_MARK = "HOLDFAST_STARTED_BY"
"""The variable that names the gateway in the environment of its children."""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process that cannot be confused with a later one of the same pid."""

    pid: int
    started: int
    """Clock ticks from boot to the start of the process; 0 if the system has no /proc."""
    boot: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether this process still runs."""
        return self.started > 0 and self.boot == boot_id() and start_time(self.pid) == self.started


class _Stat(msgspec.Struct, frozen=True):
    """Fields of /proc/PID/stat."""

    state: str
    group: int
    session: int
    started: int
    resident_pages: int


def identify(pid: int) -> ProcessIdentity:
    """Return the identity of a running process."""
    return ProcessIdentity(pid, start_time(pid) or 0, boot_id())


def start_time(pid: int) -> int | None:
    """Return when a process started; None if it is not running."""
    stat = _read_stat(pid)
    return None if stat is None or stat.state in "ZX" else stat.started


def boot_id() -> str:
    """Return the id of the current boot; pids and start times of another boot are meaningless."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def group_members(group: int) -> list[int]:
    """Return the running processes of a process group."""
    return [
        pid
        for pid in _pids()
        if (stat := _read_stat(pid)) is not None and stat.group == group and stat.state not in "ZX"
    ]


def resident_bytes() -> dict[int, int]:
    """Return how much memory each process group has resident."""
    page = os.sysconf("SC_PAGE_SIZE")
    groups: dict[int, int] = {}
    for pid in _pids():
        stat = _read_stat(pid)
        if stat is not None:
            groups[stat.group] = groups.get(stat.group, 0) + stat.resident_pages * page
    return groups


def kill_group(group: int) -> None:
    """Kill every process of a group; a group without processes is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def kill_user(uid: int) -> None:
    """Kill every process of a system user, including those with a session of their own."""
    if uid in (0, os.getuid()):
        return
    for _ in range(KILL_PASSES):
        # Processes that start while the table is read are found by the next pass.
        running = [pid for pid in _pids() if _real_user(pid) == uid]
        if not running:
            return
        for pid in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _real_user(pid: int) -> int | None:
    """Return the user who started a process; None for one that has ended."""
    stat = _read_stat(pid)
    if stat is None or stat.state in "ZX":
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Not the owner of the folder, which is root for a process that is not dumpable.
        status = (_PROC / str(pid) / "status").read_text("ascii", "replace")
        return int(status.split("\nUid:", 1)[1].split(None, 1)[0])
    return None


def kill_leftover(leader: ProcessIdentity, directory: Path) -> bool:
    """Kill a group that a dead gateway left; return whether there was one.

    If its leader has ended, a member is recognised by the session's directory in its environment:
    the number of the group may have been reused.
    """
    if leader.boot != boot_id():
        return False
    members = group_members(leader.pid)
    if not leader.is_alive and not any(_names_directory(pid, directory) for pid in members):
        return False
    kill_group(leader.pid)
    return True


def mark_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a child's environment with a mark, by which `kill_orphans` finds its descendants."""
    gateway = identify(os.getpid())
    return {**environment, _MARK: f"{gateway.pid}:{gateway.started}:{gateway.boot}"}


def kill_orphans() -> int:
    """Kill processes that marked children of dead gateways have left; return how many.

    The kernel kills the children themselves with their gateway, but not their own children. A
    process with a session of its own, such as a daemon, was meant to stay.
    """
    count = 0
    for pid in _pids():
        gateway, stat = _marked_gateway(pid), _read_stat(pid)
        if gateway is None or gateway.is_alive or stat is None or stat.session == pid:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count


def _marked_gateway(pid: int) -> ProcessIdentity | None:
    """Return the gateway that started a process's marked ancestor; None without a mark."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    prefix = f"{_MARK}=".encode()
    for entry in environment.split(b"\0"):
        number, _, rest = entry.removeprefix(prefix).decode("ascii", "replace").partition(":")
        started, _, boot = rest.partition(":")
        if entry.startswith(prefix) and number.isdecimal() and started.isdecimal():
            return ProcessIdentity(int(number), int(started), boot)
    return None


def _names_directory(pid: int, directory: Path) -> bool:
    try:
        return os.fsencode(directory) in (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False


def _pids() -> Iterator[int]:
    try:
        names = os.listdir(_PROC)
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit())


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text("ascii", "replace")
    except OSError:
        return None
    # The name in parentheses may contain any character: fields follow the last parenthesis.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[2]), int(fields[3]), int(fields[19]), int(fields[21]))
