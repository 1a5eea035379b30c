"""Archive sessions as files, in the export format, before retention erases them."""

import asyncio
import os
from pathlib import Path
from urllib.parse import quote

from holdfast.core.errors import SessionNotFound
from holdfast.core.ids import SessionId, Tenant
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.api.export import export_header, session_lines


class SessionArchive:
    """A folder with one file per session, in a sub-folder per tenant."""

    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self._read = gateway.read
        self._folder = folder

    async def archive(self, tenant: Tenant, session_id: SessionId) -> None:
        """Write a session and its whole log to disk and sync it."""
        view = await self._read.session(tenant, session_id=session_id)
        if view is None:
            return
        lines = [export_header()]
        try:
            lines += [part async for part in session_lines(self._read, tenant, view)]
        except SessionNotFound:
            return  # erased meanwhile
        name = quote(session_id, safe="") + ".jsonl"
        path = self._folder / quote(tenant, safe="").replace(".", "%2E") / name
        await asyncio.to_thread(_write, path, b"".join(lines))


def _write(path: Path, data: bytes) -> None:
    # `parents=True` would leave the modes of the parent directories to the umask.
    missing = [parent for parent in path.parents if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(mode=0o700, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
