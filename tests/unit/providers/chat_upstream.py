"""A Chat upstream that is never called."""

from collections.abc import Sequence

from holdfast.engine.clock import RandomIds
from holdfast.ports.provider import ModelCall
from holdfast.providers.http.client import PooledClient
from holdfast.providers.http.upstream import Upstream
from holdfast.providers.openai_chat.adapter import ChatProvider
from holdfast.providers.openai_chat.input import TranslationCache
from holdfast.providers.settings import UpstreamSettings


def check(translations: TranslationCache, items: Sequence[bytes]) -> None:
    """Check new items as before a turn is accepted."""
    upstream = Upstream(UpstreamSettings(name="u", url="http://127.0.0.1/v1"), PooledClient())
    provider = ChatProvider(upstream, RandomIds().new, translations)
    provider.check(ModelCall(model="m", items=items))
