"""Deltas are read and written by their fields; what they say is what any event would have said."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ProviderFailure
from holdfast.core.openai.stream_events import Delta, StreamEvent, number_event
from holdfast.core.projection.normalize import as_text
from holdfast.ports.provider import AnyEvent
from holdfast.providers.http.upstream import read_json
from holdfast.providers.items.ids import IdAllocator
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.openai_chat.output import ChatOutput
from holdfast.providers.openai_responses.output import ResponsesOutput

THEIRS = "msg_" + "0" * 20
_texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
_odd: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.just(0.5),
    _texts,
    st.just([]),
    st.just({"a": 1}),
)
_kinds = st.sampled_from(
    [
        "response.output_text.delta", "response.refusal.delta", "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta", "response.function_call_arguments.delta",
    ]
)  # fmt: skip
_logprobs = st.sampled_from([[], None, [{"token": "a", "logprob": -0.5, "top_logprobs": []}]])


@st.composite
def _deltas(draw: st.DrawFn) -> dict[str, Any]:
    """An event such as servers send, now and then with something odd in it, in any order."""
    value: dict[str, Any] = {
        "type": draw(_kinds),
        "item_id": draw(st.sampled_from([THEIRS, "msg_1", ""])),
        "output_index": draw(st.integers(0, 2)),
        "delta": draw(_texts),
    }
    optional: dict[str, st.SearchStrategy[Any]] = {
        "sequence_number": st.integers(0, 2**40),
        "content_index": st.integers(0, 2),
        "summary_index": st.integers(0, 2),
        "logprobs": _logprobs,
        "obfuscation": _texts,
    }
    for name, values in optional.items():
        if draw(st.booleans()):
            value[name] = draw(values)
    if draw(st.integers(0, 3)) == 0:
        value[draw(st.sampled_from([*value, "extra", "content_index"]))] = draw(_odd)
    if draw(st.integers(0, 9)) == 0:
        del value[draw(st.sampled_from(list(value)))]
    return {name: value[name] for name in draw(st.permutations(list(value)))}


def _written(value: Any, draw: Any) -> bytes:
    """Return JSON as one server or another writes it."""
    spaces = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :  ")]))
    is_ascii = draw(st.booleans())
    return json.dumps(value, ensure_ascii=is_ascii, separators=spaces).encode()


def _told(event: AnyEvent, number: int) -> StreamEvent:
    if isinstance(event, Delta):
        event.sequence_number = number
        return StreamEvent(event.type, number, None, delta=event)
    return number_event(event.type, number, event.data)


def _output() -> ResponsesOutput:
    return ResponsesOutput(
        IdAllocator(lambda kind: f"{kind}_new"), SealOwner("up", "account", "model")
    )


@given(values=st.lists(_deltas(), min_size=1, max_size=4), has_name=st.booleans(), data=st.data())
def test_an_event_keeps_what_its_server_says_but_for_its_name_and_number(
    values: list[dict[str, Any]], has_name: bool, data: st.DataObject
) -> None:
    output = _output()
    for place, value in enumerate(values):
        kind = value.get("type") if has_name else None
        raw = _written(value, data.draw)
        if not isinstance(value.get("type"), str) or value.get("error"):
            return
        [event] = output.read(kind if isinstance(kind, str) else "", raw + b" " * place)
        told = _told(event, 7)
        shown = msgspec.json.decode(told.body)
        assert (told.type, told.number) == (value["type"], 7)
        assert list(shown)[:2] == ["type", "sequence_number"]
        want = {**value, "sequence_number": 7}
        if not isinstance(value.get("output_index"), int):
            want["output_index"] = 0
        if not isinstance(value.get("delta", ""), str):
            want["delta"] = as_text(value["delta"])
        if "item_id" in value:
            want["item_id"] = shown["item_id"]
            is_kept = value["item_id"] == THEIRS
            assert (shown["item_id"] == THEIRS) if is_kept else shown["item_id"].endswith("_new")
        assert shown == want


@given(text=st.binary(max_size=12))
def test_bytes_that_are_no_json_text_are_never_passed_on(text: bytes) -> None:
    raw = (
        b'{"type":"response.output_text.delta","item_id":"m","output_index":0,"delta":"%b"}' % text
    )
    try:
        is_json = isinstance(json.loads(raw.decode()), dict)
    except (ValueError, UnicodeDecodeError):
        is_json = False
    try:
        events = _output().read("response.output_text.delta", raw)
    except ProviderFailure:
        return
    assert is_json
    for event in events:
        assert msgspec.json.decode(_told(event, 0).body)["type"]


@st.composite
def _chunks(draw: st.DrawFn) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    for name, values in {
        "content": st.one_of(_texts, _texts, st.none(), st.just([{"type": "text", "text": "x"}])),
        "role": st.just("assistant"),
        "reasoning_content": st.one_of(st.none(), _texts),
        "refusal": st.one_of(st.none(), st.none(), _texts),
        "tool_calls": st.sampled_from([None, [], [{"index": 0, "function": {"name": "f"}}]]),
        "annotations": st.sampled_from([None, []]),
        "extra": _odd,
    }.items():
        if draw(st.booleans()):
            delta[name] = draw(values)
    choice: dict[str, Any] = {"delta": delta}
    for name, values in {
        "index": st.integers(0, 1),
        "finish_reason": st.sampled_from([None, None, "stop", "length"]),
        "logprobs": st.sampled_from([None, {"content": [{"token": "a"}]}]),
    }.items():
        if draw(st.booleans()):
            choice[name] = draw(values)
    chunk: dict[str, Any] = {
        "id": "c",
        "choices": [choice] * draw(st.sampled_from([1, 1, 1, 0, 2])),
    }
    for name, values in {
        "usage": st.sampled_from([None, {"prompt_tokens": 1, "completion_tokens": 2}]),
        "service_tier": st.sampled_from([None, "default", 3]),
    }.items():
        if draw(st.booleans()):
            chunk[name] = draw(values)
    return {name: chunk[name] for name in draw(st.permutations(list(chunk)))}


@given(chunks=st.lists(_chunks(), max_size=6), data=st.data())
def test_chunks_of_chat_make_the_same_events_read_by_their_fields_or_as_a_whole(
    chunks: list[dict[str, Any]], data: st.DataObject
) -> None:
    by_field, whole = (ChatOutput(IdAllocator(lambda kind: f"{kind}_new")) for _ in range(2))
    for chunk in [*chunks, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]:
        raw = _written(chunk, data.draw)
        told = [_told(event, 1) for event in by_field.read_chunk(raw)]
        assert told == [_told(event, 1) for event in whole.read(read_json(raw))]
    assert by_field.end()[1] == whole.end()[1]


@given(
    said=st.lists(st.tuples(_kinds, st.integers(0, 1), st.integers(0, 1), _texts), max_size=8),
    ends=st.sets(st.integers(0, 7)),
)
def test_items_are_rebuilt_alike_from_plain_deltas_and_from_those_that_say_more(
    said: list[tuple[str, int, int, str]], ends: set[int]
) -> None:
    outputs = {"plain": _output(), "more": _output()}
    for place, (kind, index, part, text) in enumerate(said):
        at = {"item_id": THEIRS + str(index), "output_index": index, "summary_index": part}
        at["content_index"] = part
        for name, output in outputs.items():
            extra = {"extra": 1} if name == "more" else {}
            output.read(kind, json.dumps({"type": kind, **at, "delta": text, **extra}).encode())
            if place in ends:
                done = kind.removesuffix("delta") + "done"
                output.read(done, json.dumps({"type": done, **at, "text": "all"}).encode())
    end = b'{"type":"response.completed","response":{"id":"r","output":[]}}'
    told = [output.read("response.completed", end) for output in outputs.values()]
    assert told[0] == told[1]
    plain, more = (output.finished for output in outputs.values())
    assert plain == more
