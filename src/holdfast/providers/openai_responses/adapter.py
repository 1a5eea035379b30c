"""The adapter for servers of the Responses API: replay, response chaining, or conversations.

A replayed call is self-contained and stored nowhere. The other two modes keep state at the server,
which is used only with the model and account that it belongs to.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import ProviderFailure, UnsupportedByUpstream
from holdfast.core.model.items import item_value
from holdfast.core.projection.growing_list import LargePrefix
from holdfast.ports.provider import Answer, EventSink, ModelCall, StateUse
from holdfast.providers.errors import broken, name_missing_path, names_item
from holdfast.providers.http.connection import StopReading
from holdfast.providers.http.sse import SseEvent
from holdfast.providers.http.upstream import Upstream, list_models, read_json
from holdfast.providers.items.ids import IdAllocator, NewId
from holdfast.providers.items.replay import Replay, sent_ids
from holdfast.providers.items.serialized_input import has_call, write_input
from holdfast.providers.openai_responses.output import ResponsesOutput, whole_events
from holdfast.providers.openai_responses.params import to_responses_params
from holdfast.providers.openai_responses.upstream_state import (
    UpstreamState,
    changes_nothing,
    history_tokens,
    read_state,
    state_ignored,
    verify,
    was_read,
)
from holdfast.providers.openai_responses.whole_response import FinishedAnswer, WholeOutput

PATH = "/responses"
_encode = msgspec.json.Encoder().encode
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_REASONING_MODELS = ("o1", "o3", "o4", "gpt-5", "codex")
EMPTY_INPUT = (
    b'{"type":"message","role":"user","content":[{"type":"input_text","text":"(nothing)"}]}'
)
"""Replaces a history without any sendable item, because no server accepts an empty input."""
MAX_REPLAYS = 256
_REFUSES_ENCRYPTION = "encrypted content is not supported"
Remedy = Callable[[UnsupportedByUpstream, ModelCall], str]
"""Returns what to do about a refused field; an empty text if there is nothing to say."""


class _ResponsesSink:
    """Translates a stream's events up to the terminal one, and writes them to the engine's sink."""

    def __init__(self, output: ResponsesOutput, sink: EventSink) -> None:
        self._output = output
        self._sink = sink
        self.drain = sink.drain

    def write(self, events: Sequence[SseEvent]) -> bool:
        output = self._output
        if len(events) == 1:
            ours = output.read(events[0].type, events[0].data)
        else:
            ours = []
            try:
                for event in events:
                    if output.finished is None:
                        ours += output.read(event.type, event.data)
            except ProviderFailure:
                # Pass on what came before the failure.
                if ours:
                    self._sink.write(ours)
                raise
        may_continue = self._sink.write(ours) if ours else True
        if output.finished is not None:
            raise StopReading
        return may_continue

    def end(self) -> None:
        """Do nothing: the terminal event ends an answer."""


class ResponsesProvider:
    """A Responses server."""

    detect = None

    def __init__(self, upstream: Upstream, new_id: NewId, remedy: Remedy | None = None) -> None:
        self._upstream = upstream
        self.remedy = remedy
        """Tells what to do about a field of a call that Responses cannot express."""
        self.name = upstream.name
        self._new_id = new_id
        self._mode = upstream.settings.state
        self._wants_encrypted = upstream.settings.encrypted_reasoning
        self._usual_replays: dict[str, Replay] = {}
        """How histories are written for models that have refused nothing."""
        self._no_encrypted_reasoning: set[str] = set()
        """Models that have refused encrypted reasoning."""
        self._verified_chaining: set[str] = set()
        """Models that are known to read the response that they continue from."""
        self._ignores_chaining: set[str] = set()
        """Models that are known not to read it; they get the whole history with every call."""

    def check(self, call: ModelCall) -> None:
        """Raise for Chat fields that Responses cannot express."""
        if call.chat_fields:
            try:
                to_responses_params(call.chat_fields, self.name)
            except UnsupportedByUpstream as refusal:
                if self.remedy is None:
                    raise
                help_text = self.remedy(refusal, call)
                raise UnsupportedByUpstream(refusal.param or "", self.name, help_text) from None

    def state_use(
        self,
        model: str,
        chat_fields: Mapping[str, msgspec.Raw],  # noqa: ARG002 - any request has the same
    ) -> StateUse | None:
        """Return how this server stores state, or None in replay mode."""
        if self._mode == "replay" or model in self._ignores_chaining:
            return None
        slot = self._upstream.seal_owner(model).slot
        return StateUse(slot, is_mutable=self._mode == "conversation")

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        state = await self._begin_state(call) if self._mode != "replay" else None
        replay = self._replay(call)
        while True:
            body = self._params(call, state)
            pieces = (
                self._serialize(call, state, replay, body)
                if type(call.items) is not LargePrefix
                else await asyncio.to_thread(self._serialize, call, state, replay, body)
            )
            try:
                data = await self._upstream.fetch(
                    PATH,
                    pieces,
                    names_state=call.state is not None,
                    may_repeat=changes_nothing(body),
                )
            except ProviderFailure as failure:
                if not self._can_retry_unencrypted(failure, call.model, body):
                    raise self._located(failure, call) from None
            else:
                break
        ids = IdAllocator(self._new_id, partial(self._has_call, call), call.answer_seq)
        finished = WholeOutput(ids, replay.owner).whole(data)
        if state is None:
            return finished.answer
        if not self._has_read(call, state, finished):
            raise state_ignored()
        return self._with_state(call, state, ids, finished)

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Write the server's events as they arrive, with the gateway's ids."""
        state = await self._begin_state(call) if self._mode != "replay" else None
        if state is not None and self._is_unproven(call, state):
            # Only the final token counts show whether the server read its state. Until a model is
            # known to do so, pass nothing on before the end.
            answer = await self.answer(replace(call, is_stream=False))
            sink.write(whole_events(answer.items))
            return answer
        ids = IdAllocator(self._new_id, partial(self._has_call, call), call.answer_seq)
        replay = self._replay(call)
        output = ResponsesOutput(ids, replay.owner)
        while True:
            body = {**self._params(call, state), "stream": True}
            pieces = (
                self._serialize(call, state, replay, body)
                if type(call.items) is not LargePrefix
                else await asyncio.to_thread(self._serialize, call, state, replay, body)
            )
            try:
                await self._upstream.stream(
                    PATH,
                    pieces,
                    _ResponsesSink(output, sink),
                    names_state=call.state is not None,
                    may_repeat=changes_nothing(body),
                )
            except ProviderFailure as failure:
                if not self._can_retry_unencrypted(failure, call.model, body):
                    raise self._located(failure, call) from None
            else:
                break
        if output.finished is None:
            raise broken(
                "the upstream's answer ended without its terminal event", "upstream_truncated"
            )
        if state is None or not self._has_read(call, state, output.finished):
            return output.finished.answer
        return self._with_state(call, state, ids, output.finished)

    async def models(self) -> list[dict[str, Any]]:
        """Return the models of the server."""
        return await list_models(self._upstream)

    async def close(self) -> None:
        """Do nothing: the router closes the connections."""

    # ── the request ─────────────────────────────────────────────────────────────────────────

    def _params(self, call: ModelCall, state: UpstreamState | None) -> dict[str, Any]:
        """Return a request's body without its input."""
        chat = call.chat_fields
        translated = to_responses_params(chat, self._upstream.name) if chat else {}
        is_stored = state is not None
        body: dict[str, Any] = {**translated, **call.fields}
        body |= {"model": call.model, "store": is_stored}
        if not is_stored and "metadata" in body:
            del body["metadata"]
        if not call.is_stream and "stream_options" in body:
            del body["stream_options"]
        body.pop("input", None)
        if call.session_id is not None and "prompt_cache_key" not in body:
            body["prompt_cache_key"] = call.session_id
        can_encrypt = _is_reasoning_model(call.model)
        if self._wants_encrypted and can_encrypt and call.model not in self._no_encrypted_reasoning:
            _include_encrypted_reasoning(body)
        if state is not None and state.conversation is not None:
            body["conversation"] = state.conversation
        elif state is not None and state.response is not None:
            body["previous_response_id"] = state.response
        return body

    def _serialize(
        self, call: ModelCall, state: UpstreamState | None, replay: Replay, body: dict[str, Any]
    ) -> list[bytes]:
        """Return a request's body in pieces: its parameters, then its input."""
        items: Sequence[bytes]
        if state is None or call.state is None:
            items = write_input(replay, call.items) or (EMPTY_INPUT,)
        else:
            earlier = call.items[: len(call.items) - len(call.new_items)]
            used_ids = sent_ids(earlier, call.new_items)
            new = replay.write(call.new_items, call.items, used_ids).items
            items = (b",".join([_with_server_call_id(item, state.calls) for item in new]),)
        return [_encode(body)[:-1] + b',"input":[', *items, b"]}"]

    def wire_body(self, call: ModelCall) -> bytes | None:
        """Return the body of a call, or None if it contains ids of the server's state."""
        is_stored = call.keeps_state and self.state_use(call.model, {}) is not None
        if call.state is not None or (is_stored and self._mode == "conversation"):
            return None
        body = self._params(call, UpstreamState() if is_stored else None)
        if call.is_stream:
            body["stream"] = True
        items = self._replay(call).write(call.items).items or (EMPTY_INPUT,)
        return b"".join((_encode(body)[:-1], b',"input":[', b",".join(items), b"]}"))

    def _replay(self, call: ModelCall) -> Replay:
        usual = self._usual_replays.get(call.model)
        if usual is not None and call.allows_opaque and not call.is_plain:
            return usual
        owner = self._upstream.seal_owner(call.model)
        replay = Replay(owner=owner, is_opaque_allowed=call.allows_opaque, is_plain=call.is_plain)
        if call.allows_opaque and not call.is_plain and len(self._usual_replays) < MAX_REPLAYS:
            # Every session that is served refers to it.
            self._usual_replays[call.model] = replay
        return replay

    def _located(self, failure: ProviderFailure, call: ModelCall) -> ProviderFailure:
        """Return a failure with the index of the call's item that it names."""
        failure = self._upstream.redact_failure(failure)
        name_missing_path(failure, PATH, self._upstream.settings.api, "chat")
        self._upstream.report_not_found(failure)
        place = names_item(failure.param, failure.message)
        if place is not None:
            history = call.items if call.state is None else call.new_items
            sources = self._replay(call).write(history, call.items).sources
            failure.places = tuple(sources[place : place + 1])
        return failure

    # ── the server's state ──────────────────────────────────────────────────────────────────

    async def _begin_state(self, call: ModelCall) -> UpstreamState | None:
        """Return the state that a call continues from, or None if the server must store nothing."""
        if not call.keeps_state or self.state_use(call.model, {}) is None:
            return None
        if call.state is not None:
            state = read_state(call.state.value)
            await self._verify(call, state)
            return state
        if self._mode == "chain":
            return UpstreamState()
        conversation = read_json(
            await self._upstream.fetch("/conversations", (b"{}",), may_repeat=True)
        )
        if not isinstance(conversation.get("id"), str):
            raise broken("the upstream's new conversation has no id", "upstream_broken_answer")
        return UpstreamState(conversation=conversation["id"])

    async def _verify(self, call: ModelCall, state: UpstreamState) -> None:
        """Raise if a conversation differs from what was put into it."""
        if state.conversation is None or not self._upstream.settings.verify_conversation:
            return
        earlier_count = len(call.items) - len(call.new_items)
        if call.items[earlier_count:] == call.new_items:
            expected = self._replay(call).items(call.items[:earlier_count], call.items)
            await verify(self._upstream, state.conversation, expected)

    def _is_unproven(self, call: ModelCall, state: UpstreamState) -> bool:
        is_chained = state.response is not None and state.tokens > 0
        return is_chained and call.model not in self._verified_chaining

    def _has_read(self, call: ModelCall, state: UpstreamState, finished: FinishedAnswer) -> bool:
        """Return whether the server read its state, as far as its token counts show."""
        if state.response is None:
            return True
        verdict = was_read(state, finished.answer.usage, call)
        if verdict is not None:
            (self._verified_chaining if verdict else self._ignores_chaining).add(call.model)
        return verdict is not False

    def _with_state(
        self,
        call: ModelCall,
        state: UpstreamState,
        ids: IdAllocator,
        finished: FinishedAnswer,
    ) -> Answer:
        """Return the answer with the state that the next call may continue from."""
        answer = finished.answer
        if answer.status != "completed":
            return answer
        is_chain = self._mode == "chain"
        after = UpstreamState(
            response=finished.response_id if is_chain else None,
            conversation=state.conversation,
            calls=ids.aliases(),
            tokens=history_tokens(answer.usage, call) if is_chain else 0,
        )
        if after.response is None and after.conversation is None:
            return answer
        owner = self._upstream.seal_owner(call.model)
        return replace(answer, state=owner.state(msgspec.json.encode(after)))

    def _has_call(self, call: ModelCall, call_id: str) -> bool:
        return has_call(call_id, self._replay(call), call.items)

    def _can_retry_unencrypted(
        self, failure: ProviderFailure, model: str, body: dict[str, Any]
    ) -> bool:
        """Return whether the server refused only encrypted reasoning; if so, remember the model."""
        is_refusal = _REFUSES_ENCRYPTION in failure.message.lower()
        if not is_refusal or model in self._no_encrypted_reasoning:
            return False
        included = body.get("include")
        if not isinstance(included, list) or ENCRYPTED_REASONING not in included:
            return False
        self._no_encrypted_reasoning.add(model)
        return True


def _include_encrypted_reasoning(body: dict[str, Any]) -> None:
    """Request reasoning in the encrypted form, which can be replayed."""
    include = body.get("include")
    included = msgspec.json.decode(include) if isinstance(include, msgspec.Raw) else include
    listed = included if isinstance(included, list) else []
    if ENCRYPTED_REASONING not in listed:
        body["include"] = [*listed, ENCRYPTED_REASONING]


@lru_cache(maxsize=256)
def _is_reasoning_model(model: str) -> bool:
    """Return whether a model can send encrypted reasoning."""
    return model.rpartition("/")[2].startswith(_REASONING_MODELS)


def _with_server_call_id(item: bytes, calls: dict[str, str]) -> bytes:
    if not calls:
        return item
    value = item_value(item)
    server_id = calls.get(value.get("call_id", ""))
    if server_id is None:
        return item
    return _encode({**value, "call_id": server_id})
