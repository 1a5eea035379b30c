"""The Turns API: read and cancel turns, and see what was sent to the model."""

from holdfast.core.errors import InvalidInput, NotFound, TurnNotFound
from holdfast.core.ids import Tenant, TurnId
from holdfast.core.model.request import turn_of_response
from holdfast.core.tools.requested import read_tools
from holdfast.engine.model_call.compactor import Compactor
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.sent_requests import RebuiltRequest, SentRequests
from holdfast.engine.turns.turn_service import TurnService
from holdfast.http.formats.projection import projection_value
from holdfast.http.formats.sessions import turn_value
from holdfast.http.request.body import read_no_fields
from holdfast.http.request.pagination import read_flag
from holdfast.http.request.session_headers import name_session
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.ports.provider import Upstreams
from holdfast.ports.store import TurnView

MAX_INPUT_ITEMS = 1000
"""The most items of a request that one projection lists."""
MAX_WIRE_BYTES = 16 * 1024 * 1024
"""The largest body that a projection shows."""


class ProjectionNotFound(NotFound):
    """No request was sent to a model for this turn or step."""

    code = "projection_not_found"


class TurnsApi:
    """Everything under /v1/turns."""

    def __init__(
        self,
        gateway: Gateway,
        turn_service: TurnService,
        compactor: Compactor,
        upstreams: Upstreams | None = None,
    ) -> None:
        self._upstreams = upstreams
        self._gateway = gateway
        self._turn_service = turn_service
        self._sent = SentRequests(gateway.read, compactor)

    async def get(self, request: Request) -> AnyReply:
        """Return a turn."""
        view = await self._find(request)
        return json_reply(turn_value(view, await self._gateway.read.runs(view.turn.id)))

    async def cancel(self, request: Request) -> AnyReply:
        """Cancel a turn; do nothing if it has ended."""
        await read_no_fields(request)
        view = await self._find(request)
        await self._turn_service.cancel(view.turn)
        return await self.get(request)

    async def projection(self, request: Request) -> AnyReply:
        """Return the request that the model was sent for a turn, rebuilt from the log."""
        view, query = await self._find(request), request.query()
        turn = view.turn
        session = await self._gateway.read.session(request.tenant, session_id=turn.session_id)
        attempts = await self._sent.attempts(turn)
        step, number = _read_number(query, "step"), _read_number(query, "attempt")
        chosen = [attempt for attempt in attempts if step is None or attempt.run.step == step]
        if number is not None:
            chosen = attempts[number - 1 : number] if number else []
        if session is None or not chosen:
            raise ProjectionNotFound(f"no request was sent to a model for turn {turn.id}")
        rebuilt = await self._sent.rebuild(session.session, turn, chosen[-1])
        limit = min(_read_number(query, "limit") or MAX_INPUT_ITEMS, MAX_INPUT_ITEMS)
        # A reader looks for the newest items first.
        offset = _read_number(query, "offset")
        if offset is None:
            offset = max(len(rebuilt.items) - limit, 0)
        value = projection_value(
            turn,
            rebuilt,
            await self._sent.before(session.session, turn, chosen[-1]),
            attempts=attempts,
            states=await self._gateway.read.provider_state(turn.session_id),
            page=slice(offset, offset + limit),
            wire=self._wire(rebuilt) if read_flag(query, "wire") else None,
        )
        return json_reply(value)

    def _wire(self, rebuilt: RebuiltRequest) -> bytes | None:
        """Return the body that the upstream gets for a request; None if it is unknown."""
        # Adapters are not thread-safe, and a long history would block the event loop.
        if self._upstreams is None or len(rebuilt.call.items) > MAX_INPUT_ITEMS:
            return None
        if read_tools(rebuilt.request) is not None:
            return None  # the definitions of its tools are not stored
        try:
            body = self._upstreams.wire_body(rebuilt.call)
        except InvalidInput:
            return None  # the model has another upstream now
        return body if body is not None and len(body) <= MAX_WIRE_BYTES else None

    async def _find(self, request: Request) -> TurnView:
        name = request.params["id"]
        view = await find_turn(self._gateway, request.tenant, name)
        if view is None:
            raise TurnNotFound(f"no turn {name}")
        turn = view.turn
        session_view = await self._gateway.read.session(request.tenant, session_id=turn.session_id)
        if session_view is not None:
            name_session(request, session_view.session, turn.id)
        return view


def _read_number(query: dict[str, str], name: str) -> int | None:
    """Return a query parameter that is a number; None if it is missing."""
    raw = query.get(name)
    if raw is None:
        return None
    if not (raw.isascii() and raw.isdecimal() and len(raw) < 10):
        raise InvalidInput(f"{name} must be a number", param=name)
    return int(raw)


async def find_turn(gateway: Gateway, tenant: Tenant, turn_id: str) -> TurnView | None:
    """Return a turn by its id, or by the id of one of its responses."""
    if "\0" in turn_id:
        return None
    of_response = turn_of_response(turn_id)
    return await gateway.read.turn(
        tenant, of_response[0] if of_response is not None else TurnId(turn_id)
    )
