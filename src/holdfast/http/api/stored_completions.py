"""Stored chat completions: list, read, annotate and delete them; their sessions stay."""

from typing import Any

import msgspec

from holdfast.core.decisions.stored_completions import CompletionNotFound
from holdfast.core.errors import InvalidInput
from holdfast.core.model.request import read_request, response_id, turn_of_response
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.openai.chat import messages_of
from holdfast.core.projection.project import project
from holdfast.core.transaction.changes import CompletionRow
from holdfast.core.transaction.commands import AnnotateCompletion, DropResponse
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.turn_service import TurnService
from holdfast.http.formats.chat import COMPLETION_PREFIX, completion, completion_id
from holdfast.http.request.body import pop_metadata, read_fields
from holdfast.http.request.pagination import UnknownCursor, page, read_entries, read_page
from holdfast.http.request.session_headers import name_session
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.ports.store import CompletionQuery, ItemQuery

_Listed = tuple[int, dict[str, Any] | None]
_encode = msgspec.json.Encoder().encode


class CompletionsApi:
    """Stored completions under /v1/chat/completions."""

    def __init__(self, gateway: Gateway, turn_service: TurnService) -> None:
        self._gateway = gateway
        self._turn_service = turn_service

    async def list_page(self, request: Request) -> AnyReply:
        """Return a page of stored completions, oldest first by default."""
        page_request = read_page(request, order="asc")
        after = None
        if page_request.after is not None:
            row = await self._row(request, page_request.after)
            if row is None:
                raise UnknownCursor(f"after: there is no stored completion {page_request.after!r}")
            after = (row.turn_id, row.step)
        rows = await self._gateway.read.completions(
            request.tenant,
            CompletionQuery(
                model=request.query().get("model"),
                metadata=_metadata_filter(request.query()),
                after=after,
                limit=page_request.limit + 1,
                order=page_request.order,
            ),
        )
        shown = rows[: page_request.limit]

        async def read(count: int, last: _Listed | None) -> list[_Listed]:
            first = 0 if last is None else last[0] + 1
            return [
                (first + index, await self._value(request, row))
                for index, row in enumerate(shown[first : first + count])
            ]

        found = await read_entries(len(shown), read, _listed_size)
        values = [value for _, value in found if value is not None]
        listed = page(values, [value["id"] for value in values], len(shown))
        has_more = listed["has_more"] or len(rows) > page_request.limit
        return json_reply({**listed, "has_more": has_more})

    async def get(self, request: Request) -> AnyReply:
        """Return one stored completion."""
        return await self._reply(request, await self._find(request))

    async def annotate(self, request: Request) -> AnyReply:
        """Replace a completion's metadata."""
        fields = await read_fields(request)
        if "metadata" not in fields:
            raise InvalidInput("metadata is needed")
        metadata = pop_metadata(fields) or b"{}"
        row = await self._find(request)
        changed = await self._gateway.submit(
            AnnotateCompletion(
                tenant=request.tenant, turn_id=row.turn_id, step=row.step, metadata=metadata
            )
        )
        return await self._reply(request, changed)

    async def delete(self, request: Request) -> AnyReply:
        """Delete a stored completion."""
        row = await self._find(request)
        await self._gateway.submit(
            DropResponse(tenant=request.tenant, turn_id=row.turn_id, step=row.step)
        )
        name = completion_name(row)
        return json_reply({"id": name, "object": "chat.completion.deleted", "deleted": True})

    async def messages(self, request: Request) -> AnyReply:
        """Return a page of the messages that a completion answered."""
        row = await self._find(request)
        page_request = read_page(request, order="asc")
        name = completion_name(row)
        messages = [
            {"id": f"{name}-{index}", "content_parts": None, **message}
            for index, message in enumerate(await self._messages(request, row))
        ]
        if page_request.order == "desc":
            messages.reverse()
        ids = [str(message["id"]) for message in messages]
        if page_request.after is not None:
            if page_request.after not in ids:
                raise UnknownCursor(f"after: there is no message {page_request.after!r}")
            start = ids.index(page_request.after) + 1
            messages, ids = messages[start:], ids[start:]
        return json_reply(page(messages[: page_request.limit + 1], ids, page_request.limit))

    async def _row(self, request: Request, name: str) -> CompletionRow | None:
        if not name.startswith(COMPLETION_PREFIX):
            return None
        found = turn_of_response("resp_" + name.removeprefix(COMPLETION_PREFIX))
        if found is None:
            return None
        return await self._gateway.read.completion(request.tenant, *found)

    async def _find(self, request: Request) -> CompletionRow:
        name = request.params["id"]
        row = await self._row(request, name)
        if row is None:
            raise CompletionNotFound(f"no stored completion {name}")
        view = await self._gateway.read.session(request.tenant, session_id=row.session_id)
        if view is not None:
            name_session(request, view.session, row.turn_id)
        return row

    async def _answer(
        self, request: Request, row: CompletionRow
    ) -> tuple[Turn, Run, Session] | None:
        """Return the turn, run and session of a completion; None if they were erased."""
        view = await self._gateway.read.turn(request.tenant, row.turn_id)
        runs = await self._gateway.read.runs(row.turn_id)
        completed = [run for run in runs if run.step == row.step and run.outcome == "completed"]
        session = await self._gateway.read.session(request.tenant, session_id=row.session_id)
        if view is None or session is None or not completed:
            return None
        return view.turn, completed[-1], session.session

    async def _reply(self, request: Request, row: CompletionRow) -> AnyReply:
        value = await self._value(request, row)
        if value is None:
            raise CompletionNotFound("no such stored completion")
        return json_reply(value)

    async def _value(self, request: Request, row: CompletionRow) -> dict[str, Any] | None:
        answer = await self._answer(request, row)
        facts = await self._turn_service.facts_of(*answer) if answer is not None else None
        if facts is None:
            return None
        return {**completion(facts), "metadata": msgspec.Raw(row.metadata)}

    async def _messages(self, request: Request, row: CompletionRow) -> list[dict[str, Any]]:
        """Return the projection that this completion answered, as chat messages."""
        answer = await self._answer(request, row)
        if answer is None:
            raise CompletionNotFound("no such stored completion")
        turn, run, session = answer
        snapshot = session.as_of(run.first_seq - 1, run.record_no or 0)
        items = await self._gateway.read.items(snapshot, ItemQuery())
        if not items and await self._row(request, completion_name(row)) is None:
            raise CompletionNotFound("no such stored completion")
        messages = messages_of([msgspec.json.decode(body) for body in project(items)])
        instructions = read_request(turn.request).fields.get("instructions")
        if instructions is None:
            return messages
        return [{"role": "system", "content": msgspec.json.decode(instructions)}, *messages]


def completion_name(row: CompletionRow) -> str:
    """Return the id of a stored completion."""
    return completion_id(response_id(row.turn_id, row.step))


def _metadata_filter(query: dict[str, str]) -> dict[str, str]:
    """Return the `metadata[key]=value` pairs of a query."""
    return {
        name[len("metadata[") : -1]: value
        for name, value in query.items()
        if name.startswith("metadata[") and name.endswith("]")
    }


def _listed_size(listed: _Listed) -> int | None:
    """Return the size of a listed completion; None if it was erased."""
    return None if listed[1] is None else len(_encode(listed[1]))
