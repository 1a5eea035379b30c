"""Locks that show that a worker is alive: the system releases them when its process ends."""

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import WorkerId


class WorkerTokens(Protocol):
    """A token per worker, held for as long as its process lives."""

    async def take(self, worker: WorkerId) -> None:
        """Hold the worker's token from now on."""
        ...

    async def living(self, workers: Sequence[WorkerId]) -> set[WorkerId]:
        """Return the workers whose token is held now, or taken again by a live process."""
        return await self.held(workers)

    async def held(self, workers: Sequence[WorkerId]) -> set[WorkerId]:
        """Return the workers whose token is held at this moment."""
        ...

    async def drop(self, worker: WorkerId) -> None:
        """Release the token, or remove the token of a dead process."""
        ...

    async def close(self) -> None:
        """Release every token when the store is closed."""
        ...


class FileTokens(WorkerTokens):
    """A locked file for each worker, in a folder next to the database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[WorkerId, int] = {}

    async def take(self, worker: WorkerId) -> None:
        """Lock the worker's file; the system unlocks it when this process ends."""
        if worker in self._held:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._folder / worker, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException:
                os.close(handle)
                raise
        except OSError as exc:
            raise StoreUnavailable(f"cannot lock a file in {self._folder}: {exc}") from exc
        self._held[worker] = handle

    async def held(self, workers: Sequence[WorkerId]) -> set[WorkerId]:
        """Return the workers whose file is locked; a missing file has no owner."""
        return {worker for worker in workers if self._is_held(worker)}

    def _is_held(self, worker: WorkerId) -> bool:
        try:
            handle = os.open(self._folder / worker, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise StoreUnavailable(f"cannot read {self._folder / worker}: {exc}") from exc
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            return False
        finally:
            os.close(handle)

    async def drop(self, worker: WorkerId) -> None:
        """Unlock and remove the worker's file."""
        handle = self._held.pop(worker, None)
        # A file that cannot be removed is harmless: without its lock it is no token.
        with contextlib.suppress(OSError):
            (self._folder / worker).unlink()
        if handle is not None:
            os.close(handle)

    async def close(self) -> None:
        """Unlock every file; recovery removes them with their workers."""
        while self._held:
            _, handle = self._held.popitem()
            os.close(handle)


class ProcessTokens(WorkerTokens):
    """Tokens of a store in one process: a worker is alive until it drops its token."""

    def __init__(self) -> None:
        self._held: set[WorkerId] = set()

    async def take(self, worker: WorkerId) -> None:
        """Add the worker."""
        self._held.add(worker)

    async def held(self, workers: Sequence[WorkerId]) -> set[WorkerId]:
        """Return the workers that hold their token."""
        return {worker for worker in workers if worker in self._held}

    async def drop(self, worker: WorkerId) -> None:
        """Remove the worker."""
        self._held.discard(worker)

    async def close(self) -> None:
        """Drop all tokens."""
        self._held.clear()
