"""Answers of Chat servers, also of those that bend the protocol."""

from typing import Any

import msgspec
import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.core.openai.stream_events import Delta
from holdfast.providers.items.ids import IdAllocator, ToolName
from holdfast.providers.openai_chat.output import ChatOutput

Json = dict[str, Any]


def chunk(delta: Json, finish: str | None = None) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def read(
    *chunks: Json, is_done: bool = False, names: dict[str, ToolName] | None = None
) -> list[Json]:
    """Return the items of an answer in chunks."""
    count = iter(range(100))
    output = ChatOutput(IdAllocator(lambda prefix: f"{prefix}_{next(count)}"), names)
    for value in chunks:
        output.read_chunk(msgspec.json.encode(value))
    if is_done:
        output.read_done()
    return [msgspec.json.decode(body) for body in output.end()[1].items]


def calls(items: list[Json]) -> list[tuple[str, str]]:
    return [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]


def call(name: str | None, arguments: str, **more: Any) -> Json:
    function = {"arguments": arguments} | ({"name": name} if name is not None else {})
    return {"type": "function", "function": function, **more}


@pytest.mark.parametrize(
    "fragments",
    [
        [call("f", '{"a":1}', index=0, id="call_a"), call("g", "{}", index=0, id="call_b")],
        [call("f", '{"a":1}', index=0, id=""), call("g", "{}", index=0, id="")],
        [call("f", '{"a":1}', id="call_a"), call("g", "{}", id="call_b")],
        [call("f", '{"a":1}'), call("g", "{}")],
    ],
    ids=["one-index", "one-index-no-ids", "no-index", "no-index-no-ids"],
)
@pytest.mark.parametrize("is_together", [True, False])
def test_parallel_calls_stay_apart(fragments: list[Json], is_together: bool) -> None:
    lists = [fragments] if is_together else [[fragment] for fragment in fragments]
    chunks = [chunk({"tool_calls": listed}) for listed in lists]
    items = read(*chunks, chunk({}, "tool_calls"))
    assert calls(items) == [("f", '{"a":1}'), ("g", "{}")]
    assert items[0]["call_id"] != items[1]["call_id"]


@pytest.mark.parametrize(
    "fragments",
    [
        [
            call("f", "", index=0, id="call_a"),
            call(None, '{"a"', index=0),
            call(None, ":1}", index=0),
        ],
        [call("f", '{"a"', index=0, id="call_a"), call("f", ":1}", index=0, id="call_a")],
        [call("f", '{"a"', id="call_a"), call(None, ":1}")],
        [call("f", '{"a"'), call("f", ":1}")],
        [call("f", '{"a"', index=0, id="call_a"), call(None, ":1}", index=0, id="call_other")],
    ],
    ids=["usual", "repeated-name", "no-index", "only-names", "new-id-per-fragment"],
)
def test_the_fragments_of_one_call_stay_together(fragments: list[Json]) -> None:
    chunks = [chunk({"tool_calls": [fragment]}) for fragment in fragments]
    assert calls(read(*chunks, chunk({}, "tool_calls"))) == [("f", '{"a":1}')]


def test_the_same_call_twice_without_ids_is_two_calls() -> None:
    twice = [chunk({"tool_calls": [call("f", "{}", index=0)]})] * 2
    assert calls(read(*twice, chunk({}, "tool_calls"))) == [("f", "{}"), ("f", "{}")]


def test_a_legacy_function_call_is_a_call() -> None:
    whole = {"choices": [{"index": 0, "finish_reason": "function_call", "message": {
        "role": "assistant", "content": None,
        "function_call": {"name": "f", "arguments": '{"a":1}'}}}]}  # fmt: skip
    assert calls(read(whole)) == [("f", '{"a":1}')]
    parts = [{"name": "f", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ":1}"}]
    streamed = [chunk({"function_call": part}) for part in parts]
    assert calls(read(*streamed, chunk({}, "function_call"))) == [("f", '{"a":1}')]


def streamed(*chunks: Json) -> list[tuple[str, int]]:
    """Return the type and the output index of each event of an answer in chunks."""
    count = iter(range(100))
    output = ChatOutput(IdAllocator(lambda prefix: f"{prefix}_{next(count)}"))
    read_events = [output.read_chunk(msgspec.json.encode(value)) for value in chunks]
    events = [event for some in [*read_events, output.end()[0]] for event in some]
    return [
        (event.type.removeprefix("response."), event.output_index)
        if isinstance(event, Delta)
        else (event.type.removeprefix("response."), event.data["output_index"])
        for event in events
    ]


def events_of_call(index: int, pieces: int) -> list[tuple[str, int]]:
    """Return the events of one call whose arguments come in so many pieces."""
    deltas = ["function_call_arguments.delta"] * pieces
    end = ["function_call_arguments.done", "output_item.done"]
    return [(kind, index) for kind in ["output_item.added", *deltas, *end]]


FIRST = [call("f", '{"a"', index=0, id="call_a"), call(None, ":1}", index=0)]
SECOND = [call("g", '{"b"', index=1, id="call_b"), call(None, ":2}", index=1)]
NO_ARGUMENTS = [call("h", "", index=0, id="call_c")]


@pytest.mark.parametrize(
    ("fragments", "pieces"),
    [
        ([*FIRST, *SECOND], 2),
        ([FIRST[0], SECOND[0], FIRST[1], SECOND[1]], 2),
        ([FIRST[0], SECOND[0], SECOND[1], FIRST[1]], 2),
        ([*NO_ARGUMENTS, *SECOND], 0),
        ([*FIRST, SECOND[0], call(None, " ", index=0), SECOND[1]], 2),
    ],
    ids=["in-turn", "interleaved", "reversed", "no-arguments", "blank-after-the-end"],
)
def test_a_call_ends_before_the_next_one_starts(fragments: list[Json], pieces: int) -> None:
    """As at OpenAI: agno relates the end of a call to the latest one that was added."""
    chunks = [chunk({"tool_calls": [fragment]}) for fragment in fragments]
    events = streamed(*chunks, chunk({}, "tool_calls"))
    assert events == [*events_of_call(0, pieces), *events_of_call(1, 2)]
    assert calls(read(*chunks, chunk({}, "tool_calls")))[1] == ("g", '{"b":2}')


def test_calls_end_before_text_starts() -> None:
    chunks = [chunk({"tool_calls": [fragment]}) for fragment in FIRST]
    events = streamed(*chunks, chunk({"content": "Wait."}), chunk({}, "tool_calls"))
    assert events[:5] == events_of_call(0, 2)
    assert {index for _, index in events[5:]} == {1}


def test_only_the_call_that_was_cut_off_is_incomplete() -> None:
    chunks = [chunk({"tool_calls": [fragment]}) for fragment in (*FIRST, SECOND[0])]
    items = read(*chunks, chunk({}, "length"))
    assert [item["status"] for item in items] == ["completed", "incomplete"]


def test_an_end_mark_ends_an_answer_without_a_finish_reason() -> None:
    [item] = read(chunk({"content": "whole"}), is_done=True)
    assert item["content"][0]["text"] == "whole"
    assert item["status"] == "completed"
    with pytest.raises(ProviderFailure, match="finish reason"):
        read(chunk({"content": "cut"}))
    with pytest.raises(ProviderFailure, match="finish reason"):
        read(chunk({"role": "assistant"}), is_done=True)


def test_a_call_gets_its_namespace_back() -> None:
    names = {"mcp__files__read": ToolName("mcp__files__", "read")}
    [item] = read(
        chunk({"tool_calls": [call("mcp__files__read", "{}", index=0, id="c")]}),
        chunk({}, "tool_calls"),
        names=names,
    )
    assert (item["namespace"], item["name"]) == ("mcp__files__", "read")
