"""Which of OpenAI's two APIs a call uses, where a server has both or has not told what it has."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from holdfast.core.errors import ProviderFailure, UnsupportedByUpstream
from holdfast.ports.provider import Answer, EventSink, ModelCall, Provider, StateUse
from holdfast.providers.http.api_detection import FoundApis, detect_apis
from holdfast.providers.http.upstream import Upstream
from holdfast.providers.items.ids import NewId
from holdfast.providers.openai_chat.adapter import ChatProvider
from holdfast.providers.openai_chat.input import TranslationCache
from holdfast.providers.openai_chat.params import UNSUPPORTED, not_stored
from holdfast.providers.openai_responses.adapter import ResponsesProvider
from holdfast.providers.openai_responses.params import CHAT_ONLY, to_responses_params

Fields = Mapping[str, msgspec.Raw]
RETRY_SECONDS = 30.0
"""How long a server that hangs on an empty request is not asked again before a turn."""
SET_BOTH = 'if its server also has /chat/completions, set `api = "both"` for it'
HAS_NO_CHAT = "its server has no /chat/completions, so no setting helps"
_OPENAI_HOST = "api.openai.com"


def open_server(
    upstream: Upstream, new_id: NewId, translations: TranslationCache, settle: "Settle"
) -> "ServerProvider":
    """Return the provider of a server; `settle` is told when another one takes its place."""
    api = upstream.settings.api
    if api == "chat":
        return ChatProvider(upstream, new_id, translations)
    if api == "responses":
        return ResponsesProvider(upstream, new_id, _remedies(SET_BOTH))
    both = BothApisProvider(upstream, new_id, translations)
    host = urlsplit(upstream.settings.url).hostname or ""
    if api == "both" or host == _OPENAI_HOST or host.endswith(f".{_OPENAI_HOST}"):
        return both
    return UndetectedProvider(both, settle)


def _remedies(for_chat_fields: str) -> Callable[[UnsupportedByUpstream, ModelCall], str]:
    """Return what an operator or a client can do about a Chat field on a Responses server."""

    def remedy(refusal: UnsupportedByUpstream, call: ModelCall) -> str:
        field = refusal.param or ""
        if field not in CHAT_ONLY:
            return ""
        # Without a session the request is passed on, whatever its results are.
        return not_stored(field) if call.keeps_state and field in UNSUPPORTED else for_chat_fields

    return remedy


class BothApisProvider:
    """A server with both APIs: what Responses cannot express goes to Chat Completions."""

    detect = None

    def __init__(self, upstream: Upstream, new_id: NewId, translations: TranslationCache) -> None:
        self.upstream = upstream
        self.name = upstream.name
        self.responses = ResponsesProvider(upstream, new_id, _remedies(SET_BOTH))
        self.chat = ChatProvider(upstream, new_id, translations)

    def needs_chat(self, chat_fields: Fields) -> bool:
        """Return whether only Chat Completions can express these fields of a Chat request."""
        if not chat_fields:
            return False
        try:
            to_responses_params(chat_fields, self.name)
        except UnsupportedByUpstream:
            return True
        return False

    def _provider(self, call: ModelCall) -> ResponsesProvider | ChatProvider:
        return self.chat if self.needs_chat(call.chat_fields) else self.responses

    def check(self, call: ModelCall) -> None:
        """Raise for what neither API can express."""
        self._provider(call).check(call)

    def state_use(self, model: str, chat_fields: Fields) -> StateUse | None:
        """Return how the server stores state; a request for Chat Completions has none."""
        if self.needs_chat(chat_fields):
            return None
        return self.responses.state_use(model, chat_fields)

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        return await self._provider(call).answer(call)

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Write the answer's events as they arrive."""
        return await self._provider(call).stream(call, sink)

    def wire_body(self, call: ModelCall) -> bytes | None:
        """Return the body of a call."""
        return self._provider(call).wire_body(call)

    async def models(self) -> list[dict[str, Any]]:
        """Return the models of the server."""
        return await self.responses.models()

    async def close(self) -> None:
        """Do nothing: the router closes the connections."""


class UndetectedProvider:
    """A server that has not told what it speaks; it is asked before its first call.

    As long as it does not tell, Responses is tried first, and Chat Completions where the server has
    nothing there. The first answer decides, until the server does not have what it had.
    """

    def __init__(self, both: BothApisProvider, settle: "Settle") -> None:
        self._both = both
        self.upstream = both.upstream
        self.name = both.name
        self.found: FoundApis | None = None
        """What the server told last."""
        self.settled: ServerProvider | None = None
        """The provider for what the server speaks, once that is known."""
        self._settle = settle
        self._asking: asyncio.Task[None] | None = None
        self._quiet_until = 0.0
        self._settled_at = 0.0
        self.upstream.on_not_found = self._doubt

    async def detect(self) -> None:
        """Ask the server, in bounded time; it never fails, and callers at one time share it."""
        if self.settled is not None or time.monotonic() < self._quiet_until:
            return
        await self.ask()
        if self.found is not None and self.found.has_hung:
            # Only an answer that nobody has to wait for may be asked for at every turn.
            self._quiet_until = time.monotonic() + RETRY_SECONDS

    async def ask(self) -> None:
        """Ask the server, whether or not it was asked a moment ago."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="holdfast-detect-api")
        await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        try:
            found = await detect_apis(self.upstream)
        finally:
            self._asking = None
        if self.settled is None:
            self.found = found
            if found.is_known:
                self._become(_provider_for(self._both, found), found)

    def _become(self, provider: "ServerProvider", found: FoundApis) -> None:
        if self.settled is None:
            self.settled, self.found = provider, found
            self._settled_at = time.monotonic()
            self.upstream.base = found.base
            self._settle(self, provider)

    def _doubt(self, failure: ProviderFailure) -> None:
        """Ask again before the next call if the server may have changed.

        An error of its API may be about anything, such as an unknown model: it counts only for an
        answer that is not new.
        """
        settled, is_new = self.settled, time.monotonic() - self._settled_at < RETRY_SECONDS
        if settled is None or (is_new and not failure.is_missing_path):
            return
        self.settled, self._quiet_until = None, 0.0
        self._settle(settled, self)

    # ── the port, until the server has told ─────────────────────────────────────────────────

    @property
    def _current(self) -> "ServerProvider":
        return self.settled or self._both

    def needs_chat(self, chat_fields: Fields) -> bool:
        """Return whether a request goes to Chat Completions."""
        current = self._current
        if isinstance(current, BothApisProvider):
            return current.needs_chat(chat_fields)
        return isinstance(current, ChatProvider)

    def check(self, call: ModelCall) -> None:
        """Raise for what the server cannot express, as far as that is known."""
        self._current.check(call)

    def state_use(self, model: str, chat_fields: Fields) -> StateUse | None:
        """Return how the server stores state."""
        state_use = self._current.state_use
        return state_use(model, chat_fields) if state_use is not None else None

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        return await self._call(call, lambda provider: provider.answer(call))

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Write the answer's events as they arrive."""
        return await self._call(call, lambda provider: provider.stream(call, sink))

    async def _call(self, call: ModelCall, send: Callable[[Provider], Awaitable[Answer]]) -> Answer:
        await self.detect()
        if self.settled is not None or self._both.needs_chat(call.chat_fields):
            return await send(self._current)
        try:
            answer = await send(self._both.responses)
        except ProviderFailure as failure:
            if not failure.is_missing_path:
                raise
            answer = await send(self._both.chat)
            found = FoundApis(base=self.upstream.base, responses="absent", chat="present")
        else:
            found = FoundApis(base=self.upstream.base, responses="present", chat="unknown")
        self._become(_provider_for(self._both, found), found)
        return answer

    def wire_body(self, call: ModelCall) -> bytes | None:
        """Return the body of a call."""
        current = self._current
        assert not isinstance(current, UndetectedProvider)
        return current.wire_body(call)

    async def models(self) -> list[dict[str, Any]]:
        """Return the models of the server."""
        await self.detect()
        return await self._both.models()

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()


ServerProvider = ResponsesProvider | ChatProvider | BothApisProvider | UndetectedProvider
Settle = Callable[[ServerProvider, ServerProvider], None]
"""Is told which provider takes the place of another, as its server's API gets known or changes."""


def _provider_for(both: BothApisProvider, found: FoundApis) -> ServerProvider:
    """Return the provider for what a server has."""
    if found.responses == found.chat == "present":
        return both
    if found.responses == "present" or found.chat == "absent":
        both.responses.remedy = _remedies(HAS_NO_CHAT if found.chat == "absent" else SET_BOTH)
        return both.responses
    return both.chat
