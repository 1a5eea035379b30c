"""Which item a provider cannot take: what it names first, then wider and wider guesses."""

from typing import Any

from holdfast.core.healing.refused_items import poison_candidates
from holdfast.core.model.items import StoredItem, write_item
from tests.unit.core.builders import stored

Json = dict[str, Any]


def said(*parts: Json) -> Json:
    return {"type": "message", "role": "user", "content": list(parts)}


def picture(url: str) -> Json:
    return {"type": "input_image", "image_url": url}


TEXT: Json = {"type": "input_text", "text": "look at https://words.example/only"}
DATA = "data:image/png;base64,AAAA"


def log() -> list[StoredItem]:
    """Return a history: words, a picture elsewhere, one that lies here, a file; and a new one."""
    values = [
        (1, said(TEXT)),
        (1, said(picture("https://old.example/a.png"))),
        (2, said(picture(DATA))),
        (2, said({"type": "input_file", "file_id": "file-abc123"})),
        (3, said(picture("https://new.example/b.png"), TEXT)),
    ]
    return [
        stored(seq, write_item(value), turn_number=turn)
        for seq, (turn, value) in enumerate(values, 1)
    ]


def test_what_is_named_by_its_place_is_the_first_to_be_suspected() -> None:
    assert poison_candidates(log(), named={1}, turn_number=3) == (1,)


def test_what_is_quoted_is_the_next() -> None:
    for words in ("cannot read 'file-abc123'", "No such File object: file-abc123."):
        assert poison_candidates(log(), message=words, turn_number=3) == (4,)
    words = "Error while downloading https://old.example/a.png."
    assert poison_candidates(log(), message=words, turn_number=3) == (2,)
    assert poison_candidates(
        log(), message="look at https://words.example/only", turn_number=3
    ) == (5,)


def test_guesses_grow_wider_until_no_candidate_is_left() -> None:
    aside: set[int] = set()
    guesses = []
    while found := poison_candidates(log(), turn_number=3, quarantined=aside):
        guesses.append(found)
        aside |= set(found)
    assert guesses == [(5,), (2, 4), (3,)]


def test_plain_text_is_no_poison_candidate() -> None:
    assert poison_candidates(log()[:1], message="Could not process image", turn_number=1) == ()
