"""Large bodies are recognised when they come again."""

from holdfast.http.request import submit_turn
from holdfast.http.server.types import Request
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
