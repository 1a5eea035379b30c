"""The adapter for servers of the Chat Completions API: Responses items in, Responses items out."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.core.errors import ProviderFailure, UnsupportedByUpstream
from holdfast.core.model.config_items import Settings, updated_settings, with_settings
from holdfast.core.projection.growing_list import LargePrefix
from holdfast.ports.provider import Answer, AnyEvent, EventSink, ModelCall
from holdfast.providers.errors import name_missing_path, names_item
from holdfast.providers.http.sse import SseEvent
from holdfast.providers.http.upstream import Upstream, list_models, read_json
from holdfast.providers.items.ids import IdAllocator, NewId
from holdfast.providers.openai_chat.input import ChatForm, ChatInputWriter, TranslationCache
from holdfast.providers.openai_chat.messages import translate
from holdfast.providers.openai_chat.output import ChatOutput, DuplicateChunkFilter
from holdfast.providers.openai_chat.params import (
    UNSUPPORTED,
    ChatParams,
    dropped_tools,
    not_stored,
    to_chat_params,
)
from holdfast.providers.openai_chat.whole_completion import read_text_completion

PATH = "/chat/completions"
_encode = msgspec.json.Encoder().encode
_ALTERNATION = "roles must alternate"
_REASONING = re.compile(r"reasoning_content.{0,80}(unsupported|not (supported|permitted|allowed))"
                        r"|(unsupported|not permitted|unexpected).{0,80}reasoning_content",
                        re.IGNORECASE | re.DOTALL)  # fmt: skip
_STREAM: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_SET_BY_US = frozenset({"store", "stream", "messages", "model", "metadata", "stream_options"})
_NO_PARAMS = ChatParams({})


class _ChunkSink:
    """Translates a stream's chunks into events, and writes them to the engine's sink."""

    def __init__(self, output: ChatOutput, sink: EventSink) -> None:
        self._output = output
        self._sink = sink
        self._duplicates = DuplicateChunkFilter()
        self.drain = sink.drain
        self.end = output.read_done

    def write(self, events: Sequence[SseEvent]) -> bool:
        output, duplicates = self._output, self._duplicates
        if len(events) == 1 and not duplicates.is_active:
            ours = output.read_chunk(events[0].data)
            return self._sink.write(ours) if ours else True
        translated: list[AnyEvent] = []
        try:
            for chunk in events:
                if not (duplicates.is_active and duplicates.is_copy(chunk.data)):
                    translated += output.read_chunk(chunk.data)
        except ProviderFailure:
            # Pass on what came before the failure.
            if translated:
                self._sink.write(translated)
            raise
        return self._sink.write(translated) if translated else True


class ChatProvider:
    """A Chat server; it stores nothing between calls."""

    state_use = None
    detect = None

    def __init__(
        self, upstream: Upstream, new_id: NewId, translations: TranslationCache | None = None
    ) -> None:
        self._upstream = upstream
        self.name = upstream.name
        self._new_id = new_id
        self._input = ChatInputWriter(translations or TranslationCache())
        self._usual_form = ChatForm(
            upstream=self.name, alternates=upstream.settings.strict_alternation
        )
        self._alternating: set[str] = set()
        """Models that have refused consecutive messages of one speaker."""
        self._without_reasoning: set[str] = set()
        """Models that have refused reasoning in their input."""

    def check(self, call: ModelCall) -> None:
        """Raise for fields and new items that Chat cannot express."""
        settings: Settings = {}
        translations = self._input.translations
        for place, body in enumerate(call.items):
            translation = translations.peek(body) or translations.translate(body, place, self.name)
            if not translation.is_complete:
                # Translated again, to raise what was lost.
                item = msgspec.json.decode(body)
                translate(item, f"input[{place}]", self.name, is_strict=True)
            if translation.update is not None:
                settings = updated_settings(settings, translation.update)
        if call.fields or call.chat_fields or settings:
            _instructions(call, self.name)
            self._params(call, settings)

    def dropped_tools(self, fields: Mapping[str, msgspec.Raw]) -> Sequence[str]:
        """Return the types of hosted tools that a request would lose here."""
        return dropped_tools(fields["tools"], self.name) if "tools" in fields else ()

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        body, params = (
            self._request(call)
            if type(call.items) is not LargePrefix
            else await asyncio.to_thread(self._request, call)
        )
        try:
            data = await self._upstream.fetch(PATH, body, may_repeat=True)
        except ProviderFailure as failure:
            raise self._located(failure, call) from None
        answer = read_text_completion(data, self._new_id, call.answer_seq)
        if answer is not None:
            return answer
        output = self._output(call, params)
        output.read(read_json(data))
        return output.end()[1]

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Write the answer's events as its chunks arrive."""
        body, params = (
            self._request(call, _STREAM)
            if type(call.items) is not LargePrefix
            else await asyncio.to_thread(self._request, call, _STREAM)
        )
        output = self._output(call, params)
        try:
            await self._upstream.stream(PATH, body, _ChunkSink(output, sink), may_repeat=True)
        except ProviderFailure as failure:
            # A finished answer is complete even if the server's end mark is missing.
            if not (output.is_finished and failure.provider_code == "upstream_truncated"):
                raise self._located(failure, call) from None
        events, answer = output.end()
        sink.write(events)
        return answer

    async def models(self) -> list[dict[str, Any]]:
        """Return the models of the server."""
        return await list_models(self._upstream)

    async def close(self) -> None:
        """Do nothing: the router closes the connections."""

    def _output(self, call: ModelCall, params: ChatParams) -> ChatOutput:
        is_used = partial(self._has_call, call)
        return ChatOutput(IdAllocator(self._new_id, is_used, call.answer_seq), params.tool_names)

    def _has_call(self, call: ModelCall, call_id: str) -> bool:
        return self._input.has_call(call_id, call.items, self._form(call))

    def _request(
        self, call: ModelCall, extra: Mapping[str, Any] | None = None
    ) -> tuple[list[bytes], ChatParams]:
        """Return a request's body in pieces, and its parameters."""
        is_usual = not (call.is_plain or self._alternating or self._without_reasoning)
        written = self._input.write(
            call.items,
            self._usual_form if is_usual else self._form(call),
            instructions=_instructions(call, self.name) if call.fields else None,
        )
        if call.fields or call.chat_fields or written.settings:
            params = self._params(call, written.settings)
        else:
            params = _NO_PARAMS
        head = _encode({"model": call.model, **params.params, **(extra or {})})
        return [head[:-1] + b',"messages":[', *written.pieces, b"]}"], params

    def wire_body(self, call: ModelCall) -> bytes:
        """Return the body of a call."""
        body, _ = self._request(call, _STREAM if call.is_stream else None)
        return b"".join(body)

    def _params(self, call: ModelCall, settings: Settings) -> ChatParams:
        fields = with_settings(call.fields, settings) if settings else call.fields
        translated = to_chat_params(fields, call.model, self.name) if fields else ChatParams({})
        for name, raw in call.chat_fields.items():
            value = msgspec.json.decode(raw)
            if name in _SET_BY_US or value is None:
                continue
            if name in UNSUPPORTED and value not in UNSUPPORTED[name]:
                raise UnsupportedByUpstream(name, self.name, not_stored(name))
            translated.params[name] = raw
        return translated

    def _form(self, call: ModelCall) -> ChatForm:
        """Return the form of messages for a call, given what the server has refused so far."""
        is_strict = self._upstream.settings.strict_alternation or call.model in self._alternating
        return ChatForm(
            upstream=self.name,
            alternates=call.is_plain or is_strict,
            drops_reasoning=call.is_plain or call.model in self._without_reasoning,
        )

    def _located(self, failure: ProviderFailure, call: ModelCall) -> ProviderFailure:
        """Return a failure with the indexes of the call's items that it names."""
        form = self._form(call)
        if _ALTERNATION in failure.message.lower():
            self._alternating.add(call.model)
        if _REASONING.search(failure.message):
            self._without_reasoning.add(call.model)
        failure = self._upstream.redact_failure(failure)
        name_missing_path(failure, PATH, self._upstream.settings.api, "responses")
        self._upstream.report_not_found(failure)
        place = names_item(failure.param, failure.message)
        if place is not None:
            instructions = _instructions(call, self.name)
            sources = self._input.sources(call.items, form, instructions=instructions)
            failure.places = tuple(item for items in sources[place : place + 1] for item in items)
        return failure


def _instructions(call: ModelCall, upstream: str) -> str | None:
    raw = call.fields.get("instructions")
    instructions = msgspec.json.decode(raw) if raw is not None else None
    if instructions is not None and not isinstance(instructions, str):
        raise UnsupportedByUpstream("instructions", upstream)
    return instructions
