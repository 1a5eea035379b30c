"""Compaction endpoints: compact a session or a request, list and undo compactions."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.compaction.records import CompactionView, compaction_item, list_compactions
from holdfast.core.errors import CompactionNotFound, InvalidInput, SessionNotFound
from holdfast.core.model.items import StoredItem, item_value
from holdfast.core.model.session import Session, Usage
from holdfast.core.openai.response import usage_value
from holdfast.core.transaction.commands import UndoCompaction
from holdfast.engine.model_call.compaction_turns import CompactionRequest, CompactionTurns
from holdfast.engine.model_call.compactor import Compactor, as_stored_items, quote_answers
from holdfast.http.api.session_items import SessionItems
from holdfast.http.formats.sessions import session_value
from holdfast.http.request.body import (
    Fields,
    pop_field,
    read_no_fields,
    read_optional_fields,
    reject_unknown,
)
from holdfast.http.request.body_decoder import BodyDecoder
from holdfast.http.request.pagination import UnknownCursor, page, read_page
from holdfast.http.request.responses_request import parse_response_request
from holdfast.http.request.session_headers import check_session, read_session_headers
from holdfast.http.request.session_target import TargetResolver
from holdfast.http.request.submit_turn import SessionTarget, TurnSubmitter, body_hash
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.ports.store import ItemQuery


class CompactionsApi:
    """POST /v1/responses/compact and everything under /v1/sessions/{id}/compactions."""

    def __init__(self, turns: TurnSubmitter, compactor: Compactor, decoder: BodyDecoder) -> None:
        self._turns = turns
        self._decoder = decoder
        self._gateway = turns.gateway
        self._compactor = compactor
        self._targets = TargetResolver(turns.gateway, turns.turn_service)
        self._items = SessionItems(turns.gateway)
        self._in_turn = CompactionTurns(turns.gateway, compactor)

    # ── sessions ────────────────────────────────────────────────────────────────────────────

    async def compact_session(self, request: Request) -> AnyReply:
        """Compact a session after its running turn, and return the session."""
        fields = await read_optional_fields(request)
        model, prompt = pop_field(fields, "model", str), pop_field(fields, "instructions", str)
        reject_unknown(fields)
        session, headers = await self._session(request), read_session_headers(request)
        check_session(headers, session)
        options = CompactionRequest(
            tenant=request.tenant,
            session_id=session.id,
            model=model,
            prompt=prompt,
            on_busy=headers.on_busy or self._gateway.settings.on_busy,
            idempotency_key=headers.idempotency_key,
            body_hash=await body_hash(request),
        )
        compacted = await self._in_turn.compact(options)
        view = await self._items.session(request.tenant, compacted.id)
        if view is None:
            raise SessionNotFound(f"no session {compacted.id}")
        return json_reply(session_value(view))

    async def list_page(self, request: Request) -> AnyReply:
        """Return a page of a session's own compactions."""
        session = await self._session(request)
        page_request = read_page(request)
        views = list_compactions(session, await self._gateway.read.records(session))
        if page_request.order == "desc":
            views.reverse()
        ids = [view.id for view in views]
        if page_request.after is not None:
            if page_request.after not in ids:
                raise UnknownCursor(
                    f"after: there is no compaction {page_request.after!r} in this list"
                )
            views = views[ids.index(page_request.after) + 1 :]
        shown = views[: page_request.limit + 1]
        values = [compaction_value(session, view) for view in shown]
        return json_reply(page(values, [view.id for view in shown], page_request.limit))

    async def get(self, request: Request) -> AnyReply:
        """Return one compaction, with its summary."""
        session = await self._session(request)
        name = request.params["compaction_id"]
        for view in list_compactions(session, await self._gateway.read.records(session)):
            if view.id == name:
                return json_reply(compaction_value(session, view))
        raise CompactionNotFound(f"no compaction {name}")

    async def undo(self, request: Request) -> AnyReply:
        """Undo a compaction: show its log range in full again."""
        await read_no_fields(request)
        session = await self._session(request)
        check_session(read_session_headers(request), session)
        name = request.params["compaction_id"]
        await self._gateway.submit(
            UndoCompaction(tenant=request.tenant, session_id=session.id, compaction_id=name)
        )
        return await self.get(request)

    async def _session(self, request: Request) -> Session:
        view = await self._items.named(request)
        if view is None:
            raise SessionNotFound(f"no session {request.params['id']}")
        return view.session

    # ── requests ────────────────────────────────────────────────────────────────────────────

    async def compact_response(self, request: Request) -> AnyReply:
        """Return a replacement for a history: the user's messages and one compaction item."""
        fields, items_sent = await self._decoder.responses(request)
        prompt = _prompt(fields)
        parsed = parse_response_request(fields, items_sent)
        headers = read_session_headers(request)
        target = await self._targets.resolve(request.tenant, headers, parsed)
        log, projected = await self._history(request, target)
        sent = as_stored_items(parsed.items)
        if not (projected or sent):
            raise InvalidInput("there is nothing to compact; send input", param="input")
        items = [*projected, *sent]
        user_messages = [item for item in (*log, *sent) if _is_user(item)]
        # A summary must make the history smaller; a history too short for one is quoted.
        max_bytes = _size(items) - _size(user_messages)
        text, usage = await self._compactor.summarize_items(
            items, model=parsed.turn_request.model, prompt=prompt, max_bytes=max_bytes
        )
        ids = self._gateway.ids
        output: list[Any] = [_message(item, ids.new("msg")) for item in user_messages]
        output.append(msgspec.Raw(compaction_item(ids.new("cmp"), text or quote_answers(items))))
        value = {
            "id": ids.new("resp"),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": output,
            "usage": msgspec.Raw(usage_value(usage or Usage())),
        }
        return json_reply(value)

    async def _history(
        self, request: Request, target: SessionTarget
    ) -> tuple[Sequence[StoredItem], Sequence[StoredItem]]:
        """Return the log that a request continues, and its projection."""
        session = await self._turns.known_session(request, target)
        if session is None:
            return [], []
        read = self._gateway.read
        return await read.items(session, ItemQuery()), await read.context(session)


def compaction_value(session: Session, view: CompactionView) -> dict[str, Any]:
    """Return a compaction as JSON."""
    summary, elision = view.compaction, view.elision
    record = summary or elision
    assert record is not None
    return {
        "id": view.id,
        "object": "session.compaction",
        "session_id": session.id,
        "status": view.status,
        "mode": summary.mode if summary is not None else "elide",
        "reason": record.reason,
        "created_at": int(view.created_at),
        "turn_id": view.turn_id,
        "first_sequence": 1 if summary is not None else None,
        "last_sequence": view.to_seq,
        "kept_sequences": list(summary.keeps) if summary is not None else [],
        "shortened": [
            {"sequence": seq, "kept_bytes": kept} for seq, kept in (elision.cuts if elision else ())
        ],
        "summary": summary.text if summary is not None else None,
        "model": summary.model if summary is not None else None,
        "tokens_before": record.tokens_before,
        "tokens_after": record.tokens_after,
        "assumed_window": record.assumed_window,
        "usage": msgspec.Raw(usage_value(summary.usage)) if summary and summary.usage else None,
    }


def _prompt(fields: Fields) -> str | None:
    raw = fields.get("instructions")
    value = msgspec.json.decode(raw) if raw is not None else None
    return value if isinstance(value, str) and value.strip() else None


def _size(items: Sequence[StoredItem]) -> int:
    return sum(len(item.body) for item in items)


def _is_user(item: StoredItem) -> bool:
    return item.kind == "message" and item_value(item.body).get("role") == "user"


def _message(item: StoredItem, item_id: str) -> dict[str, Any]:
    """Return a user's message with the fields that it may leave out when it is sent."""
    value = item_value(item.body)
    content = value.get("content")
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    parts = [_part(part) for part in content or []]
    return {**value, "type": "message", "id": value.get("id") or item_id, "status": "completed",
            "content": parts}  # fmt: skip


def _part(part: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in part.items() if value is not None}
    if fields.get("type") == "input_image":
        return {"detail": "auto", "image_url": None, **fields}
    return fields
