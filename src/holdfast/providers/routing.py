"""Which upstream serves a model: the first whose patterns match; the demo where there is none."""

import asyncio
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from holdfast.core.errors import ModelNotFound, ProviderFailure
from holdfast.ports.provider import Listing, Provider, Relayed, RelayRequest, Unavailable
from holdfast.ports.request_context import note_route
from holdfast.providers.demo import DemoProvider
from holdfast.providers.http.client import PooledClient
from holdfast.providers.http.relay import open_relay
from holdfast.providers.http.upstream import Upstream
from holdfast.providers.items.ids import NewId
from holdfast.providers.openai_chat.adapter import ChatProvider
from holdfast.providers.openai_responses.adapter import ResponsesProvider
from holdfast.providers.settings import UpstreamApi, UpstreamSettings, is_name

Model = dict[str, Any]
MOST_MODELS = 1024


class Upstreams:
    """All upstreams of a gateway, in the order in which they are asked."""

    def __init__(self, settings: Sequence[UpstreamSettings], new_id: NewId) -> None:
        self._clients: list[PooledClient] = []
        self._lines: list[Upstream] = []
        self._routes: list[tuple[UpstreamSettings, Provider]] = []
        for one in settings:
            client = PooledClient(one.timeouts)
            self._clients.append(client)
            line = Upstream(one, client)
            self._lines.append(line)
            self._routes.append((one, _provider(line, new_id)))
        self._demo = None if self._routes else DemoProvider(new_id)
        self._found: dict[str, tuple[UpstreamSettings, Provider] | None] = {}
        """Who serves the models that were asked for."""

    def provider(self, model: str) -> Provider:
        """Return who serves a model."""
        if self._demo is not None:
            note_route(model, self._demo.name)
            return self._demo
        found = self._found[model] if model in self._found else self._find(model)
        if found is None:
            raise ModelNotFound(f"The model '{model}' does not exist: no upstream serves it.")
        note_route(model, found[0].name)
        return found[1]

    def _find(self, model: str) -> tuple[UpstreamSettings, Provider] | None:
        """Return the first upstream whose patterns match."""
        if model in self._found:
            return self._found[model]
        if len(self._found) >= MOST_MODELS:
            self._found.clear()
        serving = (one for one in self._routes if _serves(one[0], model))
        found = self._found[model] = next(serving, None)
        return found

    def fallbacks(self, model: str) -> tuple[str, ...]:
        """Return the models that may be asked where this one's server fails, in order."""
        found = self._find(model)
        return found[0].fallback if found else ()

    def context_tokens(self, model: str) -> int | None:
        """Return the context window of a model, where its upstream's settings say it."""
        found = self._find(model)
        return found[0].context_tokens if found else None

    def speaks(self, model: str) -> UpstreamApi | None:
        """Return the API in which the model's upstream is asked."""
        found = self._find(model)
        return found[0].api if found else None

    async def relay(self, request: RelayRequest) -> Relayed | None:
        """Pass a request on as it came."""
        model = request.model
        serving = (line for line in self._lines if model and _serves(line.settings, model))
        line = next(serving, self._lines[0] if self._lines else None)
        return await open_relay(line, request) if line is not None else None

    async def models(self) -> Listing:
        """Return every model that can be asked for, each from the upstream that serves it.

        An upstream that cannot be asked now is named, with those of its models that its settings
        name; where none can be asked, that is a failure.
        """
        if self._demo is not None:
            return Listing(await self._demo.models())
        asked = [_ask(provider) for _, provider in self._routes]
        listed: dict[str, Model] = {}
        failures: list[tuple[str, ProviderFailure]] = []
        for (settings, provider), answer in zip(
            self._routes, await asyncio.gather(*asked), strict=True
        ):
            if isinstance(answer, ProviderFailure):
                failures.append((settings.name, answer))
            known = _configured(settings) if isinstance(answer, ProviderFailure) else answer
            for model in known:
                if self._serving(model["id"]) is provider:
                    listed.setdefault(model["id"], model)
        if len(failures) == len(self._routes):
            raise _nobody_answers(failures)
        return Listing(
            list(listed.values()), [Unavailable(name, one.message) for name, one in failures]
        )

    def _serving(self, model: str) -> Provider | None:
        try:
            return self.provider(model)
        except ModelNotFound:
            return None

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients:
            await client.close()


def _serves(settings: UpstreamSettings, model: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in settings.models)


async def _ask(provider: Provider) -> list[Model] | ProviderFailure:
    try:
        return await provider.models()
    except ProviderFailure as failure:
        return failure


def _configured(settings: UpstreamSettings) -> list[Model]:
    """Return the models that an upstream's settings name in full."""
    return [
        {"id": name, "object": "model", "created": 0, "owned_by": settings.name}
        for name in settings.models
        if is_name(name)
    ]


def _nobody_answers(failures: Sequence[tuple[str, ProviderFailure]]) -> ProviderFailure:
    """Return the first failure, in the words of all."""
    first = failures[0][1]
    return ProviderFailure(
        "; ".join(f"upstream {name}: {failure.message}" for name, failure in failures),
        failure_class=first.failure_class,
        status=first.status,
        provider_code=first.provider_code,
        provider_type=first.provider_type,
        retry_after=first.retry_after,
    )


def _provider(upstream: Upstream, new_id: NewId) -> Provider:
    if upstream.settings.api == "chat":
        return ChatProvider(upstream, new_id)
    return ResponsesProvider(upstream, new_id)
