"""Stored chat completions, used through the official client."""

from typing import Any

import openai
import pytest

from tests.in_process import RunningGateway, open_gateway


def _client(gateway: RunningGateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.server.url}/v1", api_key="none", max_retries=0)


async def _ask(client: openai.AsyncOpenAI, text: str, **more: Any) -> str:
    made = await client.chat.completions.create(
        model="scripted",
        messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": text}],
        **more,
    )
    return str(made.id)


async def test_a_stored_completion_can_be_read_annotated_and_deleted() -> None:
    async with open_gateway() as gateway, _client(gateway) as client:
        name = await _ask(client, "hi", store=True, metadata={"a": "1"})
        kept = await client.chat.completions.retrieve(name)
        assert kept.choices[0].message.content == "re:hi"
        assert kept.metadata == {"a": "1"}
        noted = await client.chat.completions.update(name, metadata={"b": "2"})
        assert noted.metadata == {"b": "2"}
        messages = [m async for m in client.chat.completions.messages.list(name)]
        assert [(m.role, m.content) for m in messages][-1] == ("user", "hi")
        gone = await client.chat.completions.delete(name)
        assert gone.deleted is True
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.retrieve(name)


async def test_unstored_completions_are_not_listed() -> None:
    async with open_gateway() as gateway, _client(gateway) as client:
        headers = {"X-Session-Key": "k"}
        name = await _ask(client, "hi", extra_headers=headers)
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.retrieve(name)
        assert [c async for c in client.chat.completions.list()] == []


async def test_lists_of_completions_are_paged_and_filtered() -> None:
    async with open_gateway() as gateway, _client(gateway) as client:
        names = [
            await _ask(client, str(n), store=True, metadata={"even": str(n % 2 == 0)})
            for n in range(5)
        ]
        listed = [c.id async for c in client.chat.completions.list(limit=2)]
        assert listed == names
        newest = [c.id async for c in client.chat.completions.list(limit=2, order="desc")]
        assert newest == names[::-1]
        even = [c.id async for c in client.chat.completions.list(metadata={"even": "True"})]
        assert even == names[::2]
        none = [c.id async for c in client.chat.completions.list(model="other")]
        assert none == []


async def test_unknown_completion_ids_and_cursors_are_rejected() -> None:
    async with open_gateway() as gateway:
        for path in ("chatcmpl-x", "resp_1", "chatcmpl-", "..", "chatcmpl-a_9999999"):
            reply = await gateway.client.get(f"/v1/chat/completions/{path}")
            assert reply.status_code == 404, path
        cursor = await gateway.client.get("/v1/chat/completions", params={"after": "nobody"})
        assert cursor.status_code == 400
        assert cursor.json()["error"]["code"] == "unknown_cursor"
