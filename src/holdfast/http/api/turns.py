"""The Turns API: what became of a request, and how to stop it."""

from holdfast.core.errors import TurnNotFound
from holdfast.core.ids import Tenant, TurnId
from holdfast.core.transaction.commands import Cancel
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.formats.sessions import turn_value
from holdfast.http.request.body import read_optional_fields
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.ports.store import TurnView


class TurnsApi:
    """Everything under /v1/turns."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def get(self, request: Request) -> AnyReply:
        """Return a turn as it is now."""
        view = await self._find(request)
        return json_reply(turn_value(view, await self._gateway.read.runs(view.turn.id)))

    async def cancel(self, request: Request) -> AnyReply:
        """End a turn that has not ended; one that has keeps its end."""
        view = await self._find(request)
        await read_optional_fields(request)
        await self._gateway.submit(
            Cancel(
                tenant=request.tenant,
                turn_id=view.turn.id,
                reason="cancelled through the Turns API",
            )
        )
        return await self.get(request)

    async def _find(self, request: Request) -> TurnView:
        name = request.params["id"]
        view = await find_turn(self._gateway, request.tenant, name)
        if view is None:
            raise TurnNotFound(f"no turn {name}")
        return view


async def find_turn(gateway: Gateway, tenant: Tenant, name: str) -> TurnView | None:
    """Return a turn by what a client calls it."""
    if "\0" in name:
        return None
    return await gateway.read.turn(tenant, TurnId(name))
