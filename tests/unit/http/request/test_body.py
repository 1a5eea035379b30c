"""Bodies that are rejected: the error says what is wrong, before anything is decoded twice."""

import json

import msgspec
import pytest

from holdfast.core.errors import InvalidInput, InvalidItem
from holdfast.http.request.body import InvalidMetadata, parse_fields, pop_metadata
from holdfast.http.request.decoding import decode_body
from holdfast.http.request.item_validation import MAX_PARTS


@pytest.mark.parametrize(
    ("text", "escape", "byte"),
    [
        (r"cut \ud83d", r"\ud83d", 14),
        (r"cut \uD83D here", r"\uD83D", 14),
        (r"\ude00 low", r"\ude00", 10),
        (r"\\ \ud83d\ude00 \u0041 \ude00", r"\ude00", 33),
        (r"\ud83d\ud83d\ude00", r"\ud83d", 10),
    ],
)
def test_half_a_surrogate_pair_is_named(text: str, escape: str, byte: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_fields(b'{"input":"%b"}' % text.encode())
    assert f"half a surrogate pair ({escape}) at byte {byte}" in caught.value.message


@pytest.mark.parametrize("body", [b'{"input":"x', b'{"input":"\\\\ud83d', b"[]"])
def test_other_broken_bodies_are_reported_as_before(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="the body is not a JSON object"):
        parse_fields(body)


def test_metadata_with_far_too_many_pairs_is_not_decoded() -> None:
    pairs = {f"k{number}": "v" for number in range(200_000)}
    with pytest.raises(InvalidMetadata, match="at most 16 pairs"):
        pop_metadata({"metadata": msgspec.Raw(json.dumps(pairs).encode())})


def test_the_largest_metadata_fits_however_it_is_escaped() -> None:
    pairs = {chr(0x1F600 + number) * 64: "\U0001f600" * 512 for number in range(16)}
    stored = pop_metadata({"metadata": msgspec.Raw(json.dumps(pairs, indent=8).encode())})
    assert stored is not None
    assert json.loads(stored) == pairs


@pytest.mark.parametrize("count", [MAX_PARTS, MAX_PARTS + 1])
@pytest.mark.parametrize("kind", ["responses", "chat", "output"])
def test_the_parts_of_one_item_are_limited(kind: str, count: int) -> None:
    parts = [{"type": "text" if kind == "chat" else "input_text", "text": "a"}] * count
    item: dict[str, object] = {"role": "user", "content": parts}
    if kind == "output":
        item = {"type": "function_call_output", "call_id": "c", "output": parts}
    name = "messages" if kind == "chat" else "input"
    body = json.dumps({"model": "m", name: [item]}).encode()
    if count <= MAX_PARTS:
        assert len(decode_body("chat" if kind == "chat" else "responses", body, 10).items) == 1
        return
    with pytest.raises(InvalidItem, match=rf"{name}\[0\]: an item has at most 10000 parts"):
        decode_body("chat" if kind == "chat" else "responses", body, 10)
