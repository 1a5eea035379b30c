"""Facts that a follower of the log writes to the outbox."""

import json
from typing import Any

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.transaction.commands import Hide, QueueFacts
from holdfast.ports.outbox import OutboxQuery
from holdfast.ports.store import Store
from holdfast.webhooks.feed import WebhookFeed
from holdfast.webhooks.settings import WebhookSettings
from tests.in_process import RunningGateway, open_gateway

SETTINGS = WebhookSettings(
    name="crm", url="https://example.com/hooks", events=("turn.completed",), secret_env="HOOK",
    content=True,
)  # fmt: skip


class _ErasingStore:
    """A store in which a question is erased right before facts that contain it are written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.erasures = 0

    async def submit(self, command: Any) -> Any:
        if isinstance(command, QueueFacts) and command.facts and not self.erasures:
            self.erasures += 1
            view = await self._store.read.session(DEFAULT_TENANT, key=Key("k"))
            assert view is not None
            await self._store.submit(
                Hide(
                    tenant=DEFAULT_TENANT, session_id=view.session.id, from_seq=1, to_seq=1,
                    erase=True,
                )
            )  # fmt: skip
        return await self._store.submit(command)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def _facts(gateway: RunningGateway) -> list[Any]:
    query = OutboxQuery(channel=SETTINGS.channel)
    rows = await gateway.engine.store.channels.messages(None, query)
    return [json.loads(row.text)["data"] for row in rows]


async def test_text_that_is_erased_before_its_fact_is_written_is_not_sent(
    any_store_url: str,
) -> None:
    stores: list[_ErasingStore] = []

    def wrap(store: Store) -> Any:
        stores.append(_ErasingStore(store))
        return stores[0]

    async with open_gateway(store_url=any_store_url, wrap=wrap) as gateway:
        feed = WebhookFeed(gateway.engine, (SETTINGS,), lambda: None)
        while await feed.step(DEFAULT_TENANT):
            pass
        await gateway.chat([{"role": "user", "content": "my secret"}], "k")
        while await feed.step(DEFAULT_TENANT):
            pass
        assert stores[0].erasures == 1
        [fact] = await _facts(gateway)
        assert "my secret" not in fact["input_text"]
        assert fact["output_text"] == "re:my secret", "the answer was not erased"
