"""A long streamed answer arrives whole, or its stream says that it does not."""

import asyncio
from pathlib import Path

import pytest

from holdfast.engine.streaming import live_response
from tests.integration.upstream_gateway import open_upstream_gateway
from tests.long_streams import Api, LongAnswer, What, long_upstream, read_stream, request_body

KB = 1024
SIZES = (1, 60, 100, 1024)
"""Sizes in KB: a short answer, the first ones beyond the window, and a file."""
PIECES = (200, 60 * KB, 1024 * KB)


@pytest.mark.parametrize("what", ["text", "arguments"])
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("upstream_api", ["chat", "responses"])
async def test_a_client_that_reads_gets_every_byte_of_a_long_answer(
    upstream_api: Api, api: Api, what: What
) -> None:
    async with (
        long_upstream() as upstream,
        open_upstream_gateway(upstream.upstream(upstream_api)) as gateway,
    ):
        body = request_body(api, what)
        for number, (size, piece) in enumerate((s, p) for s in SIZES for p in PIECES):
            answer = upstream.answer = LongAnswer(size * KB, piece, what)
            got = await read_stream(gateway.server.url, api, body, key=f"k{number}")
            assert (got.is_finished, got.error, got.is_cut) == (True, None, False), (size, piece)
            assert got.text == answer.text


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_answer_that_is_too_long_ends_its_stream_with_an_error(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_response, "MAX_TEXT", 512 * KB)
    async with (
        long_upstream() as upstream,
        open_upstream_gateway(upstream.upstream("chat")) as gateway,
    ):
        upstream.answer = LongAnswer(1024 * KB, 60 * KB)
        got = await read_stream(gateway.server.url, api, request_body(api))
        assert (got.is_finished, got.error) == (False, "upstream_answer_too_long")
        assert upstream.answer.text.startswith(got.text)
        assert got.text


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_repeat_at_another_replica_gets_every_byte_of_a_long_answer(
    api: Api, tmp_path: Path
) -> None:
    url, headers = f"sqlite:///{tmp_path / 'holdfast.db'}", {"Idempotency-Key": "once"}
    async with (
        long_upstream() as upstream,
        open_upstream_gateway(upstream.upstream("chat"), store_url=url) as first,
        open_upstream_gateway(upstream.upstream("chat"), store_url=url) as second,
    ):
        upstream.answer = LongAnswer(1024 * KB, 60 * KB)
        told = await asyncio.gather(
            *(
                read_stream(gateway.server.url, api, request_body(api), headers=headers)
                for gateway in (first, second)
            )
        )
        told.append(await read_stream(second.server.url, api, request_body(api), headers=headers))
        for got in told:
            assert (got.is_finished, got.error, got.is_cut) == (True, None, False)
            assert got.text == upstream.answer.text
        assert upstream.requests == 1
