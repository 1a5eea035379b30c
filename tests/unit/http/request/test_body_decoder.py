"""Large bodies: limited before they are decoded, decoded outside the event loop, bounded in sum."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.http.request import body_decoder, decoding
from holdfast.http.request.body_decoder import BodyDecoder
from holdfast.http.server import memory_budget
from holdfast.http.server.errors import TooManyItems
from holdfast.http.server.memory_budget import (
    Holding,
    MemoryBudget,
    ServerBusy,
    ShareExceeded,
)
from holdfast.http.server.types import ClientDisconnected, Request
from tests.in_process import RunningGateway, open_gateway

JSON_TYPE = [(b"content-type", b"application/json")]


def _request(body: Any) -> Request:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request("POST", "/v1/responses", b"", JSON_TYPE).with_body(content)


@pytest.fixture
async def decoder() -> AsyncIterator[BodyDecoder]:
    """A decoder with a limit of 100 items."""
    decoder = BodyDecoder(100)
    yield decoder
    await decoder.close()


BODIES: dict[str, list[Any]] = {
    "responses": [
        {"model": "m", "input": "hällo"},
        {"model": "m", "input": None, "x": [1, {"y": 2}]},
        {"model": "m"},
        {"model": "m", "input": [{"role": "user", "content": f'{n} \\ " {{'} for n in range(100)]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
        {"input": [{"role": "nobody", "content": "x"}]},
        {"input": {"a": 1}},
        {"input": [7]},
        {"input": [{"role": "user"}] * 101},
        b'{"input": [',
        b"[]",
        b'{"input": "\xff"}',
    ],
    "chat": [
        {"model": "m", "messages": [{"role": "user", "content": "hällo"}]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": []},
        {"messages": "x"},
        {"messages": [7]},
        {"messages": [{"role": "user", "content": "x"}] * 101},
        {},
    ],
    "items": [
        {"items": [{"role": "user", "content": "x"}], "metadata": {"a": "b"}},
        {"items": None},
        {},
        {"items": [{"role": "user", "content": "x"}] * 21},
        {"items": [{"role": 7}]},
    ],
}


@pytest.mark.parametrize(
    ("kind", "body"), [(kind, body) for kind, bodies in BODIES.items() for body in bodies], ids=str
)
async def test_the_worker_decodes_as_the_server_does(
    decoder: BodyDecoder, kind: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def outcome() -> Any:
        try:
            if kind == "items":
                return await decoder.items(_request(body), 20)
            return await getattr(decoder, kind)(_request(body))
        except HoldfastError as exc:
            return type(exc), exc.message, exc.param

    def readable(result: Any) -> Any:
        if isinstance(result[0], dict):
            return ({name: bytes(raw) for name, raw in result[0].items()}, *result[1:])
        return result

    inline = readable(await outcome())
    monkeypatch.setattr(body_decoder, "SMALL_BYTES", -1)
    monkeypatch.setattr(body_decoder, "WORKER_BYTES", -1)
    assert readable(await outcome()) == inline


HISTORIES: list[tuple[str, list[Any]]] = [
    ("chat", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
    ("chat", [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]),
    (
        "chat",
        [
            {"role": "assistant", "tool_calls": [{"id": "d", "type": "custom",
             "custom": {"name": "g", "input": "x"}}]},
            {"role": "tool", "content": "e", "tool_call_id": "d"},
        ],
    ),
    ("responses", [{"role": "user", "content": "a"}, {"type": "reasoning", "summary": []}]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "entries"), HISTORIES, ids=str)
async def test_a_history_is_decoded_to_the_same_items_again(
    decoder: BodyDecoder, kind: str, entries: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"chat": "messages", "responses": "input"}[kind]
    decode = getattr(decoder, kind)
    first = await decode(_request({name: entries}))

    def forbidden(*_: Any) -> Any:
        raise AssertionError("a known entry was decoded again")

    monkeypatch.setattr(body_decoder, "decode_entry", forbidden)
    assert await decode(_request({name: entries})) == first
    # The same JSON means something else in the other API.
    other = "responses" if kind == "chat" else "chat"
    elsewhere = _request({"input" if kind == "chat" else "messages": entries})
    with pytest.raises(AssertionError):
        await getattr(decoder, other)(elsewhere)


async def test_known_entries_are_bounded_in_memory(
    decoder: BodyDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {"role": "user", "content": "x" * body_decoder.CACHED_ENTRY_BYTES}
    for number in range(100):
        texts = [{"role": "user", "content": f"{number} {'y' * 4000} {n}"} for n in range(50)]
        await decoder.responses(_request({"input": [*texts, long]}))
        known = decoder._known["responses"]
        assert known.held <= body_decoder.CACHED_BYTES
        assert json.dumps(long).encode() not in known
        assert json.dumps(texts[-1]).encode() in known


async def test_a_large_body_leaves_the_known_entries_of_others(decoder: BodyDecoder) -> None:
    known = decoder._known["responses"]
    await decoder.responses(
        _request({"input": [{"role": "user", "content": "a"}, {"role": "user"}]})
    )
    before = list(known)
    assert before
    text = "x" * 4000
    count = body_decoder.CACHED_BODY_BYTES // len(text)
    large = [{"role": "user", "content": f"{n} {text}"} for n in range(count)]
    big_decoder = BodyDecoder(2 * count)
    big_decoder._known = decoder._known
    await big_decoder.responses(_request({"input": large}))
    assert list(known) == before
    await big_decoder.close()


async def test_every_item_of_a_known_entry_counts(decoder: BodyDecoder) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call] * 50}
    await decoder.chat(_request({"messages": [calls, {"role": "user", "content": "a"}]}))
    assert decoder._known["chat"].held > 50 * body_decoder.CACHE_OVERHEAD


async def test_an_invalid_entry_is_rejected_each_time(decoder: BodyDecoder) -> None:
    entries = [{"role": "user", "content": "a"}, {"role": "nobody", "content": "b"}]
    for index in (1, 0):
        with pytest.raises(InvalidInput, match=rf"input\[{index}\]"):
            await decoder.responses(_request({"input": entries}))
        entries.reverse()


async def test_too_many_values_are_rejected_without_being_decoded(decoder: BodyDecoder) -> None:
    nested = b'{"input":[{"role":"user","content":[' + b"{}," * decoding.MAX_VALUES + b"{}]}]}"
    with pytest.raises(TooManyItems):
        await decoder.responses(_request(nested))
    commas = {"input": [{"role": "user", "content": "," * (decoding.MAX_VALUES + 1)}]}
    _, items = await decoder.responses(_request(commas))
    assert len(items) == 1


async def test_a_worker_that_dies_costs_one_request(
    decoder: BodyDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_decoder, "SMALL_BYTES", -1)
    monkeypatch.setattr(body_decoder, "WORKER_BYTES", -1)
    large = _request({"input": [{"role": "user", "content": "x" * 8_000_000}]})
    await decoder.responses(large)
    process = decoder._worker._process
    assert process is not None
    decoding_body = asyncio.create_task(decoder.responses(large))
    await asyncio.sleep(0)
    process.kill()
    with pytest.raises(ServerBusy):
        await decoding_body
    _, items = await decoder.responses(large)
    assert len(items) == 1


async def _send(gateway: RunningGateway, count: int, api: str) -> Any:
    items = [{"role": "user", "content": "x"} for _ in range(count)]
    if api == "chat":
        return await gateway.chat(items)
    return await gateway.respond(items)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_more_items_than_allowed_are_413_and_nothing_is_stored(api: str) -> None:
    async with open_gateway() as gateway:
        reply = await _send(gateway, 20_001, api)
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "too_many_items"
        assert (await gateway.client.get("/v1/sessions")).json()["data"] == []
        assert (await _send(gateway, 20, api)).status_code == 200


async def test_other_requests_are_answered_while_a_large_body_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, entered = asyncio.Event(), asyncio.Event()
    exchange = body_decoder.DecodeWorker._exchange

    async def held(*arguments: Any) -> Any:
        entered.set()
        await gate.wait()
        return await exchange(*arguments)

    monkeypatch.setattr(body_decoder.DecodeWorker, "_exchange", held)
    async with open_gateway() as gateway:
        text = "x" * (body_decoder.WORKER_BYTES + 1)
        sending = asyncio.create_task(gateway.respond(text))
        await entered.wait()
        assert (await gateway.client.get("/healthz")).status_code == 200
        assert (await gateway.respond("hi", "other")).status_code == 200
        gate.set()
        assert (await sending).status_code == 200
        assert await gateway.log() == [text, f"re:{text}"]


# ── bytes in flight ─────────────────────────────────────────────────────────────────────────


async def test_bodies_of_one_party_wait_for_the_oldest() -> None:
    budget = MemoryBudget(400)
    order: list[str] = []
    oldest, second, third = (budget.open("a") for _ in range(3))
    assert oldest.try_grow(40)
    assert second.try_grow(60)

    async def grow(name: str, holding: Holding, size: int) -> None:
        await holding.grow(size)
        order.append(name)

    tasks = [
        asyncio.create_task(grow(*entry))
        for entry in (("third", third, 10), ("second", second, 200))
    ]
    await asyncio.sleep(0)
    # The share is used up: only the oldest body may go on, so that it can end.
    assert oldest.try_grow(100)
    assert order == []
    oldest.finish(100)
    await asyncio.sleep(0)
    assert not third.size
    oldest.close()
    second.finish(200)
    await asyncio.gather(*tasks)
    assert order == ["second", "third"]
    second.close()
    third.close()
    assert not budget.held_bytes


async def test_a_quarter_of_the_memory_stays_free_for_others() -> None:
    budget = MemoryBudget(400)
    greedy, modest = budget.open("a"), budget.open("b")
    assert greedy.try_grow(10_000)
    assert greedy.size == 300
    greedy.finish(10_000)
    assert not budget.open("a").try_grow(1)
    assert modest.try_grow(100)
    assert not budget.open("c").try_grow(1)
    modest.close()
    assert budget.open("c").try_grow(100)


@pytest.mark.parametrize(("held_by_others", "error"), [(0, ShareExceeded), (300, ServerBusy)])
async def test_who_waits_too_long_is_told_whose_memory_is_used_up(
    monkeypatch: pytest.MonkeyPatch, held_by_others: int, error: type[HoldfastError]
) -> None:
    monkeypatch.setattr(memory_budget, "WAIT_SECONDS", 0.01)
    budget = MemoryBudget(400)
    assert budget.open("b").try_grow(held_by_others)
    first, second = budget.open("a"), budget.open("a")
    assert first.try_grow(100)
    with pytest.raises(error):
        await second.grow(10)
    first.close()
    await second.grow(10)


async def test_who_stops_waiting_lets_the_next_one_in() -> None:
    budget = MemoryBudget(100)
    assert budget.open("a").try_grow(75)
    first, second = budget.open("b"), budget.open("c")
    tasks = [asyncio.create_task(held.grow(size)) for held, size in ((first, 75), (second, 25))]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await tasks[1]
    assert second.size == 25
    first.close()
    assert budget.held_bytes == 100


async def test_a_client_that_left_does_not_wait_on() -> None:
    budget = MemoryBudget(100)
    assert budget.open("a").try_grow(75)
    request = Request("POST", "/", b"", [])
    held = budget.open("b")
    waiting = asyncio.create_task(request.wait_for(held, 75))
    await asyncio.sleep(0)
    assert request.on_disconnected is not None
    request.on_disconnected()
    with pytest.raises(ClientDisconnected):
        await waiting


async def test_a_server_without_memory_for_bodies_rejects_and_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_budget, "WAIT_SECONDS", 0.01)
    async with open_gateway() as gateway:
        gateway.application.body_budget = MemoryBudget(150_000)
        gateway.model.gate.clear()
        body = json.dumps({"model": "scripted", "input": "x" * 100_000, "store": False}).encode()
        headers = {"content-type": "application/json"}

        async def chunks() -> AsyncIterator[bytes]:
            yield body[:50_000]
            yield body[50_000:]

        # An unstored request holds its body until it is answered.
        first = asyncio.create_task(
            gateway.client.post("/v1/responses", content=body, headers=headers)
        )
        await gateway.model.entered.acquire()
        for content in (body, chunks()):
            busy = await gateway.client.post("/v1/responses", content=content, headers=headers)
            assert busy.status_code == 503
            assert busy.json()["error"]["code"] == "server_busy"
            assert busy.headers["retry-after"]
        gateway.model.gate.set()
        assert (await first).status_code == 200
        again = await gateway.client.post("/v1/responses", content=body, headers=headers)
        assert again.status_code == 200


async def test_an_accepted_turn_releases_its_body() -> None:
    async with open_gateway() as gateway:
        gateway.application.body_budget = budget = MemoryBudget(150_000)
        gateway.model.gate.clear()
        running = asyncio.create_task(gateway.respond("x" * 100_000))
        await gateway.model.entered.acquire()
        assert not budget.held_bytes
        gateway.model.gate.set()
        assert (await running).status_code == 200


def test_an_invalid_item_names_its_place() -> None:
    body = b'{"input":[{"role":"user","content":"x"},{"role":"nobody"}]}'
    with pytest.raises(InvalidInput, match=r"input\[1\]"):
        decoding.decode_body("responses", body, 10)
