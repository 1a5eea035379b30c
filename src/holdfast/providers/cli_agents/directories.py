"""The directories of an agent's sessions: working and configuration directory, record and lock.

Only the owner can read them. The gateway's own files are outside the two directories that the agent
may write.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.processes.child import UnixAccount
from holdfast.processes.process_table import (
    ProcessIdentity,
    identify,
    kill_leftover,
    kill_user,
)

LOCK_POLL_SECONDS = 0.05
MAX_TRANSCRIPT_BYTES = 256 * 1024 * 1024
"""A larger transcript is not read: the agent's session is rebuilt from the log."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_TEMPORARY = "once-"
_RECORD = "session.json"
_CLAIMS = ".uids"
"""The folder with a file for each user id that a session runs under."""


def open_transcript(path: Path) -> BinaryIO:
    """Open a file that an agent wrote; raise `OSError` for a pipe, a link, or a huge file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags), "rb")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_TRANSCRIPT_BYTES:
        file.close()
        raise OSError(f"{path} is not a file that can be read")
    return file


class AgentSessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway has recorded about an agent's session on this machine."""

    token: str = ""
    """Identifies the last completed turn; empty while a turn runs, and after one that was cut
    off."""
    process: ProcessIdentity | None = None
    """The agent's process, which is the leader of its group."""
    gateway: ProcessIdentity | None = None
    """The process that started it."""


class SessionDirectory:
    """The directory of one session of one upstream."""

    def __init__(
        self,
        path: Path,
        work: Path | None,
        account: UnixAccount | None,
        *,
        owns_work: bool = False,
        shares_work: bool = False,
        owns_account: bool = False,
    ) -> None:
        self.path = path
        self.config = path / "config"
        self.work = work or path / "work"
        self.account = account
        self._owns_work = owns_work
        """Whether this session alone uses its configured working directory."""
        self._shares_work = shares_work
        """Whether every session uses this working directory."""
        self.owns_account = owns_account
        """Whether this session alone uses its account."""
        self.is_temporary = path.name.startswith(_TEMPORARY)

    def create(self) -> None:
        """Create missing directories, accessible only to their owner."""
        # The agent's own user must be able to enter these, but neither list nor read them.
        passable = 0o711 if self.account is not None else 0o700
        for directory in (self.path.parent, self.path):
            directory.mkdir(mode=passable, parents=True, exist_ok=True)
            directory.chmod(passable)
        for directory in (self.config, self.work):
            if not directory.exists():
                directory.mkdir(mode=0o700, parents=True)
                self._give(directory)
            elif self._is_own(directory) and self._is_foreign(directory):
                self._give_all(directory)

    @property
    def has_config(self) -> bool:
        """Whether the configuration directory has any content."""
        is_folder = self.config.is_dir() and not self.config.is_symlink()
        return is_folder and any(self.config.iterdir())

    def empty_config(self) -> None:
        """Delete the content of the configuration directory; its owner keeps the directory."""
        for path in self.config.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def clear_config(self) -> None:
        """Delete the agent's own transcripts and settings of this session."""
        shutil.rmtree(self.config, ignore_errors=True)
        self.create()

    def write_config(self, name: str, content: str) -> Path:
        """Write a file of the configuration directory; return its path."""
        path = self.config / name
        # The agent can write here: opening a pipe in place of the file would block.
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        self._give(path)
        return path

    def make_config_folder(self, name: str) -> Path:
        """Make a folder of the configuration directory; return its path."""
        path = self.config / name
        if not path.is_dir():
            path.mkdir(mode=0o700)
            self._give(path)
        return path

    def _give(self, path: Path) -> None:
        """Make the agent's user the owner of a path."""
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)

    def _is_own(self, directory: Path) -> bool:
        return self._owns_work or directory.parent == self.path

    def _is_foreign(self, directory: Path) -> bool:
        """Whether a directory belongs to another user: `run_as` was set or changed since."""
        return self.account is not None and directory.lstat().st_uid != self.account.uid

    def _give_all(self, directory: Path) -> None:
        for folder, folders, files in os.walk(directory):
            for name in (*folders, *files):
                self._give(Path(folder, name))
        self._give(directory)

    def link_config(self, name: str, target: Path) -> None:
        """Link a file, such as credentials, into the configuration directory."""
        path = self.config / name
        if not path.is_symlink() or path.readlink() != target:
            path.unlink(missing_ok=True)
            path.symlink_to(target)

    def read(self) -> AgentSessionRecord:
        """Return the record, or an empty one if there is none or it cannot be read."""
        try:
            return msgspec.json.decode((self.path / _RECORD).read_bytes(), type=AgentSessionRecord)
        except (OSError, ValueError):  # msgspec does not wrap the error of invalid UTF-8
            return AgentSessionRecord()

    def write(self, record: AgentSessionRecord) -> None:
        """Replace the record."""
        new = self.path / f"{_RECORD}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(record))
        new.replace(self.path / _RECORD)

    def remove(self) -> None:
        """Delete the directories and their content, except a shared working directory."""
        self.end_account()
        shutil.rmtree(self.path, ignore_errors=True)
        if self._owns_work:
            shutil.rmtree(self.work, ignore_errors=True)
        if self.account is not None:
            claim = self.path.parent / _CLAIMS / str(self.account.uid)
            claim.unlink(missing_ok=True)

    def end_account(self) -> None:
        """Kill processes that left the agent's group, because the user id will be used again."""
        if self.account is not None and self.owns_account:
            kill_user(self.account.uid)

    def end_leftover(self) -> None:
        """Kill another gateway's process in the record: two processes must never share a session.

        Its gateway has died, or is alive and will start a new process.
        """
        record = self.read()
        if record.process is not None and kill_leftover(record.process, self.path):
            self.write(AgentSessionRecord(token=record.token))

    @asynccontextmanager
    async def locked(self, seconds: float, *, with_work: bool = True) -> AsyncIterator[None]:
        """Lock the session, and a shared working directory, against other gateways of a machine."""
        with contextlib.ExitStack() as stack:
            locks = [(self.path / "lock", os.O_RDWR | os.O_CREAT)]
            if self._shares_work and with_work:
                locks.append((self.work, os.O_DIRECTORY))
            for path, flags in locks:
                descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, descriptor)
                await _lock(descriptor, seconds)
            yield


async def _lock(descriptor: int, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                await asyncio.sleep(LOCK_POLL_SECONDS)
    except TimeoutError as exc:
        raise ProviderFailure(
            "another gateway runs a turn of this session, or in its working directory",
            failure_class="busy",
            status=503,
            provider_code="agent_session_locked",
        ) from exc


class AgentDirectories:
    """The directories of all sessions of one upstream."""

    def __init__(
        self, root: Path, workdir: str, accounts: tuple[UnixAccount, UnixAccount] | None
    ) -> None:
        self.root = root
        self._workdir = workdir
        self._accounts = accounts
        self._owns_accounts = accounts is not None and accounts[0] != accounts[1]
        parts = Path(workdir).parts
        has_session = any("{session}" in part for part in parts)
        self._owns_work = ".." not in parts and has_session
        self._shares_work = bool(workdir) and not has_session

    def session(self, session_id: str) -> SessionDirectory:
        """Return the directory of a session."""
        return self._directory(_directory_name(session_id))

    def existing(self, session_id: str) -> SessionDirectory | None:
        """Return the directory of a session, if there is one."""
        path = self.root / _directory_name(session_id)
        return self._open(path) if path.is_dir() else None

    def names(self) -> list[str]:
        """Return the sessions that have a directory."""
        names = (each.path.name for each in self._existing() if not each.is_temporary)
        return [name for name in names if _SAFE_NAME.fullmatch(name)]

    def temporary(self, name: str) -> SessionDirectory:
        """Return a directory for one call that belongs to no session."""
        return self._directory(f"{_TEMPORARY}{name}")

    def _directory(self, name: str) -> SessionDirectory:
        path = self.root / name
        return SessionDirectory(
            path,
            self._work(name),
            self._account(path),
            owns_work=self._owns_work,
            shares_work=self._shares_work,
            owns_account=self._owns_accounts,
        )

    def _account(self, path: Path) -> UnixAccount | None:
        """Return the account of a session: the shared one, or its own."""
        if self._accounts is None:
            return None
        first, last = self._accounts
        if first == last:
            return first
        account = self._known_account(path)
        if account is not None:
            return account
        claims = self.root / _CLAIMS
        claims.mkdir(mode=0o700, parents=True, exist_ok=True)
        for uid in range(first.uid, last.uid + 1):
            with contextlib.suppress(FileExistsError):
                # O_EXCL: exactly one gateway creates it, so no two sessions get the same id.
                os.close(os.open(claims / str(uid), os.O_CREAT | os.O_EXCL, 0o600))
                return UnixAccount(uid, uid)
        raise ProviderFailure(
            f"all ids of run_as are in use ({first.uid}-{last.uid}): delete sessions, or add ids",
            failure_class="terminal",
            status=503,
            provider_code="agent_not_started",
        )

    def _known_account(self, path: Path) -> UnixAccount | None:
        """Return the session's own account, if it is in the configured range."""
        if self._accounts is None or not self._owns_accounts:
            return None
        first, last = self._accounts
        try:
            owner = (path / "config").lstat()
        except OSError:
            return None
        # A directory of an earlier configuration may belong to the gateway's user, or to root.
        is_in_range = first.uid <= owner.st_uid <= last.uid
        return UnixAccount(owner.st_uid, owner.st_gid) if is_in_range else None

    def _work(self, name: str) -> Path | None:
        if not self._workdir:
            return None
        return Path(self._workdir.replace("{session}", name)).expanduser().absolute()

    def end_leftovers(self) -> int:
        """Kill the processes that dead gateways left; return how many groups there were."""
        return sum(_end_leftover(directory) for directory in self._existing())

    def _existing(self) -> Iterator[SessionDirectory]:
        if not self.root.is_dir():
            return
        for path in sorted(self.root.iterdir()):
            if path.is_dir() and path.name != _CLAIMS:
                yield self._open(path)

    def _open(self, path: Path) -> SessionDirectory:
        """Return an existing directory, with the account that it belongs to."""
        owner = self._known_account(path)
        return SessionDirectory(
            path,
            self._work(path.name),
            owner,
            owns_work=self._owns_work,
            owns_account=owner is not None,
        )


def _directory_name(session_id: str) -> str:
    if not _SAFE_NAME.fullmatch(session_id) or session_id.startswith(_TEMPORARY):
        return hashlib.sha256(session_id.encode()).hexdigest()
    return session_id


def _end_leftover(directory: SessionDirectory) -> bool:
    record = directory.read()
    if record.gateway is not None and record.gateway.is_alive:
        return False
    is_found = record.process is not None and kill_leftover(record.process, directory.path)
    if record.process is not None:
        directory.end_account()
    if directory.is_temporary:
        directory.remove()
    elif record.process is not None:
        directory.write(AgentSessionRecord(token=record.token))
    return is_found


def this_gateway() -> ProcessIdentity:
    """Return the identity of the current process."""
    return identify(os.getpid())
