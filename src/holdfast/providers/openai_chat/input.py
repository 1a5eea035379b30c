"""Serialize histories as the messages of Chat requests.

Each item is translated once for all Chat upstreams: the message is cached beside its bytes. For a
session, the serialized beginning of the history is cached as well, so that a turn costs the same
whatever its number. Both caches are bounded in bytes.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any, Literal

import msgspec

from holdfast.core.errors import UnsupportedByUpstream
from holdfast.core.lru import SizedLru
from holdfast.core.model.config_items import KIND as CONFIGURATION
from holdfast.core.model.config_items import Settings, updated_settings
from holdfast.core.projection.prefix_cache import Prefix, PrefixCache, SharedPrefix
from holdfast.providers.items.serialized_input import ITEM_BYTES, append_piece
from holdfast.providers.openai_chat.messages import (
    Message,
    finish,
    is_joinable,
    join,
    translate,
)

MAX_PREFIX_BYTES = 16 * 1024 * 1024
MAX_TRANSLATION_BYTES = 16 * 1024 * 1024
ENTRY_BYTES = 512
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

    message: Message | None = None
    encoded: bytes = b""
    """The message as JSON, for when it is sent on its own."""
    is_complete: bool = True
    """False where content that Chat cannot express was replaced or left out."""
    call_id: str | None = None
    reference: str | None = None
    """The id of the item that this one refers to."""
    update: Message | None = None
    """The item itself, if it changes the settings of the conversation."""


_NOTHING = Translation()
_NEXT_SPEAKER = {"user": "assistant", "assistant": "user"}


class _TextPart(msgspec.Struct, gc=False):
    type: Literal["input_text", "output_text", "text"]
    text: str


class _TextMessage(msgspec.Struct, gc=False):
    """A message of one text, as most items of a conversation are."""

    type: Literal["message"]
    role: Literal["user", "assistant"]
    content: tuple[_TextPart]
    name: None = None
    call_id: None = None


_read_text_message = msgspec.json.Decoder(_TextMessage).decode


class TranslationCache:
    """Translate items, each once, and keep the result beside the item's bytes."""

    def __init__(self, max_bytes: int = MAX_TRANSLATION_BYTES) -> None:
        self._max_bytes = max_bytes
        self._cache: SizedLru[bytes, Translation] = SizedLru(max_bytes)
        # Long requests are checked in a thread.
        self._lock = Lock()
        self.peek = self._cache.peek
        """Return the cached translation of an item; None where there is none.

        Once a translation is part of a prefix it is not looked up again, so that it does not have
        to count as used.
        """
        self.translated = 0
        """How many items were translated so far."""

    @property
    def held_bytes(self) -> int:
        """About how much memory the cache takes."""
        return self._cache.held

    def translate(self, body: bytes, place: int, upstream: str) -> Translation:
        """Translate an item that is not cached, and cache it.

        Content that Chat cannot express is replaced. `place` is the item's place, for errors.
        """
        self.translated += 1
        try:
            plain = _read_text_message(body)
            role, text = plain.role, plain.content[0].text
        except msgspec.DecodeError:
            text = ""
        if text:
            message = {"role": role, "content": text}
            found = Translation(message=message, encoded=_encode(message))
        else:
            found = self._translate_any(body, f"input[{place}]", upstream)
        size = 2 * len(body) + len(found.encoded) + ENTRY_BYTES
        if size * 4 <= self._max_bytes:  # a larger one would evict everybody else's
            with self._lock:
                self._cache.put(body, found, size)
        return found

    def _translate_any(self, body: bytes, where: str, upstream: str) -> Translation:
        item = _decode(body)
        if item.get("type") == "item_reference":
            return Translation(reference=item.get("id"))
        is_complete = True
        try:
            message = translate(item, where, upstream, is_strict=True)
        except UnsupportedByUpstream:
            is_complete = False
            message = translate(item, where, upstream, is_strict=False)
        call_id = item.get("call_id")
        sent = finish(message) if message is not None else None
        return Translation(
            message=message,
            encoded=_encode(sent) if sent is not None else b"",
            is_complete=is_complete,
            call_id=call_id if isinstance(call_id, str) else None,
            update=item if item.get("type") == CONFIGURATION else None,
        )


class _Prefix(msgspec.Struct, frozen=True):
    """The serialized beginning of a history, and what the next item needs to know about it."""

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
    settings: Settings = {}


_EMPTY = _Prefix()


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
                new = Translation(message=message, encoded=_encode(message))
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


def _begun(first: Translation) -> _Prefix | None:
    """Return the prefix of one message, which stays open; None unless a speaker says it."""
    message = first.message
    if message is None or not first.encoded or message["role"] not in _NEXT_SPEAKER:
        return None
    if first.call_id is not None or first.update is not None:
        return None
    return _Prefix(open=(first,))


def _grown_in_turns(prefix: _Prefix, new: Sequence[Translation]) -> _Prefix | None:
    """Return the prefix after new messages, the last of which stays open.

    Return None unless user and assistant take turns, as they do in most conversations: then no
    message joins another.
    """
    if prefix is _EMPTY and len(new) == 1:
        return _begun(new[0])
    if len(prefix.open) != 1 or prefix.reasoning:
        return None
    last = prefix.open[0]
    assert last.message is not None
    role, closed = last.message["role"], []
    for found in new:
        message = found.message
        if message is None or not found.encoded or found.update is not None:
            return None
        if found.call_id is not None or message["role"] != _NEXT_SPEAKER.get(role):
            return None
        closed.append(last.encoded)
        role, last = message["role"], found
    if not closed:
        return prefix
    return _Prefix(
        append_piece(prefix.pieces, b",".join(closed)), prefix.lead, (last,), (),
        prefix.expected, prefix.call_ids, prefix.settings,
    )  # fmt: skip


def _joined(
    prefix: _Prefix, new: Sequence[Translation], form: ChatForm, done: int
) -> tuple[_Prefix, list[bytes]]:
    """Return the prefix after any messages, and the messages that are still open."""
    joiner = _Joiner(prefix, form)
    call_ids: set[str] = set()
    settings = prefix.settings
    for place, found in enumerate(new, done):
        if found.call_id is not None:
            call_ids.add(found.call_id)
        if found.update is not None:
            settings = updated_settings(settings, found.update)
        joiner.add(found, place)
    closed = b",".join(joiner.closed)
    grown = _Prefix(
        pieces=append_piece(prefix.pieces, closed) if closed else prefix.pieces,
        lead=tuple(joiner.lead),
        open=tuple(joiner.open),
        reasoning=tuple(joiner.reasoning),
        expected=joiner.expected,
        call_ids=prefix.call_ids | call_ids if call_ids else prefix.call_ids,
        settings=settings,
    )
    return grown, joiner.serialize_open()


class ChatInputCache:
    """Serialize the messages of requests; see the module."""

    def __init__(self, translations: TranslationCache, max_bytes: int = MAX_PREFIX_BYTES) -> None:
        self.translations = translations
        self._prefixes: PrefixCache[bytes, _Prefix] = PrefixCache(max_bytes)

    @property
    def held_bytes(self) -> int:
        """About how much memory the serialized prefixes take."""
        return self._prefixes.held_bytes

    def write(
        self,
        history: Sequence[bytes],
        form: ChatForm,
        *,
        instructions: str | None = None,
        session_id: str | None = None,
    ) -> ChatInput:
        """Return the messages of a request."""
        shared_items = history if isinstance(history, SharedPrefix) else SharedPrefix(list(history))
        key = (session_id, form)
        known = self._prefixes.find(key, shared_items) if session_id is not None else None
        prefix, done = _EMPTY, 0
        if known is not None:
            prefix, done = known.made, known.items.length
        new, has_references = self._translated(shared_items, done, form.upstream)
        grown = None if form.alternates else _grown_in_turns(prefix, new)
        if grown is not None:
            open_messages = [grown.open[0].encoded]
        else:
            grown, open_messages = _joined(prefix, new, form, done)
        if session_id is not None and not has_references:
            size = _size(grown, shared_items.length)
            self._prefixes.keep(key, Prefix(shared_items, grown, size))
        return ChatInput(_request_pieces(instructions, grown, open_messages), grown.settings)

    def sources(
        self, history: Sequence[bytes], form: ChatForm, *, instructions: str | None = None
    ) -> list[tuple[int, ...]]:
        """Return for each message the places of the items that it was made of."""
        joiner = _Joiner(_EMPTY, form, has_sources=True)
        shared_items = history if isinstance(history, SharedPrefix) else SharedPrefix(list(history))
        for place, found in enumerate(self._translated(shared_items, 0, form.upstream)[0]):
            joiner.add(found, place)
        if joiner.open:
            joiner.close()
        lead = [tuple(joiner.lead_sources)] if instructions or joiner.lead else []
        return [*lead, *joiner.sources]

    def has_call(
        self, call_id: str, history: Sequence[bytes], form: ChatForm, session_id: str | None
    ) -> bool:
        """Return whether a history has a call of this id."""
        shared_items = history if isinstance(history, SharedPrefix) else SharedPrefix(list(history))
        known = self._prefixes.find((session_id, form), shared_items) if session_id else None
        if known is not None and call_id in known.made.call_ids:
            return True
        done = known.items.length if known is not None else 0
        new, _ = self._translated(shared_items, done, form.upstream)
        return any(found.call_id == call_id for found in new)

    def check(self, items: Sequence[bytes], upstream: str) -> Settings:
        """Raise for new items that Chat cannot express; return the settings that they carry."""
        settings: Settings = {}
        peek = self.translations.peek
        for place, body in enumerate(items):
            found = peek(body) or self.translations.translate(body, place, upstream)
            if not found.is_complete:
                # Translated again, to raise what was lost.
                translate(_decode(body), f"input[{place}]", upstream, is_strict=True)
            if found.update is not None:
                settings = updated_settings(settings, found.update)
        return settings

    def _translated(
        self, history: "SharedPrefix[bytes]", start: int, upstream: str
    ) -> tuple[list[Translation], bool]:
        """Return the translations of the items, and whether there were references among them."""
        new: list[Translation] = []
        by_id: dict[str, bytes] | None = None
        peek = self.translations.peek
        for place, body in enumerate(history.shared[start : history.length], start):
            found = peek(body) or self.translations.translate(body, place, upstream)
            if found.reference is not None:
                by_id = _by_id(history) if by_id is None else by_id
                target = by_id.get(found.reference)
                found = _NOTHING
                if target is not None:
                    found = peek(target) or self.translations.translate(target, place, upstream)
            new.append(found)
        return new, by_id is not None


def _size(prefix: _Prefix, items: int) -> int:
    """Return about how many bytes a prefix of so many items takes."""
    unjoined = [*prefix.lead, *prefix.open, *prefix.reasoning]
    size = sum(map(len, prefix.pieces)) + ENTRY_BYTES * len(unjoined) + ITEM_BYTES * items
    for found in unjoined:
        size += 2 * len(found.encoded)
    return size


def _request_pieces(
    instructions: str | None, prefix: _Prefix, open_messages: Sequence[bytes]
) -> list[bytes]:
    """Return all messages as JSON, without the brackets; pieces have the commas in them."""
    lead: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    if prefix.lead:
        lead += [found.message for found in prefix.lead if found.message is not None]
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


def _by_id(history: "SharedPrefix[bytes]") -> dict[str, bytes]:
    """Return the items of a history by their ids; the first item of an id counts."""
    found: dict[str, bytes] = {}
    for body in history:
        item = _read_identified(body)
        if item.type != "item_reference" and isinstance(item.id, str):
            found.setdefault(item.id, body)
    return found
