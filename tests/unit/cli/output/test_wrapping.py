"""Word wrap of streamed text."""

import pytest

from holdfast.cli.output.wrapping import WordWrapper

TEXT = "The quick brown fox jumps over the lazy dog.\n\nA second paragraph, indented:\n  yes"


def wrap(pieces: list[str], width: int) -> str:
    wrapper = WordWrapper(width)
    return "".join(wrapper.feed(piece) for piece in pieces) + wrapper.flush()


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_words_are_never_split_however_the_text_is_cut_into_pieces(size: int) -> None:
    pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    lines = wrap(pieces, 20).split("\n")
    assert lines == [
        "The quick brown fox ",
        "jumps over the lazy ",
        "dog.",
        "",
        "A second paragraph, ",
        "indented:",
        "  yes",
    ]


def test_a_word_longer_than_a_line_is_split() -> None:
    assert wrap(["a " + "x" * 25], 10) == "a \n" + "x" * 10 + "\n" + "x" * 10 + "\n" + "x" * 5


def test_wide_characters_count_as_two_cells() -> None:
    assert wrap(["日本 語"], 5) == "日本 \n語"


def test_finished_words_are_not_held_back() -> None:
    wrapper = WordWrapper(80)
    assert wrapper.feed("hello wor") == "hello "
    assert wrapper.feed("ld ") == "world "
    assert wrapper.flush() == ""
