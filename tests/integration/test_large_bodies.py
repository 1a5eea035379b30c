"""Large bodies are recognised when they come again, and large contexts are shown whole."""

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.projection.growing_list import LargePrefix
from holdfast.http.request import submit_turn
from holdfast.http.server.types import Request
from holdfast.stores.sql.store import SqlStore
from tests.in_process import open_gateway
from tests.integration.upstream_gateway import open_upstream_gateway, text_of


async def test_a_large_body_that_comes_again_is_recognised_by_its_hash() -> None:
    text = "x" * (2 * submit_turn.INLINE_HASH_BYTES)
    headers = {"Idempotency-Key": "once"}
    async with open_upstream_gateway() as gateway:
        first = await gateway.respond(text, headers=headers)
        again = await gateway.respond(text, headers=headers)
        other = await gateway.post("/v1/responses", input=text + "y", headers=headers)
        assert (first["id"], text_of(first)) == (again["id"], text_of(again))
        assert other.status_code in (409, 422)


async def test_the_hash_of_a_dropped_body_stays_known() -> None:
    request = Request("POST", "/v1/responses", b"", [])
    body = b"x" * (2 * submit_turn.INLINE_HASH_BYTES)
    request.content, request.is_read = body, True
    expected = submit_turn.hash_request(request)
    assert await submit_turn._hash_and_drop(request) == expected
    assert request.content == b""
    assert await submit_turn._hash_and_drop(request) == expected


async def test_a_context_that_is_too_large_to_be_kept_is_shown_whole() -> None:
    texts = [f"{number}" + "x" * 2000 for number in range(6)]
    async with open_gateway() as gateway:
        store = gateway.engine.store
        assert isinstance(store, SqlStore)
        store.limit_cache(10_000)
        messages = [{"role": "user", "content": text} for text in texts]
        assert (await gateway.respond(messages)).status_code == 200
        assert (await gateway.respond("and?")).status_code == 200
        found = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
        assert found is not None
        assert type(await gateway.engine.read.context(found.session)) is LargePrefix
        first, second = gateway.model.shown
        assert first == texts
        assert second == [*texts, f"re:{texts[-1]}", "and?"]
