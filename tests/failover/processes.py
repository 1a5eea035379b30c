"""Start processes of the cluster as their own user; kill and freeze whole trees of them."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from pwd import struct_passwd

import psutil

STOP_SECONDS = 20.0


def start(
    command: list[str], *, user: struct_passwd, folder: Path, name: str, env: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process in `folder`, with its output in a file there."""
    is_root = os.geteuid() == 0
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            user=user.pw_uid if is_root else None,
            group=user.pw_gid if is_root else None,
        )


def tree(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and all that it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to all of them that still exist."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def kill(processes: list[psutil.Process]) -> None:
    """Kill them with SIGKILL, and wait until they are gone."""
    send(processes, signal.SIGKILL)
    _, alive = psutil.wait_procs(processes, timeout=STOP_SECONDS)
    assert not alive, f"these processes did not end: {alive}"


def own(folder: Path, user: struct_passwd) -> None:
    """Give a folder to the user, whom root need not be."""
    if os.geteuid() == 0:
        os.chown(folder, user.pw_uid, user.pw_gid)
