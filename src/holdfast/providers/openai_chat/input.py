"""Serialize histories as the messages of Chat requests.

Each item is translated once for all Chat upstreams: the message is cached beside its bytes. The
serialized beginning of a history is held by the list of its items, so that a turn costs the same
whatever its number.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Annotated, Any, Literal

import msgspec

from holdfast.core.errors import UnsupportedByUpstream
from holdfast.core.model.config_items import KIND as CONFIGURATION
from holdfast.core.model.config_items import Settings, updated_settings
from holdfast.core.model.items import item_value
from holdfast.core.projection.growing_list import Form, LargePrefix, SharedPrefix, share
from holdfast.providers.items.serialized_input import append_piece
from holdfast.providers.openai_chat.messages import (
    Message,
    finish,
    is_joinable,
    join,
    translate,
)

MAX_TRANSLATION_BYTES = 16 * 1024 * 1024
ENTRY_BYTES = 256
"""What a cached translation costs beside its text."""
MISSING_TURN = "(no answer)"
"""Fills the turn of a speaker who said nothing, for servers that insist on alternation."""
EMPTY_INPUT = "(nothing)"
"""The user's message of a request that has none; no server accepts such a request."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_EMPTY_INPUT = _encode({"role": "user", "content": EMPTY_INPUT})


class Translation(msgspec.Struct, frozen=True, gc=False):
    """What one item contributes to a Chat request."""

    encoded: bytes = b""
    """The message as JSON, for when it is sent on its own."""
    speaker: str | None = None
    """Who speaks, if it is a message of user or assistant that may stand for itself."""
    parts: Message | None = None
    """The message, unless `encoded` says all of it."""
    is_complete: bool = True
    """False where content that Chat cannot express was replaced or left out."""
    call_id: str | None = None
    reference: str | None = None
    """The id of the item that this one refers to."""
    update: Message | None = None
    """The item itself, if it changes the settings of the conversation."""

    @property
    def message(self) -> Message | None:
        """The message that it is, or is joined to; None where there is nothing to send."""
        if self.parts is None and self.encoded:
            return _decode(self.encoded)  # type: ignore[no-any-return] # an object
        return self.parts


_NOTHING = Translation()
_NEXT_SPEAKER = {"user": "assistant", "assistant": "user"}


class _TextPart(msgspec.Struct, gc=False):
    type: Literal["input_text", "output_text", "text"]
    text: Annotated[str, msgspec.Meta(min_length=1)]


class _TextMessage(msgspec.Struct, gc=False):
    """A message of one text, as most items of a conversation are."""

    type: Literal["message"]
    role: Literal["user", "assistant"]
    content: tuple[_TextPart]
    name: None = None
    call_id: None = None


_read_text_message = msgspec.json.Decoder(_TextMessage).decode


class TranslationCache:
    """Translate items, each once, and keep the result beside the item's bytes.

    Translations that were not used since half of the cache was filled are forgotten.
    """

    def __init__(self, max_bytes: int = MAX_TRANSLATION_BYTES) -> None:
        self._max_bytes = max_bytes
        self._recent: dict[bytes, Translation] = {}
        self._earlier: dict[bytes, Translation] = {}
        self._recent_bytes = self._earlier_bytes = 0
        # Long requests are checked in a thread.
        self._lock = Lock()
        self.peek = self._recent.get
        """Return the translation of an item, if that was used recently."""
        self.translated = 0
        """How many items were translated so far."""

    @property
    def held_bytes(self) -> int:
        """About how much memory the cache takes."""
        return self._recent_bytes + self._earlier_bytes

    def translate(
        self, body: bytes, place: int, upstream: str, *, is_kept: bool = True
    ) -> Translation:
        """Translate an item that was not used recently, and keep the result.

        Content that Chat cannot express is replaced. `place` is the item's place, for errors.
        """
        translation = self._earlier.get(body)
        if translation is None:
            self.translated += 1
            try:
                plain = _read_text_message(body)
            except msgspec.DecodeError:
                translation = self._translate_any(body, f"input[{place}]", upstream)
            else:
                message = {"role": plain.role, "content": plain.content[0].text}
                translation = Translation(_encode(message), plain.role)
        size = 2 * len(body) + len(translation.encoded) + ENTRY_BYTES
        if is_kept and size * 4 <= self._max_bytes:  # a larger one would push out all others
            with self._lock:
                if (self._recent_bytes + size) * 2 > self._max_bytes:
                    self._earlier, self._earlier_bytes = self._recent, self._recent_bytes
                    self._recent, self._recent_bytes = {}, 0
                    self.peek = self._recent.get
                self._recent[body] = translation
                self._recent_bytes += size
        return translation

    def translate_once(self, body: bytes, place: int, upstream: str) -> Translation:
        """Translate an item of a long history, whose translations would push out all others."""
        return self.translate(body, place, upstream, is_kept=False)

    def _translate_any(self, body: bytes, where: str, upstream: str) -> Translation:
        item = item_value(body)
        if item.get("type") == "item_reference":
            return Translation(reference=item.get("id"))
        is_complete = True
        try:
            message = translate(item, where, upstream, is_strict=True)
        except UnsupportedByUpstream:
            is_complete = False
            message = translate(item, where, upstream, is_strict=False)
        call_id, update = item.get("call_id"), item.get("type") == CONFIGURATION
        sent = finish(message) if message is not None else None
        speaker = None
        if sent is not None and not update and not isinstance(call_id, str):
            speaker = sent["role"] if sent["role"] in _NEXT_SPEAKER else None
        return Translation(
            encoded=_encode(sent) if sent is not None else b"",
            speaker=speaker,
            parts=message,
            is_complete=is_complete,
            call_id=call_id if isinstance(call_id, str) else None,
            update=item if update else None,
        )


class _Prefix(Form):
    """The serialized beginning of a history, and what the next item needs to know about it.

    Its key is the `ChatForm` that it has.
    """

    pieces: tuple[bytes, ...] = ()
    """All messages but the leading system messages and the open one, in JSON without brackets."""
    lead: tuple[Translation, ...] = ()
    """System messages before anybody spoke: they join the request's own instructions."""
    open: tuple[Translation, ...] = ()
    """The last message, which the next item may still join."""
    reasoning: tuple[Translation, ...] = ()
    """Reasoning that waits for the call it led to."""
    expected: str = "user"
    """Who speaks next, where user and assistant must alternate."""
    call_ids: frozenset[str] = frozenset()
    settings: Settings | None = None


class ChatForm(msgspec.Struct, frozen=True):
    """How one server wants its messages."""

    upstream: str = "upstream"
    """The server's name, for errors."""
    alternates: bool = False
    """Whether user and assistant must alternate without exception."""
    drops_reasoning: bool = False
    """Whether the server refuses reasoning in its input."""


class ChatInput(msgspec.Struct, frozen=True):
    """The messages of one request, and what its items say beside them."""

    pieces: list[bytes]
    """The messages as JSON, without the brackets around them."""
    settings: Settings


class _Joiner:
    """Joins translations into messages, from the end of a prefix on."""

    def __init__(self, prefix: _Prefix, form: ChatForm, *, has_sources: bool = False) -> None:
        self.lead = list(prefix.lead)
        self.open = list(prefix.open)
        self.reasoning = list(prefix.reasoning)
        self.expected = prefix.expected
        self._alternates = form.alternates
        self._drops_reasoning = form.drops_reasoning
        self.closed: list[bytes] = []
        self._has_sources = has_sources
        self.sources: list[tuple[int, ...]] = []
        """For each closed message, the places of the items that it was made of, if requested."""
        self.lead_sources: list[int] = []
        self._open_sources: list[int] = []

    def add(self, new: Translation, place: int) -> None:
        """Add an item's message, to the open message where both must be one."""
        message = new.message
        if message is None:
            return
        role = message["role"]
        if role == "system":
            if not self.open and not self.closed and not self.reasoning:
                self.lead.append(new)
                self.lead_sources.append(place)
                return
            if self._alternates:
                # A later system message is sent by the user: the server allows only one.
                message = {**message, "role": "user"}
                new = Translation(_encode(message))
        elif not new.encoded:
            # Reasoning alone is no message: it waits for what it led to.
            if not self._drops_reasoning:
                self.reasoning.append(new)
            return
        reasoning, self.reasoning = self.reasoning if role == "assistant" else [], []
        last = self.open[-1].message if self.open else None
        if (
            last is not None
            and last["role"] == message["role"]
            and is_joinable(last, message, ignores_names=self._alternates)
        ):
            self.open += (*reasoning, new)
        else:
            if self.open:
                self.close()
            self.open = [*reasoning, new]
        if self._has_sources:
            self._open_sources.append(place)

    def close(self) -> None:
        """Serialize the open message."""
        if len(self.open) == 1 and not self._alternates:
            serialized = [self.open[0].encoded]
        else:
            serialized = self.serialize_open()
        self.closed += serialized
        if self._has_sources:
            filler: list[tuple[int, ...]] = [()] if len(serialized) > 1 else []
            self.sources += [*filler, tuple(self._open_sources)]
            self._open_sources = []
        if self._alternates:
            self.expected = self._next_speaker()

    def serialize_open(self) -> list[bytes]:
        """Return the open message as JSON, after the turn that it may have to wait for."""
        if not self.open:
            return []
        if len(self.open) == 1:
            encoded = self.open[0].encoded
        else:
            messages = [part.message for part in self.open if part.message is not None]
            encoded = _encode(finish(join(messages)))
        if self._alternates and self._speaker() not in (None, self.expected):
            return [_encode({"role": self.expected, "content": MISSING_TURN}), encoded]
        return [encoded]

    def _speaker(self) -> str | None:
        """Return who speaks in the open message; tool traffic does not count."""
        messages = [part.message for part in self.open if part.message is not None]
        role: str = messages[0]["role"]
        is_speech = role in ("user", "assistant")
        return role if is_speech and not any(m.get("tool_calls") for m in messages) else None

    def _next_speaker(self) -> str:
        speaker = self._speaker()
        if speaker is None:
            return self.expected
        return "assistant" if speaker == "user" else "user"


def _joined(
    prefix: _Prefix, new: Sequence[Translation], form: ChatForm
) -> tuple[_Prefix, list[bytes]]:
    """Return the prefix after any messages, and the messages that are still open."""
    joiner, done = _Joiner(prefix, form), prefix.length
    call_ids: set[str] = set()
    settings = prefix.settings or {}
    for place, translation in enumerate(new, done):
        if translation.call_id is not None:
            call_ids.add(translation.call_id)
        if translation.update is not None:
            settings = updated_settings(settings, translation.update)
        joiner.add(translation, place)
    closed = b",".join(joiner.closed)
    grown = _Prefix(
        prefix.key,
        done + len(new),
        pieces=append_piece(prefix.pieces, closed) if closed else prefix.pieces,
        lead=tuple(joiner.lead),
        open=tuple(joiner.open),
        reasoning=tuple(joiner.reasoning),
        expected=joiner.expected,
        call_ids=prefix.call_ids | call_ids if call_ids else prefix.call_ids,
        settings=settings or None,
    )
    return grown, joiner.serialize_open()


class ChatInputWriter:
    """Serializes the messages of requests; see the module."""

    def __init__(self, translations: TranslationCache) -> None:
        self.translations = translations

    def write(
        self, history: Sequence[bytes], form: ChatForm, *, instructions: str | None = None
    ) -> ChatInput:
        """Return the messages of a request."""
        items = history if isinstance(history, SharedPrefix) else share(history)
        forms = items.shared.forms
        prefix = forms[0] if forms else None
        if not isinstance(prefix, _Prefix) or prefix.key != form or prefix.length > items.length:
            cached = items.shared.find_form(form, items.length)
            prefix = cached if isinstance(cached, _Prefix) else _Prefix(form, 0)
        if self._take_turns(prefix, items, form):
            open_messages = [prefix.open[0].encoded]
            if prefix.pieces and not prefix.lead and instructions is None:
                return ChatInput([*prefix.pieces, b",", *open_messages], prefix.settings or {})
        else:
            new, has_references = self._translated(items, prefix.length, form.upstream)
            prefix, open_messages = _joined(prefix, new, form)
            if not has_references:
                items.shared.keep_form(prefix)
        pieces = _request_pieces(instructions, prefix, open_messages)
        return ChatInput(pieces, prefix.settings or {})

    def _take_turns(self, prefix: _Prefix, items: SharedPrefix[bytes], form: ChatForm) -> bool:
        """Extend a prefix by messages of user and assistant in turn; the last one stays open.

        Most conversations are like this: no message joins another. Return False for others, and
        leave the prefix as it was.
        """
        place = prefix.length
        if form.alternates or prefix.reasoning or len(prefix.open) != (place > 0):
            return False
        last = prefix.open[0] if place else None
        closed: list[bytes] = []
        peek, translations = self.translations.peek, self.translations
        is_large = type(items) is LargePrefix
        translate = translations.translate_once if is_large else translations.translate
        for body in items.shared[place : items.length]:
            translation = peek(body) or translate(body, place, form.upstream)
            if translation.speaker is None:
                return False
            if last is not None:
                if last.speaker != _NEXT_SPEAKER[translation.speaker]:
                    return False
                closed.append(last.encoded)
            last, place = translation, place + 1
        if last is None:
            return False
        if not prefix.length:
            items.shared.keep_form(prefix)
        if closed:
            prefix.pieces = append_piece(prefix.pieces, b",".join(closed))
        prefix.open, prefix.length = (last,), place
        return True

    def sources(
        self, history: Sequence[bytes], form: ChatForm, *, instructions: str | None = None
    ) -> list[tuple[int, ...]]:
        """Return for each message the places of the items that it was made of."""
        joiner = _Joiner(_Prefix(form, 0), form, has_sources=True)
        for place, translation in enumerate(self._translated(share(history), 0, form.upstream)[0]):
            joiner.add(translation, place)
        if joiner.open:
            joiner.close()
        lead = [tuple(joiner.lead_sources)] if instructions or joiner.lead else []
        return [*lead, *joiner.sources]

    def has_call(self, call_id: str, history: Sequence[bytes], form: ChatForm) -> bool:
        """Return whether a history has a call of this id."""
        items = share(history)
        cached = items.shared.find_form(form, items.length)
        if isinstance(cached, _Prefix) and call_id in cached.call_ids:
            return True
        done = cached.length if cached is not None else 0
        new, _ = self._translated(items, done, form.upstream)
        return any(translation.call_id == call_id for translation in new)

    def _translated(
        self, history: SharedPrefix[bytes], start: int, upstream: str
    ) -> tuple[list[Translation], bool]:
        """Return the translations of the items, and whether there were references among them."""
        new: list[Translation] = []
        by_id: dict[str, bytes] | None = None
        peek, translations = self.translations.peek, self.translations
        is_large = type(history) is LargePrefix
        translate = translations.translate_once if is_large else translations.translate
        for place, body in enumerate(history.shared[start : history.length], start):
            translation = peek(body) or translate(body, place, upstream)
            if translation.reference is not None:
                by_id = _by_id(history) if by_id is None else by_id
                target = by_id.get(translation.reference)
                translation = _NOTHING
                if target is not None:
                    translation = peek(target) or translate(target, place, upstream)
            new.append(translation)
        return new, by_id is not None


def _request_pieces(
    instructions: str | None, prefix: _Prefix, open_messages: Sequence[bytes]
) -> list[bytes]:
    """Return all messages as JSON, without the brackets; pieces have the commas in them."""
    lead: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    if prefix.lead:
        lead += [
            translation.message for translation in prefix.lead if translation.message is not None
        ]
    written = [_encode(join(lead))] if lead else []
    pieces = prefix.pieces
    if pieces:
        written += (b",", *pieces) if written else pieces
    for message in open_messages or ([] if pieces else [_EMPTY_INPUT]):
        written += (b",", message) if written else (message,)
    return written


class _Identified(msgspec.Struct):
    type: str | None = None
    id: Any = None


_read_identified = msgspec.json.Decoder(_Identified).decode


def _by_id(history: SharedPrefix[bytes]) -> dict[str, bytes]:
    """Return the items of a history by their ids; the first item of an id counts."""
    bodies: dict[str, bytes] = {}
    for body in history:
        item = _read_identified(body)
        if item.type != "item_reference" and isinstance(item.id, str):
            bodies.setdefault(item.id, body)
    return bodies
