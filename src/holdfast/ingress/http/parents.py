"""Where a request of the Responses API goes on: behind a response, in a conversation, by key."""

from holdfast.core.commands import Parent
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import Tenant
from holdfast.core.request import read_request
from holdfast.engine.desk import Desk
from holdfast.engine.gateway import Gateway
from holdfast.ingress.http.response_requests import ResponseRequest
from holdfast.ingress.http.session_headers import SessionHeaders
from holdfast.ingress.http.turns import Target, conversation_session, session_of
from holdfast.ports.store import ResponseView


class ParentNotFound(InvalidInput):
    """The response to continue is unknown, foreign, deleted or failed."""

    code = "previous_response_not_found"

    def __init__(self, name: str) -> None:
        message = f"Previous response with id '{name}' not found."
        super().__init__(message, param="previous_response_id")


class Places:
    """Finds the session that a request speaks to."""

    def __init__(self, gateway: Gateway, desk: Desk) -> None:
        self._gateway = gateway
        self._desk = desk

    async def find(
        self, tenant: Tenant, headers: SessionHeaders, wanted: ResponseRequest
    ) -> Target:
        """Return the one place that headers and body name; two different ones are refused."""
        if wanted.conversation is not None:
            param = "conversation"
            target = Target(session_id=conversation_session(wanted.conversation))
        elif wanted.asked.previous_response_id is not None:
            param = "previous_response_id"
            target = await self._behind(tenant, wanted.asked.previous_response_id)
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

    async def _behind(self, tenant: Tenant, name: str) -> Target:
        """Return the place behind an earlier response, waiting for one still being made."""
        find = self._desk.recorded.find
        view = await find(tenant, name)
        if view is not None and view.turn.is_open and view.turn.step == view.step:
            await self._gateway.wait_until_ended(tenant, view.turn.id, step=view.step)
            view = await find(tenant, name)
        parent = _parent(view) if view is not None else None
        if view is None or parent is None:
            raise ParentNotFound(name)
        return Target(session_id=view.session.id, parent=parent)


def _parent(view: ResponseView) -> Parent | None:
    """Return where a response ended, if a turn may go on there.

    It must have been stored, and neither failed nor been cancelled. What broke off may be
    continued, as far as it went.
    """
    run = view.run
    if run is None or run.last_seq is None or not read_request(view.turn.request).is_stored:
        return None
    is_torn = run.outcome == "interrupted" and view.turn.outcome == "interrupted"
    if run.outcome != "completed" and not is_torn:
        return None
    return Parent(run.last_seq, run.record_no or 0)
