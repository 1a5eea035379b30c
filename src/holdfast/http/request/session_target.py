"""Find the session that a Responses request continues: by parent, conversation or header."""

from holdfast.core.errors import InvalidInput, ParentNotFound, SessionDeleted, TurnNotFound
from holdfast.core.ids import Tenant
from holdfast.core.model.request import read_request
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.streaming.response_records import parent_of
from holdfast.engine.turns.turn_service import TurnService
from holdfast.http.request.responses_request import ResponseRequest
from holdfast.http.request.session_headers import SessionHeaders
from holdfast.http.request.submit_turn import SessionTarget, session_id_of, target_from_headers
from holdfast.ports.store import ResponseView


class TargetResolver:
    """Resolve the session that a request continues."""

    def __init__(self, gateway: Gateway, turn_service: TurnService) -> None:
        self._gateway = gateway
        self._turn_service = turn_service

    async def resolve(
        self, tenant: Tenant, headers: SessionHeaders, parsed: ResponseRequest
    ) -> SessionTarget:
        """Return the target that headers and body name; reject two different ones."""
        if parsed.conversation is not None:
            param = "conversation"
            name = parsed.conversation
            target = SessionTarget(session_id=session_id_of(name), conversation=name)
        elif parsed.turn_request.previous_response_id is not None:
            param = "previous_response_id"
            target = await self._after_response(
                tenant, parsed, parsed.turn_request.previous_response_id
            )
        else:
            return target_from_headers(headers)
        await self._check_same(tenant, headers, target, param)
        return target

    async def _check_same(
        self, tenant: Tenant, headers: SessionHeaders, target: SessionTarget, param: str
    ) -> None:
        if not headers.is_bound:
            return
        session_id = headers.session_id
        if headers.key is not None:
            live = await self._gateway.read.find_session(tenant, key=headers.key)
            session_id = live.id if live is not None else None
        if session_id != target.session_id:
            raise InvalidInput(
                f"{param} and the session header name different sessions", param=param
            )

    async def _after_response(
        self, tenant: Tenant, parsed: ResponseRequest, name: str
    ) -> SessionTarget:
        """Return the target after an earlier response; wait for one that is in progress.

        A background request waits for its parent in the lane instead.
        """
        find = self._turn_service.records.find
        view = await find(tenant, name)
        answering = view.joined or view if view is not None else None
        if view and answering and answering.turn.is_open and answering.turn.step == answering.step:
            if parsed.turn_request.is_background and await self._is_last(view):
                return SessionTarget(session_id=view.session.id, after_turn=view.turn.number)
            try:
                turn = answering.turn
                await self._gateway.wait_until_ended(tenant, turn.id, step=answering.step)
            except (SessionDeleted, TurnNotFound) as exc:
                raise ParentNotFound(name) from exc
            view = await find(tenant, name)
        parent = parent_of(view) if view is not None else None
        if view is None or parent is None:
            raise ParentNotFound(name)
        return SessionTarget(session_id=view.session.id, parent=parent)

    async def _is_last(self, view: ResponseView) -> bool:
        """Return whether the response's turn is the last one in its lane."""
        is_stored = read_request(view.turn.request).is_stored and view.joined is None
        return is_stored and view.session.turn_count == view.turn.number
