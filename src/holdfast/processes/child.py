"""Start a child process that has its own group and is killed with the gateway."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

_PR_SET_PDEATHSIG = 1
_prctl: Callable[..., int] | None = None
if sys.platform == "linux":
    _prctl = ctypes.CDLL(None, use_errno=True).prctl


class UnixAccount(msgspec.Struct, frozen=True):
    """The system user that a process runs as."""

    uid: int
    gid: int


async def start_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    max_line_bytes: int,
    account: UnixAccount | None = None,
) -> asyncio.subprocess.Process:
    """Start a process in its own session and group, with pipes for all its streams.

    On Linux the kernel kills it when the gateway dies for any reason. Its own children are not
    killed then: they find their input closed. `kill_group` ends all of them.
    """
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=dict(env),
        start_new_session=True,
        preexec_fn=_before_exec(account, os.getpid()),
        limit=max_line_bytes,
    )


def _before_exec(account: UnixAccount | None, parent: int) -> Callable[[], None]:
    """Return the function that the child runs before exec."""

    def prepare() -> None:
        if account is not None:
            os.setgroups([])
            os.setgid(account.gid)
            os.setuid(account.uid)
        if _prctl is not None:
            # After setuid, which clears this setting. The parent may have died before the call.
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return prepare
