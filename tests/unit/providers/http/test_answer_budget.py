"""Answers of all upstreams together are bounded while they arrive."""

import asyncio

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.providers.http.answer_budget import (
    ANSWERS,
    MAX_HELD_BYTES,
    STEP_BYTES,
    AnswerBudget,
    HeldAnswer,
)
from holdfast.providers.http.client import HttpRequest
from tests.unit.providers.http.raw_server import RawConnection
from tests.unit.providers.http.test_client import connected
from tests.unit.providers.http.test_limits import SECONDS


def test_a_small_answer_is_not_counted() -> None:
    budget = AnswerBudget(STEP_BYTES)
    HeldAnswer(budget).grow(STEP_BYTES)
    assert budget.held_bytes == 0


def test_a_large_answer_is_counted_until_it_is_closed() -> None:
    budget = AnswerBudget(4 * STEP_BYTES)
    held = HeldAnswer(budget)
    held.grow(3 * STEP_BYTES)
    assert budget.held_bytes == 2 * STEP_BYTES
    held.close()
    held.close()
    assert budget.held_bytes == 0


def test_the_answer_that_exceeds_the_bound_fails() -> None:
    budget = AnswerBudget(4 * STEP_BYTES)
    first, second = HeldAnswer(budget), HeldAnswer(budget)
    first.grow(4 * STEP_BYTES)
    with pytest.raises(ProviderFailure) as failed:
        second.grow(4 * STEP_BYTES)
    assert (failed.value.provider_code, failed.value.status) == ("upstream_answers_too_large", 503)
    second.close()
    first.close()
    assert budget.held_bytes == 0


async def test_two_large_answers_at_a_time_share_the_bound() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    is_counted, goes_on = asyncio.Event(), asyncio.Event()

    async def answer(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(head)
        for _ in range(MAX_HELD_BYTES * 5 // 8 // STEP_BYTES):
            await connection.say(b"data: " + b"x" * STEP_BYTES + b"\n\n")
        if connection.number == 0:
            is_counted.set()
            await goes_on.wait()

    async with asyncio.timeout(SECONDS), connected(answer) as (client, server):

        async def read() -> None:
            async with client.exchange(HttpRequest(method="GET", url=server.url)) as reply:
                await reply.read()

        first = asyncio.create_task(read())
        await is_counted.wait()
        with pytest.raises(ProviderFailure) as failed:
            await read()
        assert failed.value.provider_code == "upstream_answers_too_large"
        goes_on.set()
        await first
    assert ANSWERS.held_bytes == 0
