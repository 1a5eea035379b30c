"""Isolation of an agent that has tools: a sandbox, or a separate system user.

Before a gateway starts, an isolated probe tries to read what no agent may: the store, the
configuration, the gateway's environment, and the directory of another session.
"""

import asyncio
import os
import pwd
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import InvalidSetting, ProviderFailure
from holdfast.processes.child import UnixAccount
from holdfast.providers.cli_agents.process import AgentProcess, Launch
from holdfast.providers.settings import UpstreamSettings

PROBE_SECONDS = 30.0
MIN_UID = 1000
"""Smaller ids are reserved for the system."""
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = (
    "/etc/alternatives", "/etc/ca-certificates", "/etc/group", "/etc/hosts", "/etc/ld.so.cache",
    "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/pki", "/etc/resolv.conf",
    "/etc/ssl",
)  # fmt: skip
_ENTER = 'for path; do if [ ! -x "$path" ]; then echo "$path"; exit; fi; done'
_PROBE = 'for path; do if [ -r "$path" ]; then echo "$path"; fi; done; echo done'


def read_accounts(run_as: str) -> tuple[UnixAccount, UnixAccount] | None:
    """Return the first and last account for agents, or None if they use the gateway's own."""
    if not run_as:
        return None
    match = _RANGE.fullmatch(run_as)
    if match:
        first, last = int(match[1]), int(match[2])
        if not MIN_UID <= first <= last:
            raise InvalidSetting(f"upstream.run_as: {run_as} is not a range of ids from {MIN_UID}")
        accounts = UnixAccount(first, first), UnixAccount(last, last)
    else:
        try:
            entry = pwd.getpwnam(run_as)
        except KeyError as exc:
            raise InvalidSetting(f"upstream.run_as: there is no user {run_as!r}") from exc
        accounts = (UnixAccount(entry.pw_uid, entry.pw_gid),) * 2
    if os.geteuid() not in (0, accounts[0].uid):
        raise InvalidSetting("upstream.run_as needs a gateway that runs as root")
    return accounts


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A bubblewrap sandbox: the system read-only and the session's directories, nothing else."""

    readable: tuple[Path, ...]
    """Files outside of the system that the agent needs: its program, its credentials."""
    path: str

    def wrap(
        self,
        command: Sequence[str],
        *,
        writable: Sequence[Path],
        cwd: Path,
        readable: Sequence[Path] = (),
    ) -> list[str]:
        """Return a command that runs in the sandbox."""
        program = shutil.which("bwrap", path=self.path)
        if program is None:
            raise InvalidSetting("upstream.sandbox needs bubblewrap (the program bwrap)")
        arguments = [
            program, "--die-with-parent", "--new-session", "--unshare-all", "--share-net",
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
        ]  # fmt: skip
        for name in _SYSTEM:
            if Path(name).is_symlink():
                arguments += ["--symlink", os.readlink(name), name]
            elif Path(name).is_dir():
                arguments += ["--ro-bind", name, name]
        for name in _SYSTEM_FILES:
            arguments += ["--ro-bind-try", name, name]
        for path in self.readable:
            for needed in _needed(path):
                arguments += ["--ro-bind", str(needed), str(needed)]
        for directory in readable:
            arguments += ["--ro-bind", str(directory), str(directory)]
        for directory in writable:
            arguments += ["--bind", str(directory), str(directory)]
        return [*arguments, "--chdir", str(cwd), "--", *command]


def _needed(path: Path) -> list[Path]:
    """Return the paths that a file needs: itself, its target, and the package that contains it."""
    real = path.resolve()
    packages = [parent for parent in real.parents if parent.name == "node_modules"]
    target = packages[-1] if packages else real
    folders = [target] if target == path or path in target.parents else [target, path]
    return [
        folder
        for folder in folders
        if not any(str(folder).startswith(f"{name}/") for name in _SYSTEM)
    ]


async def find_closed(settings: UpstreamSettings, account: UnixAccount) -> str | None:
    """Return an error text if an agent's user cannot enter the directories of its sessions."""
    root = _make_root(settings, 0o711)
    bases = [root, *([Path(settings.workdir.partition("{")[0])] if settings.workdir else [])]
    folders = [folder for base in bases for folder in (*reversed(base.parents), base)]
    paths = [str(folder) for folder in folders if folder.is_dir()]
    command = ["/bin/sh", "-c", _ENTER, "sh", *paths]
    process = await AgentProcess.start(
        Launch(command=command, env={"PATH": os.defpath}, cwd=Path("/"), account=account)
    )
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            closed = await process.read_line()
    except TimeoutError:
        return None  # too busy to check: the agent itself will fail if it cannot enter
    finally:
        await asyncio.shield(process.kill())
    if closed is None:
        return None
    return (
        f"upstream {settings.name}: user {account.uid} (run_as) cannot enter "
        f"{os.fsdecode(closed)}, where the agent's directories are; allow it to pass "
        "(chmod o+x), or set XDG_DATA_HOME to another directory"
    )


def _make_root(settings: UpstreamSettings, mode: int) -> Path:
    """Create the directory of all sessions of an upstream."""
    root = settings.runtime.root / settings.name
    root.mkdir(mode=mode, parents=True, exist_ok=True)
    root.chmod(mode)
    return root


async def refuse_readable(
    settings: UpstreamSettings,
    sandbox: Sandbox | None,
    accounts: tuple[UnixAccount, UnixAccount] | None,
) -> None:
    """Raise if an isolated process can read anything that does not belong to its session."""
    mode = 0o711 if accounts is not None else 0o700
    root = _make_root(settings, mode)
    mine, theirs = accounts or (None, None)
    with tempfile.TemporaryDirectory(prefix="probe-", dir=root) as folder:
        os.chmod(folder, mode)
        own, other = _session_like(f"{folder}/own", mine), _session_like(f"{folder}/other", theirs)
        secrets = [*settings.runtime.protected, f"/proc/{os.getpid()}/environ", other / "secret"]
        readable = await _probe([*map(str, secrets)], own, sandbox, mine)
    if readable:
        raise InvalidSetting(
            f"upstream {settings.name}: an agent with permissions could read "
            f"{', '.join(readable)}; use sandbox = true, or a range of ids in run_as"
        )


def _session_like(name: str, account: UnixAccount | None) -> Path:
    """Create a directory with the same permissions as a session's, with a file in it."""
    directory = Path(name)
    directory.mkdir(mode=0o700)
    secret = directory / "secret"
    secret.write_text("secret")
    if account is not None:
        for path in (directory, secret):
            os.chown(path, account.uid, account.gid)
    return directory


async def _probe(
    paths: Sequence[str], own: Path, sandbox: Sandbox | None, account: UnixAccount | None
) -> list[str]:
    command = ["/bin/sh", "-c", _PROBE, "sh", *paths, str(own / "secret")]
    if sandbox is not None:
        command = sandbox.wrap(command, writable=(own,), cwd=own)
    process = await AgentProcess.start(
        Launch(command=command, env={"PATH": os.defpath}, cwd=own, account=account)
    )
    readable: list[str] = []
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            while line := await process.read_line():
                readable.append(os.fsdecode(line))
            await process.exit_code()
    except TimeoutError:
        pass
    finally:
        await asyncio.shield(process.kill())
    # The probe must have worked: it sees its own file and runs to its end.
    if readable[-2:] != [str(own / "secret"), "done"]:
        raise ProviderFailure(
            f"the sandbox does not work on this machine: {process.errors or 'no output'}",
            failure_class="terminal",
            status=502,
            provider_code="agent_not_started",
        )
    return readable[:-2]
