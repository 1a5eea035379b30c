"""Chat Completions over the same turns: requests translated in, answers translated out."""

from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.model.items import write_item
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.chat import split_messages
from holdfast.http.api.relay import Relaying
from holdfast.http.formats.chat import ChatChunks, completion
from holdfast.http.request.body import Fields, read_fields, take
from holdfast.http.request.metadata import take_metadata
from holdfast.http.request.session_headers import read_session_headers
from holdfast.http.request.submit_turn import TurnDesk, session_of
from holdfast.http.server.types import AnyReply, Request, json_reply

_encode = msgspec.json.Encoder().encode


class ChatApi:
    """POST /v1/chat/completions."""

    def __init__(self, turns: TurnDesk, relaying: Relaying) -> None:
        self._turns = turns
        self._relaying = relaying

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
        if not (asked.is_stored or headers.is_bound):
            return await self._relaying.chat(request, asked, new)
        ticket = await self._turns.take(request, asked, headers, session_of(headers), new)
        out = request.bound
        if asked.is_stream:
            return self._turns.stream(ticket, out, ChatChunks(asked))
        answered = await self._turns.answer(request, ticket)
        reply = json_reply(completion(answered.response), headers=out)
        reply.delivers = ticket.turn.id, ticket.step
        return reply


def _asked(fields: Fields, instructions: str | None) -> TurnRequest:
    model = take(fields, "model", str)
    if not model:
        raise InvalidInput("you must provide a model parameter")
    if "metadata" in fields:
        metadata = take_metadata(fields)
        if metadata is not None:
            fields["metadata"] = msgspec.Raw(metadata)
    is_stored = take(fields, "store", bool, False) if "store" in fields else False
    is_stream = take(fields, "stream", bool, False) if "stream" in fields else False
    kept: dict[str, msgspec.Raw] = {}
    if instructions is not None:
        kept["instructions"] = msgspec.Raw(_encode(instructions))
    return TurnRequest(
        api="chat",
        model=model,
        fields=kept,
        chat_fields=fields,
        is_stored=is_stored,
        is_stream=is_stream,
    )
