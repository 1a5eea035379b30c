"""Sessions of chats that were imported from OpenClaw, which writes keys in lower case."""

from holdfast.core.decisions.import_session import IMPORTER
from holdfast.core.ids import Key, Tenant
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.store import SessionQuery


class ImportedKeys:
    """Finds the key under which the session of a chat was imported.

    Keys keep the case of platform ids, so that different chats never share a session. Only a chat
    without a session of its own continues an imported one.
    """

    def __init__(self, gateway: Gateway, tenant: Tenant) -> None:
        self._gateway = gateway
        self._tenant = tenant

    async def find(self, key: Key) -> Key:
        """Return the key of the session to use for a chat with this key."""
        imported = Key(key.lower())
        read = self._gateway.read
        if imported == key or await read.session(self._tenant, key=key) is not None:
            return key
        if await read.session(self._tenant, key=imported) is None:
            return key
        query = SessionQuery(key=imported, generations=True, order="asc", limit=1)
        for first in await read.sessions(self._tenant, query):
            turns = await read.turns(first.session.id, after=0, limit=1)
            if turns and turns[0].turn.owner == IMPORTER:
                return imported
        return key
