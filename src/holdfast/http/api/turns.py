"""The Turns API: read and cancel turns."""

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
        """Return a turn."""
        view = await self._find(request)
        return json_reply(turn_value(view, await self._gateway.read.runs(view.turn.id)))

    async def cancel(self, request: Request) -> AnyReply:
        """Cancel a turn; one that has ended stays unchanged."""
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


async def find_turn(gateway: Gateway, tenant: Tenant, turn_id: str) -> TurnView | None:
    """Return a turn by its id."""
    if "\0" in turn_id:
        return None
    return await gateway.read.turn(tenant, TurnId(turn_id))
