"""Compaction over HTTP: of a session, of a request that is kept nowhere, listed and undone."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.compaction.records import compaction_item
from holdfast.core.compaction.views import CompactionView, list_compactions
from holdfast.core.errors import CompactionNotFound, InvalidInput, SessionNotFound
from holdfast.core.ids import SessionId
from holdfast.core.model.items import StoredItem, item_value
from holdfast.core.model.session import Session, Usage
from holdfast.core.openai.response import usage_value
from holdfast.core.transaction.commands import UndoCompaction
from holdfast.engine.context.compaction_turns import CompactionRequest, CompactionTurns
from holdfast.engine.context.compactor import Compactor, as_stored_items
from holdfast.http.api.session_items import Transcripts
from holdfast.http.formats.sessions import session_value
from holdfast.http.request.body import Fields, read_fields, read_optional_fields, take
from holdfast.http.request.pagination import UnknownCursor, page, read_page
from holdfast.http.request.responses_request import read_response_request
from holdfast.http.request.session_headers import read_session_headers
from holdfast.http.request.session_target import Places
from holdfast.http.request.submit_turn import Target, TurnDesk, body_hash
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.ports.clock import Ids
from holdfast.ports.store import ItemQuery


class CompactionsApi:
    """POST /v1/responses/compact, and what is under /v1/sessions/{id}/compactions."""

    def __init__(self, turns: TurnDesk, compactor: Compactor) -> None:
        self._turns = turns
        self._gateway = turns.gateway
        self._compactor = compactor
        self._places = Places(turns.gateway, turns.desk)
        self._transcripts = Transcripts(turns.gateway)
        self._in_turn = CompactionTurns(turns.gateway, compactor)

    # ── of a session ────────────────────────────────────────────────────────────────────────

    async def compact_session(self, request: Request) -> AnyReply:
        """Compact a session now, behind whatever runs; answers the session."""
        session = await self._session(request)
        fields = await read_optional_fields(request)
        headers = read_session_headers(request)
        wanted = CompactionRequest(
            tenant=request.tenant,
            session_id=session.id,
            model=take(fields, "model", str),
            prompt=take(fields, "instructions", str),
            on_busy=headers.on_busy or self._gateway.settings.on_busy,
            idempotency_key=headers.idempotency_key,
            body_hash=await body_hash(request),
        )
        done = await self._in_turn.compact(wanted)
        view = await self._transcripts.session(request.tenant, done.id)
        if view is None:
            raise SessionNotFound(f"no session {done.id}")
        return json_reply(session_value(view))

    async def listed(self, request: Request) -> AnyReply:
        """Return a page of a session's own compactions."""
        session = await self._session(request)
        asked = read_page(request)
        views = list_compactions(session, await self._gateway.read.records(session))
        if asked.order == "desc":
            views.reverse()
        names = [view.id for view in views]
        if asked.after is not None:
            if asked.after not in names:
                raise UnknownCursor(f"after: there is no compaction {asked.after!r} in this list")
            views = views[names.index(asked.after) + 1 :]
        shown = views[: asked.limit + 1]
        values = [compaction_value(session, view) for view in shown]
        return json_reply(page(values, [view.id for view in shown], asked.limit))

    async def get(self, request: Request) -> AnyReply:
        """Return one compaction, with its summary."""
        session = await self._session(request)
        name = request.params["compaction_id"]
        for view in list_compactions(session, await self._gateway.read.records(session)):
            if view.id == name:
                return json_reply(compaction_value(session, view))
        raise CompactionNotFound(f"no compaction {name}")

    async def undo(self, request: Request) -> AnyReply:
        """Have the log shown as if a compaction had not been."""
        session = await self._session(request)
        await read_optional_fields(request)
        name = request.params["compaction_id"]
        await self._gateway.submit(
            UndoCompaction(tenant=request.tenant, session_id=session.id, compaction_id=name)
        )
        return await self.get(request)

    async def _session(self, request: Request) -> Session:
        name = request.params["id"]
        view = await self._transcripts.session(request.tenant, SessionId(name))
        if view is None:
            raise SessionNotFound(f"no session {name}")
        return view.session

    # ── of a request ────────────────────────────────────────────────────────────────────────

    async def compact_response(self, request: Request) -> AnyReply:
        """Return what may be sent instead of a history: the user's messages and one item."""
        fields = await read_fields(request)
        prompt = _prompt(fields)
        wanted = read_response_request(fields)
        headers = read_session_headers(request)
        target = await self._places.find(request.tenant, headers, wanted)
        said, shown = await self._history(request, target)
        brought = as_stored_items(wanted.items)
        if not (shown or brought):
            raise InvalidInput("there is nothing to compact: send input", param="input")
        everything = [*shown, *brought]
        asked = [item for item in (*said, *brought) if _is_user(item)]
        # What is answered is less than what there was, or it is what there was.
        most = sum(len(item.body) for item in everything) - sum(len(item.body) for item in asked)
        text, usage = await self._compactor.summarize_items(
            everything, model=wanted.asked.model, prompt=prompt, max_bytes=most
        )
        ids = self._gateway.ids
        output: list[Any]
        if text is None:
            output = [_as_output(item, ids) for item in everything]
        else:
            output = [_message(item, ids.new("msg")) for item in asked]
            output.append(msgspec.Raw(compaction_item(ids.new("cmp"), text)))
        value = {
            "id": ids.new("resp"),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": output,
            "usage": msgspec.Raw(usage_value(usage or Usage())),
        }
        return json_reply(value)

    async def _history(
        self, request: Request, target: Target
    ) -> tuple[Sequence[StoredItem], Sequence[StoredItem]]:
        """Return the log that a request continues: all of it, and as a model is shown it."""
        session = await self._turns.known_session(request, target)
        if session is None:
            return [], []
        read = self._gateway.read
        return await read.items(session, ItemQuery()), await read.context(session)


def compaction_value(session: Session, view: CompactionView) -> dict[str, Any]:
    """Return a compaction as the API shows it."""
    made, short = view.compaction, view.elision
    told = made or short
    assert told is not None
    return {
        "id": view.id,
        "object": "session.compaction",
        "session_id": session.id,
        "status": view.status,
        "mode": made.mode if made is not None else "elide",
        "reason": told.reason,
        "created_at": int(view.created_at),
        "turn_id": view.turn_id,
        "first_sequence": 1 if made is not None else None,
        "last_sequence": view.to_seq,
        "kept_sequences": list(made.keeps) if made is not None else [],
        "shortened": [
            {"sequence": seq, "kept_bytes": kept} for seq, kept in (short.cuts if short else ())
        ],
        "summary": made.text if made is not None else None,
        "model": made.model if made is not None else None,
        "tokens_before": told.tokens_before,
        "tokens_after": told.tokens_after,
        "usage": msgspec.Raw(usage_value(made.usage)) if made and made.usage else None,
    }


def _prompt(fields: Fields) -> str | None:
    raw = fields.get("instructions")
    value = msgspec.json.decode(raw) if raw is not None else None
    return value if isinstance(value, str) and value.strip() else None


def _is_user(item: StoredItem) -> bool:
    return item.kind == "message" and item_value(item.body).get("role") == "user"


def _as_output(item: StoredItem, ids: Ids) -> Any:
    if item.kind == "message":
        return _message(item, ids.new("msg"))
    return msgspec.Raw(item.body)


def _message(item: StoredItem, name: str) -> dict[str, Any]:
    value = item_value(item.body)
    content = value.get("content")
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    return {**value, "type": "message", "id": value.get("id") or name, "status": "completed",
            "content": content}  # fmt: skip
