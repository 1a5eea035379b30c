"""Route models to upstreams: the first whose patterns match, or the demo model if there is none."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.errors import ModelNotFound, ProviderFailure
from holdfast.ports.provider import (
    ModelCall,
    ModelListing,
    Provider,
    RelayRequest,
    RelayResponse,
    UnavailableUpstream,
    UpstreamStatus,
)
from holdfast.ports.request_context import note_model
from holdfast.ports.session_runtimes import FindSession
from holdfast.providers.api_choice import (
    BothApisProvider,
    ServerProvider,
    UndetectedProvider,
    open_server,
)
from holdfast.providers.demo import DemoProvider
from holdfast.providers.http.api_detection import CHAT_PATH
from holdfast.providers.http.client import PooledClient
from holdfast.providers.http.proxy import Proxy
from holdfast.providers.http.relay import open_relay
from holdfast.providers.http.transcriber import UpstreamTranscriber
from holdfast.providers.http.upstream import Upstream
from holdfast.providers.items.ids import NewId
from holdfast.providers.openai_chat.adapter import ChatProvider
from holdfast.providers.openai_chat.input import TranslationCache
from holdfast.providers.settings import UpstreamSettings, is_name

if TYPE_CHECKING:
    from holdfast.providers.cli_agents.provider import CliAgentProvider

Model = dict[str, Any]
MAX_CACHED_ROUTES = 1024


class UpstreamRouter:
    """All upstreams of a gateway, in order of precedence."""

    def __init__(self, settings: Sequence[UpstreamSettings], new_id: NewId) -> None:
        self._clients: list[PooledClient] = []
        self._upstreams: list[Upstream] = []
        self._routes: list[tuple[UpstreamSettings, Provider]] = []
        self._agents: list[CliAgentProvider] = []
        translations = TranslationCache()
        for upstream_settings in settings:
            if upstream_settings.is_agent:
                # Imported only if there is an agent, to save memory.
                from holdfast.providers.cli_agents.registry import open_agent

                agent = open_agent(upstream_settings, new_id)
                self._agents.append(agent)
                self._routes.append((upstream_settings, agent))
                continue
            proxy = upstream_settings.proxy
            client = PooledClient(
                upstream_settings.timeouts,
                proxy=Proxy.parse(proxy) if proxy is not None else None,
            )
            self._clients.append(client)
            upstream = Upstream(upstream_settings, client)
            self._upstreams.append(upstream)
            provider = open_server(upstream, new_id, translations, self._settle)
            self._routes.append((upstream_settings, provider))
        self._undetected = [
            provider for _, provider in self._routes if isinstance(provider, UndetectedProvider)
        ]
        self._report: Callable[[str], None] | None = None
        self._demo = None if self._routes else DemoProvider(new_id)
        self._find = lru_cache(MAX_CACHED_ROUTES)(self._match)
        find_provider = lru_cache(MAX_CACHED_ROUTES)(self._route)
        self._forget_routes = find_provider.cache_clear
        self.provider: Callable[[str], Provider] = find_provider
        """Return the provider of a model, or raise `ModelNotFound`."""

    def _route(self, model: str) -> Provider:
        if self._demo is not None:
            return self._demo
        upstream = self._find(model)
        if upstream is None:
            raise ModelNotFound(f"The model '{model}' does not exist: no upstream serves it.")
        return upstream[1]

    def _match(self, model: str) -> tuple[UpstreamSettings, Provider] | None:
        """Return the first upstream whose patterns match."""
        return next((route for route in self._routes if serves(route[0], model)), None)

    def fallbacks(self, model: str) -> tuple[str, ...]:
        """Return the fallback models for when this model's server fails, in order."""
        upstream = self._find(model)
        return upstream[0].fallback if upstream else ()

    def tools(self, model: str) -> tuple[str, ...]:
        """Return the gateway's tools that every request for a model uses."""
        upstream = self._find(model)
        return upstream[0].tools if upstream else ()

    def context_tokens(self, model: str) -> int | None:
        """Return the context window of a model, if its upstream's settings have one."""
        upstream = self._find(model)
        return upstream[0].context_tokens if upstream else None

    def takes_chat(self, model: str, chat_fields: Mapping[str, msgspec.Raw]) -> bool:
        """Return whether a Chat request goes to its model's upstream as a Chat request."""
        upstream = self._find(model)
        provider = upstream[1] if upstream is not None else None
        if isinstance(provider, BothApisProvider | UndetectedProvider):
            return provider.needs_chat(chat_fields)
        return isinstance(provider, ChatProvider)

    def statuses(self) -> Sequence[UpstreamStatus]:
        """Return every upstream, in order of precedence; see `Upstreams`."""
        records = {upstream.name: upstream.record for upstream in self._upstreams}
        records |= {agent.name: agent.record for agent in self._agents}
        return [
            records[settings.name].status(settings.name, settings.api, settings.models)
            for settings, _ in self._routes
        ]

    async def detect(self, report: Callable[[str], None]) -> None:
        """Find out what servers speak that have to be asked; report each in one line."""
        self._report = report
        asking = (one.ask() for one in self._undetected if one.settled is None)
        await asyncio.gather(*asking)
        for provider in self._undetected:
            if provider.settled is None:
                self._report_found(provider)

    @property
    def detected(self) -> Sequence[UndetectedProvider]:
        """The servers that have to be asked, with what each told last."""
        return self._undetected

    def _report_found(self, provider: UndetectedProvider) -> None:
        if self._report is not None and provider.found is not None:
            line = provider.found.describe(provider.upstream.configured_base)
            self._report(f"upstream {provider.name} {line}")

    def _settle(self, before: ServerProvider, after: ServerProvider) -> None:
        """Route calls to the provider for what a server speaks, as that gets known or changes."""
        self._routes = [
            (settings, after if served_by is before else served_by)
            for settings, served_by in self._routes
        ]
        self._find.cache_clear()
        self._forget_routes()
        if isinstance(before, UndetectedProvider):
            self._report_found(before)

    def wire_body(self, call: ModelCall) -> bytes | None:
        """Return the request body that the model's upstream gets for a call; see `Upstreams`."""
        upstream = self._find(call.model)
        provider = upstream[1] if upstream is not None else None
        return provider.wire_body(call) if isinstance(provider, ServerProvider) else None

    def dropped_tools(self, model: str, fields: Mapping[str, msgspec.Raw]) -> Sequence[str]:
        """Return the types of hosted tools that a request would lose at the model's upstream."""
        upstream = self._find(model)
        if upstream is None or not isinstance(upstream[1], ChatProvider):
            return ()
        return upstream[1].dropped_tools(fields)

    async def relay(self, request: RelayRequest) -> RelayResponse | None:
        """Forward a request to its model's upstream, or to the first."""
        model = request.model
        serving = (one for one in self._upstreams if model and serves(one.settings, model))
        upstream = next(serving, self._upstreams[0] if self._upstreams else None)
        if upstream is None:
            return None
        for server in self._undetected:
            # Its base URL may be another one than configured. Chat requests have asked before.
            if server.upstream is upstream and request.path != CHAT_PATH:
                await server.detect()
        note_model(model, upstream.name)
        return await open_relay(upstream, request)

    def transcriber(self, upstream: str, model: str, seconds: float) -> UpstreamTranscriber:
        """Return what transcribes recordings with a model of the named upstream."""
        server = next(candidate for candidate in self._upstreams if candidate.name == upstream)
        return UpstreamTranscriber(server, model, seconds)

    async def models(self) -> ModelListing:
        """Return the models of all upstreams, each from the upstream that serves it.

        An upstream that fails is listed as unavailable, with the models that its settings name.
        Raise if every upstream fails.
        """
        if self._demo is not None:
            return ModelListing(await self._demo.models())
        listings = [_list_models(provider) for _, provider in self._routes]
        listed: dict[str, Model] = {}
        failures: list[tuple[str, ProviderFailure]] = []
        answers = await asyncio.gather(*listings)
        # Read afterwards: listing may have told what a server speaks, and changed its route.
        for (settings, provider), answer in zip(self._routes, answers, strict=True):
            if isinstance(answer, ProviderFailure):
                failures.append((settings.name, answer))
            models = _configured(settings) if isinstance(answer, ProviderFailure) else answer
            for model in models:
                if self._serving(model["id"]) is provider:
                    listed.setdefault(model["id"], model)
        if len(failures) == len(self._routes):
            raise _joined_failure(failures)
        return ModelListing(
            list(listed.values()),
            [UnavailableUpstream(name, failure.message) for name, failure in failures],
        )

    def _serving(self, model: str) -> Provider | None:
        try:
            return self.provider(model)
        except ModelNotFound:
            return None

    async def start(self) -> None:
        """Prepare the command-line agents; raise if their settings are unsafe."""
        for agent in self._agents:
            await agent.start()

    @property
    def is_empty(self) -> bool:
        """Whether there are no command-line agents."""
        return not self._agents

    async def end_session(self, session_id: str) -> None:
        """Stop what runs for a session between its turns."""
        for agent in self._agents:
            await agent.end_session(session_id)

    def running_sessions(self) -> Collection[str]:
        """Return the sessions with a warm agent."""
        return {name for agent in self._agents for name in agent.running_sessions()}

    async def stored_sessions(self) -> Collection[str]:
        """Return the sessions with a directory of an agent."""
        return {name for agent in self._agents for name in await agent.stored_sessions()}

    async def clean_session(self, session_id: str, find: FindSession) -> None:
        """Delete what agents have stored for a session and cannot use any more."""
        for agent in self._agents:
            await agent.clean_session(session_id, find)

    async def close(self) -> None:
        """End every process and close every connection."""
        for agent in self._agents:
            await agent.close()
        for server in self._undetected:
            await server.close()
        for client in self._clients:
            await client.close()


def serves(settings: UpstreamSettings, model: str) -> bool:
    """Return whether a pattern of an upstream matches a model."""
    return any(fnmatchcase(model, pattern) for pattern in settings.models)


async def _list_models(provider: Provider) -> list[Model] | ProviderFailure:
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


def _joined_failure(failures: Sequence[tuple[str, ProviderFailure]]) -> ProviderFailure:
    """Return the first failure, with the messages of all."""
    first = failures[0][1]
    return ProviderFailure(
        "; ".join(f"upstream {name}: {failure.message}" for name, failure in failures),
        failure_class=first.failure_class,
        status=first.status,
        provider_code=first.provider_code,
        provider_type=first.provider_type,
        retry_after=first.retry_after,
    )
