"""Where a request of the Responses API goes on: behind a response, in a conversation, by key."""

from holdfast.core.errors import InvalidInput, ParentNotFound, SessionDeleted, TurnNotFound
from holdfast.core.ids import Tenant
from holdfast.core.model.request import read_request
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.streaming.response_records import parent_of
from holdfast.engine.turns.turn_service import TurnService
from holdfast.http.request.responses_request import ResponseRequest
from holdfast.http.request.session_headers import SessionHeaders
from holdfast.http.request.submit_turn import Target, conversation_session, session_of
from holdfast.ports.store import ResponseView


class Places:
    """Finds the session that a request speaks to."""

    def __init__(self, gateway: Gateway, desk: TurnService) -> None:
        self._gateway = gateway
        self._desk = desk

    async def find(
        self, tenant: Tenant, headers: SessionHeaders, wanted: ResponseRequest
    ) -> Target:
        """Return the one place that headers and body name; two different ones are refused."""
        if wanted.conversation is not None:
            param = "conversation"
            name = wanted.conversation
            target = Target(session_id=conversation_session(name), conversation=name)
        elif wanted.asked.previous_response_id is not None:
            param = "previous_response_id"
            target = await self._behind(tenant, wanted, wanted.asked.previous_response_id)
        else:
            return session_of(headers)
        await self._check_same(tenant, headers, target, param)
        return target

    async def _check_same(
        self, tenant: Tenant, headers: SessionHeaders, target: Target, param: str
    ) -> None:
        if not headers.is_bound:
            return
        named = headers.session_id
        if headers.key is not None:
            view = await self._gateway.read.session(tenant, key=headers.key)
            named = view.session.id if view is not None else None
        if named != target.session_id:
            raise InvalidInput(f"{param} and the session header name two sessions", param=param)

    async def _behind(self, tenant: Tenant, wanted: ResponseRequest, name: str) -> Target:
        """Return the place behind an earlier response; one still being made is waited for.

        Who asks for something to be done in the background waits for it in the lane, not here.
        """
        find = self._desk.records.find
        view = await find(tenant, name)
        if view is not None and view.turn.is_open and view.turn.step == view.step:
            if wanted.asked.is_background and await self._is_last(view):
                return Target(session_id=view.session.id, after_turn=view.turn.number)
            try:
                await self._gateway.wait_until_ended(tenant, view.turn.id, step=view.step)
            except (SessionDeleted, TurnNotFound) as exc:
                raise ParentNotFound(name) from exc
            view = await find(tenant, name)
        parent = parent_of(view) if view is not None else None
        if view is None or parent is None:
            raise ParentNotFound(name)
        return Target(session_id=view.session.id, parent=parent)

    async def _is_last(self, view: ResponseView) -> bool:
        """Whether nothing else waits between a response and the end of its lane."""
        is_stored = read_request(view.turn.request).is_stored
        return is_stored and view.session.turn_count == view.turn.number
