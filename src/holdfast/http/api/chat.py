"""Chat Completions: translate requests into turns and answers into completions."""

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.model.request import TurnRequest
from holdfast.http.api.relay import RelayService
from holdfast.http.formats.chat import ChatChunks, completion, tool_trace
from holdfast.http.request.body import Fields, check_content_type, pop_field, pop_metadata
from holdfast.http.request.body_decoder import BodyDecoder
from holdfast.http.request.decoding import read_plain_chat
from holdfast.http.request.session_headers import check_expectable, read_session_headers
from holdfast.http.request.submit_turn import SessionTarget, TurnSubmitter
from holdfast.http.server.types import JSON, AnyReply, Reply, Request

_encode = msgspec.json.Encoder().encode
"""Encodes a value as JSON."""


class ChatApi:
    """POST /v1/chat/completions."""

    def __init__(self, turns: TurnSubmitter, relay: RelayService, decoder: BodyDecoder) -> None:
        self._turns = turns
        self._decoder = decoder
        self._relay = relay

    async def create(self, request: Request) -> AnyReply:
        """Run a turn and return its completion, whole or streamed."""
        headers = read_session_headers(request)
        check_content_type(request)
        plain = read_plain_chat(await request.body())
        if plain is not None:
            turn_request, new_items = plain
        else:
            fields, instructions, new_items = await self._decoder.chat(request)
            turn_request = parse_turn_request(fields, instructions)
            if "tools" in fields:
                self._relay.check_servers(turn_request)
        is_keyless = headers.key is None and headers.session_id is None
        if is_keyless and not turn_request.is_stored:
            check_expectable(headers)
            return await self._relay.chat(request, turn_request, new_items)
        target = SessionTarget(key=headers.key, session_id=headers.session_id)
        ticket = await self._turns.submit(request, turn_request, headers, target, new_items)
        # The log has the items: do not hold a large input in memory while the model answers.
        new_items.clear()
        if turn_request.is_stream:
            chunks = ChatChunks(turn_request, with_trace=headers.with_trace)
            return self._turns.stream(request, ticket, chunks)
        answer = await ticket.answer(request if self._turns.cancels_on_disconnect else None)
        value = completion(answer.response)
        if headers.with_trace:
            value["tool_trace"] = tool_trace(map(msgspec.json.decode, answer.response.output))
        reply = Reply(_encode(value), headers=[JSON, *request.session_headers])
        reply.delivers = ticket.turn.id, ticket.step
        return reply


def parse_turn_request(fields: Fields, instructions: str | None) -> TurnRequest:
    """Return the request of a Chat body; remove the fields that the gateway handles."""
    model = pop_field(fields, "model", str)
    if not model:
        raise InvalidInput("you must provide a model parameter")
    if "metadata" in fields:
        metadata = pop_metadata(fields)
        if metadata is not None:
            fields["metadata"] = msgspec.Raw(metadata)
    is_stored = pop_field(fields, "store", bool, False) if "store" in fields else False
    is_stream = pop_field(fields, "stream", bool, False) if "stream" in fields else False
    response_fields: dict[str, msgspec.Raw] = {}
    if instructions is not None:
        response_fields["instructions"] = msgspec.Raw(_encode(instructions))
    return TurnRequest(
        api="chat",
        model=model,
        fields=response_fields,
        chat_fields=fields,
        is_stored=is_stored,
        is_stream=is_stream,
    )
