"""Any server that speaks Chat Completions, asked in Responses items and answering in them."""

from typing import Any

import msgspec

from holdfast.core.errors import ProviderFailure, UnsupportedByUpstream
from holdfast.core.model.config_items import configured
from holdfast.ports.provider import Answer, AnyEvent, EventSink, ModelCall, StateUse
from holdfast.providers.errors import names_item
from holdfast.providers.http.sse import SseEvent
from holdfast.providers.http.upstream import Upstream, list_models, read_json
from holdfast.providers.items.ids import IdAllocator, NewId, call_ids
from holdfast.providers.openai_chat.messages import ChatForm
from holdfast.providers.openai_chat.output import ChatOutput, DuplicateChunkFilter
from holdfast.providers.openai_chat.params import to_chat_params

PATH = "/chat/completions"
_encode = msgspec.json.Encoder().encode
ALTERNATION = "roles must alternate"
_OURS = frozenset({"store", "stream", "messages", "model", "metadata", "stream_options"})
_ONE_ANSWER: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
}
"""What Chat can ask and a log of items cannot hold, and the values with which it says nothing."""


class _Following:
    """Takes a server's chunks, and has somebody hear what they say."""

    def __init__(self, output: ChatOutput, sink: EventSink) -> None:
        self._output = output
        self._sink = sink
        self._doubling = DuplicateChunkFilter()
        self.drain = sink.drain

    def write(self, events: list[SseEvent]) -> bool:
        said: list[AnyEvent] = []
        try:
            for chunk in events:
                if not self._doubling.is_copy(chunk.data):
                    said += self._output.take_chunk(chunk.data)
        except ProviderFailure:
            # What came before a failure was said.
            if said:
                self._sink.write(said)
            raise
        return self._sink.write(said) if said else True


class ChatProvider:
    """A Chat server; it keeps nothing for us."""

    def __init__(self, upstream: Upstream, new_id: NewId) -> None:
        self._upstream = upstream
        self.name = upstream.name
        self._new_id = new_id
        self._strict: set[str] = set()
        """Models that have said they want speakers to take turns."""

    def check(self, call: ModelCall) -> None:
        """Raise for what cannot be carried."""
        self._body(call, is_strict=True)

    def state_use(self, model: str) -> StateUse | None:
        """Chat is told everything each time."""

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        output = self._output(call)
        try:
            data = await self._upstream.ask(PATH, (_encode(self._body(call)),), may_repeat=True)
        except ProviderFailure as failure:
            raise self._placed(failure, call) from None
        output.take(read_json(data))
        return output.end()[1]

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Tell the answer's events as its chunks come."""
        output = self._output(call)
        body = self._body(call)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            follower = _Following(output, sink)
            await self._upstream.follow(PATH, (_encode(body),), follower, may_repeat=True)
        except ProviderFailure as failure:
            # The model had finished; only what the server adds at the end is missing.
            if not (output.is_finished and failure.provider_code == "upstream_truncated"):
                raise self._placed(failure, call) from None
        events, answer = output.end()
        sink.write(events)
        return answer

    async def models(self) -> list[dict[str, Any]]:
        """Return the models it serves."""
        return await list_models(self._upstream)

    async def close(self) -> None:
        """The line is closed by whoever opened it."""

    def _output(self, call: ModelCall) -> ChatOutput:
        return ChatOutput(IdAllocator(self._new_id, lambda: call_ids(call.items)))

    def _body(self, call: ModelCall, *, is_strict: bool = False) -> dict[str, Any]:
        fields = configured(call.fields, call.items)
        words = to_chat_params(fields, call.model, self.name)
        for name, raw in call.chat_fields.items():
            value = msgspec.json.decode(raw)
            if name in _OURS or value is None:
                continue
            if name in _ONE_ANSWER and value not in _ONE_ANSWER[name]:
                raise UnsupportedByUpstream(name, self.name)
            words[name] = raw
        messages = self._form(call, is_strict=is_strict).messages(self._told(call), call.items)
        return {"model": call.model, "messages": messages, **words}

    def _told(self, call: ModelCall) -> str | None:
        instructions = call.fields.get("instructions")
        told = msgspec.json.decode(instructions) if instructions is not None else None
        if told is not None and not isinstance(told, str):
            raise UnsupportedByUpstream("instructions", self.name)
        return told

    def _form(self, call: ModelCall, *, is_strict: bool = False) -> ChatForm:
        return ChatForm(
            upstream=self.name,
            is_strict=is_strict,
            alternates=(
                call.is_plain
                or call.model in self._strict
                or self._upstream.settings.strict_alternation
            ),
        )

    def _placed(self, failure: ProviderFailure, call: ModelCall) -> ProviderFailure:
        """Return a failure with the items that it names, by their places in the call's own."""
        if ALTERNATION in failure.message.lower():
            self._strict.add(call.model)
        failure = self._upstream.redact_failure(failure)
        place = names_item(failure.param, failure.message)
        if place is not None:
            sources = self._form(call).sources(self._told(call), call.items)
            failure.places = tuple(place for one in sources[place : place + 1] for place in one)
        return failure
