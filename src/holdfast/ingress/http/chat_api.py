"""Chat Completions over the same turns: requests translated in, answers translated out."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from holdfast.core.chat import call_of, chat_usage, finish_reason, message_of, split_messages
from holdfast.core.errors import InvalidInput
from holdfast.core.items import write_item
from holdfast.core.request import TurnRequest
from holdfast.core.response import ResponseFacts
from holdfast.engine.desk import Ticket
from holdfast.ingress.http.asgi import SSE, AnyReply, Request, json_reply
from holdfast.ingress.http.bodies import Fields, read_fields, take
from holdfast.ingress.http.metadata import take_metadata
from holdfast.ingress.http.session_headers import answer_headers, read_session_headers
from holdfast.ingress.http.sse import DONE, KEEP_ALIVE
from holdfast.ingress.http.turns import TurnDesk, session_of

_encode = msgspec.json.Encoder().encode
COMPLETION_PREFIX = "chatcmpl-"


class ChatApi:
    """POST /v1/chat/completions."""

    def __init__(self, turns: TurnDesk) -> None:
        self._turns = turns

    async def create(self, request: Request) -> AnyReply:
        """Take a turn in, and answer with its completion, whole or in chunks."""
        headers = read_session_headers(request)
        fields = await read_fields(request)
        messages = take(fields, "messages", list[Any])
        if not messages:
            raise InvalidInput("messages: at least one message is needed")
        instructions, items = split_messages(messages)
        asked = _asked(fields, instructions)
        new = [write_item(item) for item in items]
        ticket = await self._turns.take(request, asked, headers, session_of(headers), new)
        out = answer_headers(ticket.session, ticket.turn.id)
        if asked.is_stream:
            return self._turns.stream(
                ticket, _chunks(ticket, asked, self._turns.streams.keep_alive_seconds), [SSE, *out]
            )
        answered = await self._turns.answer(request, ticket)
        reply = json_reply(completion(answered.response), headers=out)
        return self._turns.noting(ticket, reply)


def _asked(fields: Fields, instructions: str | None) -> TurnRequest:
    model = take(fields, "model", str)
    if not model:
        raise InvalidInput("you must provide a model parameter")
    metadata = take_metadata(fields)
    if metadata is not None:
        fields["metadata"] = msgspec.Raw(metadata)
    is_stored = take(fields, "store", bool, False)
    is_stream = take(fields, "stream", bool, False)
    kept: dict[str, msgspec.Raw] = {}
    if instructions is not None:
        kept["instructions"] = msgspec.Raw(_encode(instructions))
    return TurnRequest(
        api="chat",
        model=model,
        fields=kept,
        chat_fields=dict(fields),
        is_stored=is_stored,
        is_stream=is_stream,
    )


def completion_id(response_id: str) -> str:
    """Return the name that Chat has for a response."""
    return COMPLETION_PREFIX + response_id.removeprefix("resp_")


def completion(facts: ResponseFacts) -> dict[str, Any]:
    """Return a response as a chat completion."""
    message = message_of(facts.output)
    answer = facts.answer
    usage = msgspec.json.decode(answer.usage) if answer else None
    reason = answer.incomplete_reason if answer else None
    return {
        "id": completion_id(facts.id),
        "object": "chat.completion",
        "created": int(facts.created_at),
        "model": facts.request.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": finish_reason(message, reason),
            }
        ],
        "usage": chat_usage(usage),
        "service_tier": "default",
        "system_fingerprint": None,
    }


async def _chunks(
    ticket: Ticket, asked: TurnRequest, keep_alive_seconds: float
) -> AsyncIterator[bytes]:
    """Yield a response's events as chat chunks."""
    head = {
        "id": completion_id(ticket.response_id),
        "object": "chat.completion.chunk",
        "created": int(ticket.turn.accepted_at),
        "model": asked.model,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return b"data: %s\n\n" % _encode({**head, "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    async for event in ticket.reader().read(keep_alive_seconds):
        if event is None:
            yield KEEP_ALIVE
        elif event.type == "response.output_text.delta":
            yield chunk({"content": msgspec.json.decode(event.body)["delta"]})
        elif event.type == "response.output_item.done":
            item = msgspec.json.decode(event.body)["item"]
            if item.get("type") == "function_call":
                yield chunk({"tool_calls": [{"index": calls, **call_of(item)}]})
                calls += 1
        elif event.type in ("response.completed", "response.incomplete", "response.failed"):
            value = msgspec.json.decode(event.body)["response"]
            for last in _last_chunks(value, asked, head, calls):
                yield last
    yield DONE


def _last_chunks(
    value: dict[str, Any], asked: TurnRequest, head: dict[str, Any], calls: int
) -> list[bytes]:
    if value["status"] in ("failed", "cancelled"):
        error = value.get("error") or {"message": value["status"], "code": value["status"]}
        return [
            b"data: %s\n\n" % _encode({"error": {"type": "server_error", "param": None, **error}})
        ]
    reason = (value.get("incomplete_details") or {}).get("reason")
    finish = finish_reason({"tool_calls": calls or None}, reason)
    choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish}
    chunks = [b"data: %s\n\n" % _encode({**head, "choices": [choice]})]
    if _wants_usage(asked):
        usage = chat_usage(value.get("usage"))
        chunks.append(b"data: %s\n\n" % _encode({**head, "choices": [], "usage": usage}))
    return chunks


def _wants_usage(asked: TurnRequest) -> bool:
    raw = asked.chat_fields.get("stream_options")
    options = msgspec.json.decode(raw) if raw is not None else None
    return isinstance(options, dict) and bool(options.get("include_usage"))
