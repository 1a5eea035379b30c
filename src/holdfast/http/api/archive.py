"""Archive sessions as files, in the export format, before retention erases them."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast._version import __version__
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.session import Session
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.api.session_items import log_entry
from holdfast.http.formats.sessions import session_value, turn_value
from holdfast.ports.store import ItemQuery

PAGE = 500
VERSION = 1

_encode = msgspec.json.Encoder().encode


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
        head = {"object": "session.export", "version": VERSION, "holdfast": __version__}
        lines = [_encode(head), _encode(session_value(view))]
        lines += [_encode(turn) async for turn in self._turns(session_id)]
        lines += [_encode(entry) async for entry in self._entries(view.session)]
        name = quote(session_id, safe="") + ".jsonl"
        path = self._folder / quote(tenant, safe="").replace(".", "%2E") / name
        await asyncio.to_thread(_write, path, b"\n".join(lines) + b"\n")

    async def _turns(self, session_id: SessionId) -> AsyncIterator[dict[str, Any]]:
        after = 0
        while True:
            views = await self._read.turns(session_id, after=after, limit=PAGE)
            for view in views:
                yield turn_value(view, await self._read.runs(view.turn.id))
            if len(views) < PAGE:
                return
            after = views[-1].turn.number

    async def _entries(self, session: Session) -> AsyncIterator[dict[str, Any]]:
        after: int | None = None
        while True:
            query = ItemQuery(after=after, limit=PAGE, view="log")
            entries = await self._read.listing(session, query)
            for entry in entries:
                yield log_entry(entry)
            if len(entries) < PAGE:
                return
            after = entries[-1].item.seq


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
