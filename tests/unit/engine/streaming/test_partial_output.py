"""The output of a stream so far."""

import tracemalloc
from collections.abc import Callable

import msgspec

from holdfast.core.openai.stream_events import Delta
from holdfast.engine.streaming.partial_output import PartialOutput
from holdfast.providers.items.accumulator import ItemAccumulator

COUNT = 200_000


def _deltas() -> list[Delta]:
    """Return deltas whose texts are objects of their own, as those of a stream are."""
    return [
        Delta(
            type="response.output_text.delta",
            item_id="msg_1",
            output_index=0,
            content_index=0,
            delta=f"{number:05d}",
        )
        for number in range(COUNT // 100)
    ]


def _held_bytes_while_adding(add: Callable[[Delta], object]) -> int:
    """Return how much memory is held after many deltas were added and dropped."""
    tracemalloc.start()
    try:
        for _ in range(100):
            for delta in _deltas():
                add(delta)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_the_text_of_many_small_deltas_takes_about_its_own_size() -> None:
    partial = PartialOutput()
    held = _held_bytes_while_adding(lambda delta: partial.add([delta]))
    [item] = partial.unfinished()
    assert len(item.body) > 5 * COUNT
    assert held < 4 * 5 * COUNT


def test_an_item_of_many_small_deltas_takes_about_its_own_size() -> None:
    accumulator = ItemAccumulator()
    held = _held_bytes_while_adding(lambda delta: accumulator.text_of(delta).write(delta.delta))
    item = accumulator.item("completed")
    assert item is not None
    assert len(item["content"][0]["text"]) == 5 * COUNT
    assert held < 4 * 5 * COUNT


def _delta(kind: str, text: str, index: int = 0) -> Delta:
    return Delta(type=kind, item_id="msg_1", output_index=index, content_index=0, delta=text)


def test_texts_are_collected_by_item_and_kind() -> None:
    partial = PartialOutput()
    changes: list[bool] = []
    spoken, refused = "response.output_text.delta", "response.refusal.delta"
    partial.add([_delta(spoken, "a"), _delta(refused, "no"), _delta(spoken, "b")])
    partial.checkpoint()
    changes.append(partial.has_changed)
    partial.add([_delta("response.function_call_arguments.delta", "{}")])
    changes.append(partial.has_changed)
    partial.add([_delta(spoken, "c"), _delta(spoken, "other", 1), _delta(refused, "!")])
    changes.append(partial.has_changed)
    assert changes == [False, False, True]
    contents = [msgspec.json.decode(item.body)["content"] for item in partial.unfinished()]
    assert contents == [
        [
            {"type": "output_text", "text": "abc", "annotations": []},
            {"type": "refusal", "refusal": "no!"},
        ],
        [{"type": "output_text", "text": "other", "annotations": []}],
    ]
