"""A response in progress: what its readers get, and what that costs."""

import asyncio
import gc
import weakref
from collections.abc import Sequence

import msgspec
import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.response import ResponseFacts
from holdfast.core.openai.stream_events import DELTA_CHARACTERS, Delta, StreamEvent
from holdfast.engine.streaming.live_response import (
    MAX_TEXT,
    MAX_UNREAD_BYTES,
    READ_BYTES,
    STALL_SECONDS,
    WINDOW_BYTES,
    LiveCursor,
    LiveResponse,
)
from holdfast.ports.provider import AnyEvent, ModelEvent
from tests.loop_clock import stopped_loop_clock


def live(
    name: str = "resp_1", *, is_stored: bool = False, is_background: bool = False, **more: bool
) -> LiveResponse:
    request = TurnRequest(
        api="responses", model="m", is_stream=True, is_stored=is_stored, is_background=is_background
    )
    facts = ResponseFacts(id=name, request=request, created_at=0.0, status="in_progress")
    return LiveResponse(facts, **more)


def delta(text: str) -> Delta:
    kind = "response.output_text.delta"
    return Delta(type=kind, item_id="msg_1", output_index=0, content_index=0, delta=text)


def test_a_delta_is_encoded_when_its_json_is_read_and_only_once() -> None:
    response = live()
    response.publish([delta("one")])
    [event] = response.after(-1, READ_BYTES)
    assert event.encoded is None
    assert event.delta is not None
    value = msgspec.json.decode(event.body)
    assert (value["delta"], value["sequence_number"]) == ("one", 0)
    assert event.body is event.body


@pytest.mark.parametrize("is_plain", [False, True])
def test_an_answer_with_too_much_text_fails(is_plain: bool) -> None:
    response, text = live(), "x" * (1 << 20)
    data = {"type": "response.output_text.delta", "output_index": 0, "delta": text}

    def piece() -> AnyEvent:
        return delta(text) if is_plain else ModelEvent(str(data["type"]), data)

    fitting = MAX_TEXT // len(text) - 1
    for _ in range(fitting):
        response.publish([piece()])
    with pytest.raises(ProviderFailure, match="exceeds 16777216 characters") as caught:
        response.publish([piece(), piece()])
    assert caught.value.provider_code == "upstream_answer_too_long"
    image = {"type": "response.output_item.done", "output_index": 0, "item": {"result": text}}
    for _ in range(2 * fitting):
        response.publish([ModelEvent("response.output_item.done", image)])


def test_what_nobody_reads_of_a_stream_without_a_journal_is_never_encoded() -> None:
    response = live()
    response.open("in_progress")
    response.start()
    response.publish([delta("one")])
    assert response.uncommitted() is None
    response.end(msgspec.structs.replace(response.facts, status="completed"))
    events = response.after(-1, READ_BYTES)
    assert [event.number for event in events] == [0, 1, 2, 3]
    assert [event.encoded for event in events] == [None] * 4
    assert all(event.size for event in events)


def test_a_journal_has_the_json_that_readers_got() -> None:
    response = live(is_stored=True)
    response.publish([delta("one"), delta("two")])
    events = [*response.after(-1, READ_BYTES)]
    batch = response.uncommitted()
    assert batch is not None
    assert (batch.first, batch.last) == (0, 1)
    assert all(event.encoded is not None for event in events)


def test_events_in_the_background_are_visible_only_once_they_are_stored() -> None:
    response = live(is_stored=True, is_background=True)
    response.open("queued")
    accepted = [event.number for event in response.after(-1, READ_BYTES)]
    response.start()
    response.publish([delta("one")])
    assert [event.number for event in response.after(-1, READ_BYTES)] == accepted == [0, 1]
    response.mark_committed(response.uncommitted())
    assert [event.number for event in response.after(-1, READ_BYTES)] == [0, 1, 2, 3]


async def test_a_reader_that_waits_is_pushed_what_follows_its_position() -> None:
    response, pushed = live(), list[str]()

    def push(events: Sequence[StreamEvent]) -> bool:
        pushed.extend(event.delta.delta for event in events if event.delta is not None)
        return len(pushed) < 3

    cursor = LiveCursor(response)
    reading = asyncio.create_task(cursor.read(60.0, push))
    await asyncio.sleep(0)
    response.publish([delta("one")])
    response.publish([delta("two")])
    assert (pushed, cursor.position) == (["one", "two"], 1)
    response.publish([delta("three")])  # refused: the reader has to fetch it
    events = await reading
    assert events is not None
    assert [event.number for event in events] == [2]


async def test_a_push_that_fails_is_raised_to_its_reader_and_not_to_the_run() -> None:
    response = live()

    def push(_: Sequence[StreamEvent]) -> bool:
        raise ConnectionError("gone")

    reading = asyncio.create_task(LiveCursor(response).read(60.0, push))
    await asyncio.sleep(0)
    assert response.publish([delta("one")]) > 0
    with pytest.raises(ConnectionError, match="gone"):
        await reading


async def test_a_cursor_that_fell_behind_memory_gets_nothing() -> None:
    with stopped_loop_clock() as clock:
        response = live()
        cursor = LiveCursor(response)
        text = "x" * (WINDOW_BYTES // 4)
        for _ in range(8):
            response.publish([delta(text)])
        clock.advance(2 * STALL_SECONDS)
        for _ in range(8):
            response.publish([delta(text)])
        assert cursor.is_behind
        assert await cursor.read(60.0) is None
        assert response.held_bytes <= 2 * WINDOW_BYTES


async def test_events_stay_until_every_reader_that_keeps_up_has_them() -> None:
    response, text = live(), "x" * (WINDOW_BYTES // 4)
    quick, slow = LiveCursor(response), LiveCursor(response)
    with stopped_loop_clock():
        for _ in range(16):
            response.publish([delta(text)])
            assert await quick.read(60.0)
        assert response.first_held == 0
        taken = 0
        while taken < 16 * len(text):
            events = await slow.read(60.0)
            assert events
            taken += sum(len(event.delta.delta) for event in events if event.delta is not None)
        response.publish([delta(text)] * 2)
        assert not slow.is_behind
        assert response.held_bytes <= WINDOW_BYTES
        held = response.held_bytes
        del slow  # a reader that is gone needs nothing
        while (events := await quick.read(60.0)) and events[-1].number + 1 < response.next_number:
            pass
        for _ in range(8):
            response.publish([delta(text)])
            assert await quick.read(60.0)
        assert response.held_bytes <= held + WINDOW_BYTES


async def test_no_reader_is_waited_for_without_a_limit() -> None:
    response, text = live(), "x" * (1 << 20)
    cursor = LiveCursor(response)
    with stopped_loop_clock():
        data = {"type": "response.image.done", "output_index": 0, "b64": text}
        for _ in range(2 * MAX_UNREAD_BYTES // len(text)):
            response.publish([ModelEvent(str(data["type"]), data)])
            assert response.held_bytes <= MAX_UNREAD_BYTES
        assert cursor.is_behind


async def test_a_long_delta_is_split_and_what_repeats_its_text_is_not_encoded() -> None:
    response, text = live(), "x" * 5 * DELTA_CHARACTERS + "y"
    done = {"type": "response.output_text.done", "output_index": 0, "text": text}
    response.publish([delta(text), ModelEvent("response.output_text.done", done)])
    response.end(msgspec.structs.replace(response.facts, status="completed"))
    events: list[StreamEvent] = []
    while found := response.after(len(events) - 1, READ_BYTES):
        events += found
    assert [event.number for event in events] == list(range(8))
    assert "".join(event.delta.delta for event in events if event.delta is not None) == text
    assert [event.encoded for event in events] == [None] * 8
    assert events[6].size < len(text), "it holds no copy of the text"
    assert msgspec.json.decode(events[6].body) == {**done, "sequence_number": 6}


async def test_an_ended_stream_is_freed_with_its_last_reader() -> None:
    response = live()
    cursor = LiveCursor(response)
    text = "x" * WINDOW_BYTES
    response.publish([delta(text), delta(text)])
    response.end(msgspec.structs.replace(response.facts, status="completed"))
    while await cursor.read(60.0):
        pass
    ended = weakref.ref(response)
    gc.disable()
    try:
        del response, cursor
        assert ended() is None
    finally:
        gc.enable()


def test_unread_events_are_kept_where_the_model_waits_for_its_reader() -> None:
    response = live(drops_unread=False)
    text = "x" * WINDOW_BYTES
    parts = WINDOW_BYTES // DELTA_CHARACTERS
    for _ in range(3):
        response.publish([delta(text)])
    assert response.first_held == 0
    response.release(2 * parts - 1)
    assert response.first_held == 2 * parts
    assert response.held_bytes < 2 * WINDOW_BYTES
    response.release(2 * parts - 1)
    assert response.first_held == 2 * parts
