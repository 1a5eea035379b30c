"""Any server that speaks the Responses API: told everything anew, chained, or in a conversation.

Replay is complete in itself and stored nowhere. The other two leave a cache with the server,
which is sent back to its maker alone.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import ProviderFailure
from holdfast.core.model.provider_state import ProviderState
from holdfast.ports.provider import Answer, EventSink, ModelCall, StateUse
from holdfast.providers.errors import broken, names_item
from holdfast.providers.http.connection import StopReading
from holdfast.providers.http.sse import SseEvent
from holdfast.providers.http.upstream import Upstream, list_models, read_json
from holdfast.providers.items.ids import IdAllocator, NewId
from holdfast.providers.items.replay import Replay, kept_names
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.items.serialized_input import SerializedInputCache
from holdfast.providers.openai_responses.output import ResponsesOutput, whole_events
from holdfast.providers.openai_responses.params import to_responses_params
from holdfast.providers.openai_responses.upstream_state import (
    UpstreamState,
    changes_nothing,
    history_tokens,
    ignored,
    read_state,
    verify,
    was_read,
)
from holdfast.providers.openai_responses.whole_response import Ending, WholeOutput

PATH = "/responses"
_encode = msgspec.json.Encoder().encode
SEALED_REASONING = "reasoning.encrypted_content"
_REASONING_MODELS = ("o1", "o3", "o4", "gpt-5", "codex")
NOTHING_SAID = (
    b'{"type":"message","role":"user","content":[{"type":"input_text","text":"(nothing)"}]}'
)
"""Stands for a history of which nothing can be shown: no server takes an empty one."""
_REFUSES_SEALING = "encrypted content is not supported"


class _Following:
    """Takes a server's events until one ends its answer, and has somebody hear ours."""

    def __init__(self, output: ResponsesOutput, sink: EventSink) -> None:
        self._output = output
        self._sink = sink
        self.drain = sink.drain

    def write(self, events: list[SseEvent]) -> bool:
        output = self._output
        if len(events) == 1:
            ours = output.take(events[0].type, events[0].data)
        else:
            ours = []
            try:
                for event in events:
                    if output.ending is None:
                        ours += output.take(event.type, event.data)
            except ProviderFailure:
                # What came before a failure was said.
                if ours:
                    self._sink.write(ours)
                raise
        may_follow = self._sink.write(ours) if ours else True
        if output.ending is not None:
            raise StopReading
        return may_follow


class ResponsesProvider:
    """A Responses server."""

    def __init__(self, upstream: Upstream, new_id: NewId) -> None:
        self._upstream = upstream
        self.name = upstream.name
        self._new_id = new_id
        self._mode = upstream.settings.state
        self._seals = upstream.settings.encrypted_reasoning
        self._retelling = SerializedInputCache()
        self._no_encrypted_reasoning: set[str] = set()
        """Models that have said they cannot seal their reasoning."""
        self._verified_chaining: set[str] = set()
        """Models that have shown that they read what they are asked to go on from."""
        self._ignores_chaining: set[str] = set()
        """Models that have shown that they do not: they are told everything each time."""

    def check(self, call: ModelCall) -> None:
        """Raise for what cannot be carried: words of Chat that have no counterpart."""
        if call.chat_fields:
            to_responses_params(call.chat_fields, self._upstream.name)

    def state_use(self, model: str) -> StateUse | None:
        """Return how this server remembers, if it is to."""
        if self._mode == "replay" or model in self._ignores_chaining:
            return None
        slot = self._upstream.maker(model).slot
        return StateUse(slot, is_mutable=self._mode == "conversation")

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        kept = await self._kept(call) if self._mode != "replay" else None
        replay = self._replay(call)
        while True:
            body = self._body(call, kept)
            try:
                data = await self._upstream.ask(
                    PATH,
                    self._written(call, kept, replay, body),
                    names_state=call.state is not None,
                    may_repeat=changes_nothing(body),
                )
            except ProviderFailure as failure:
                if not self._learns_from(failure, call.model, body):
                    raise self._placed(failure, call) from None
            else:
                break
        names = IdAllocator(self._new_id, partial(self._taken, call))
        ending = WholeOutput(names, replay.maker).whole(data)
        if kept is None:
            return ending.answer
        if not self._has_read(call, kept, ending):
            raise ignored()
        return self._with_state(call, kept, names, ending)

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Tell the server's events as they come, in our names."""
        kept = await self._kept(call)
        if self._is_unproven(call, kept):
            # Whether it remembers is seen in its last word; until it has shown that it does,
            # nothing is passed on before that.
            answer = await self.answer(replace(call, is_stream=False))
            sink.write(whole_events(answer.items))
            return answer
        return await self._follow(call, kept, sink)

    async def _follow(self, call: ModelCall, kept: UpstreamState | None, sink: EventSink) -> Answer:
        names = IdAllocator(self._new_id, partial(self._taken, call))
        replay = self._replay(call)
        output = ResponsesOutput(names, replay.maker)
        while True:
            body = {**self._body(call, kept), "stream": True}
            try:
                await self._upstream.follow(
                    PATH,
                    self._written(call, kept, replay, body),
                    _Following(output, sink),
                    names_state=call.state is not None,
                    may_repeat=changes_nothing(body),
                )
            except ProviderFailure as failure:
                if not self._learns_from(failure, call.model, body):
                    raise self._placed(failure, call) from None
            else:
                break
        if output.ending is None:
            raise broken("the upstream's answer ended before it was finished", "upstream_truncated")
        has_read = self._has_read(call, kept, output.ending)
        return self._with_state(call, kept if has_read else None, names, output.ending)

    async def models(self) -> list[dict[str, Any]]:
        """Return the models it serves."""
        return await list_models(self._upstream)

    async def close(self) -> None:
        """The line is closed by whoever opened it."""

    # ── the request ─────────────────────────────────────────────────────────────────────────

    def _body(self, call: ModelCall, kept: UpstreamState | None) -> dict[str, Any]:
        """Return everything that a request says beside its input."""
        words = (
            to_responses_params(call.chat_fields, self._upstream.name) if call.chat_fields else {}
        )
        is_stored = kept is not None
        body: dict[str, Any] = {**words, **call.fields, "model": call.model, "store": is_stored}
        if not is_stored and "metadata" in body:
            del body["metadata"]
        if not call.is_stream and "stream_options" in body:
            del body["stream_options"]
        body.pop("input", None)
        if call.session_id is not None and "prompt_cache_key" not in body:
            body["prompt_cache_key"] = call.session_id
        if self._seals and _reasons(call.model) and call.model not in self._no_encrypted_reasoning:
            _include_seals(body)
        if kept is not None and kept.conversation is not None:
            body["conversation"] = kept.conversation
        elif kept is not None and kept.response is not None:
            body["previous_response_id"] = kept.response
        return body

    def _written(
        self, call: ModelCall, kept: UpstreamState | None, replay: Replay, body: dict[str, Any]
    ) -> list[bytes]:
        """Return a request's body in pieces: what it says, and behind it its input."""
        told: Sequence[bytes]
        if kept is None or call.state is None:
            told = self._retelling.write(call.session_id, replay, call.items) or (NOTHING_SAID,)
        else:
            known = call.items[: len(call.items) - len(call.new_items)]
            taken = kept_names(known, call.new_items)
            new = replay.write(call.new_items, call.items, taken).items
            told = (b",".join([_in_their_names(item, kept.calls) for item in new]),)
        return [_encode(body)[:-1] + b',"input":[', *told, b"]}"]

    def _replay(self, call: ModelCall) -> Replay:
        maker = self._upstream.maker(call.model)
        return Replay(maker=maker, is_opaque_allowed=call.allows_opaque, is_plain=call.is_plain)

    def _placed(self, failure: ProviderFailure, call: ModelCall) -> ProviderFailure:
        """Return a failure with the item that it names, by its place in what the call brought."""
        failure = self._upstream.redact_failure(failure)
        place = names_item(failure.param, failure.message)
        if place is not None:
            history = call.items if call.state is None else call.new_items
            sources = self._replay(call).write(history, call.items).sources
            failure.places = tuple(sources[place : place + 1])
        return failure

    # ── what the server keeps ───────────────────────────────────────────────────────────────

    async def _kept(self, call: ModelCall) -> UpstreamState | None:
        """Return what this call goes on from; None when the server is to keep nothing."""
        if not call.keeps_state or self.state_use(call.model) is None:
            return None
        if call.state is not None:
            kept = read_state(call.state.value)
            await self._verify(call, kept)
            return kept
        if self._mode == "chain":
            return UpstreamState()
        made = read_json(await self._upstream.ask("/conversations", (b"{}",), may_repeat=True))
        if not isinstance(made.get("id"), str):
            raise broken("the upstream made no conversation", "upstream_broken_answer")
        return UpstreamState(conversation=made["id"])

    async def _verify(self, call: ModelCall, kept: UpstreamState) -> None:
        """Raise if a conversation is not what we made of it."""
        if kept.conversation is None or not self._upstream.settings.verify_conversation:
            return
        known = len(call.items) - len(call.new_items)
        if call.items[known:] == call.new_items:
            expected = self._replay(call).items(call.items[:known], call.items)
            await verify(self._upstream, kept.conversation, expected)

    def _is_unproven(self, call: ModelCall, kept: UpstreamState | None) -> bool:
        is_chained = kept is not None and kept.response is not None and kept.tokens > 0
        return is_chained and call.model not in self._verified_chaining

    def _has_read(self, call: ModelCall, kept: UpstreamState | None, ending: Ending) -> bool:
        """Whether the server read what it was asked to go on from, as far as can be told."""
        if kept is None or kept.response is None:
            return True
        verdict = was_read(kept, ending.answer.usage, call)
        if verdict is not None:
            (self._verified_chaining if verdict else self._ignores_chaining).add(call.model)
        return verdict is not False

    def _with_state(
        self, call: ModelCall, kept: UpstreamState | None, names: IdAllocator, ending: Ending
    ) -> Answer:
        """Return the answer, with what may be gone on from once it is committed."""
        answer = ending.answer
        if kept is None or answer.status != "completed":
            return answer
        after = UpstreamState(
            response=ending.response_id if self._mode == "chain" else None,
            conversation=kept.conversation,
            calls=names.aliases(),
            tokens=history_tokens(answer.usage, call) if self._mode == "chain" else 0,
        )
        if after.response is None and after.conversation is None:
            return answer
        return replace(answer, state=self._state(self._upstream.maker(call.model), after))

    @staticmethod
    def _state(maker: SealOwner, kept: UpstreamState) -> ProviderState:
        return maker.remember(msgspec.json.encode(kept))

    def _taken(self, call: ModelCall) -> Iterable[str]:
        return self._retelling.call_ids(call.session_id, self._replay(call), call.items)

    def _learns_from(self, failure: ProviderFailure, model: str, body: dict[str, Any]) -> bool:
        """Whether the server refused only that reasoning be sealed: then it is not asked again."""
        if _REFUSES_SEALING not in failure.message.lower() or model in self._no_encrypted_reasoning:
            return False
        asked = body.get("include")
        if not isinstance(asked, list) or SEALED_REASONING not in asked:
            return False
        self._no_encrypted_reasoning.add(model)
        return True


def _include_seals(body: dict[str, Any]) -> None:
    """Ask for reasoning that can be replayed."""
    given = body.get("include")
    asked = msgspec.json.decode(given) if isinstance(given, msgspec.Raw) else given
    listed = asked if isinstance(asked, list) else []
    if SEALED_REASONING not in listed:
        body["include"] = [*listed, SEALED_REASONING]


@lru_cache(maxsize=256)
def _reasons(model: str) -> bool:
    """Whether a model can give reasoning that can be replayed."""
    return model.rpartition("/")[2].startswith(_REASONING_MODELS)


def _in_their_names(item: bytes, calls: dict[str, str]) -> bytes:
    if not calls:
        return item
    value = msgspec.json.decode(item)
    theirs = calls.get(value.get("call_id"))
    if theirs is None:
        return item
    return _encode({**value, "call_id": theirs})
