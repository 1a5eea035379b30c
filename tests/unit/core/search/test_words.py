"""Terms, queries and snippets, in several scripts."""

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidInput
from holdfast.core.search.analysis import _FOLDING as FOLDING
from holdfast.core.search.analysis import FoldedText, _folded, terms
from holdfast.core.search.item_text import MAX_CHARACTERS, _text_of_any, item_text
from holdfast.core.search.query import MAX_PHRASES, SNIPPET, Phrase, parse_query, snippet


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hello, WORLD! user_id", ["hello", "world", "user", "id"]),
        ("Äpfel, Straße, naïve", ["apfel", "strasse", "naive"]),
        ("東京都 ok", ["東京", "京都", "都", "ok"]),
        ("안녕", ["안녕", "녕"]),
        ("हिन्दी", ["हिन्दी"]),
        ("x" * 100, ["x" * 64]),
        ("\ue000 - \ud800", []),
    ],
)
def test_text_is_split_into_terms(text: str, found: list[str]) -> None:
    assert terms(text) == found


@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_ascii_is_folded_like_any_other_text(text: str) -> None:
    assert _folded(text) == text.translate(FOLDING)


@given(st.text(max_size=60))
def test_places_are_those_of_the_terms(text: str) -> None:
    located = list(FoldedText(text).terms())
    assert [term.term for term in located] == terms(text)
    assert all(0 <= term.start < term.end <= len(text) for term in located)
    for term in located:
        folded = "".join(text[term.start : term.end].translate(FOLDING).split())
        assert term.term in folded


TEXTS = st.text(st.sampled_from("ab ,\u0301ß…東京都ﬁÄ\n"), max_size=30)


@given(text=TEXTS, data=st.data())
def test_every_part_of_a_text_is_found_in_it_and_shown(text: str, data: st.DataObject) -> None:
    located = list(FoldedText(text).terms())
    assume(located)
    first = data.draw(st.integers(0, len(located) - 1))
    size = data.draw(st.integers(1, len(located) - first))
    part = located[first : first + size]
    phrase = Phrase(tuple(term.term for term in part))
    shown = snippet(text, [phrase], [phrase])
    assert shown is not None
    begin, end = shown.highlights[0]
    # The same phrase may come before this part; the first one is shown.
    assert begin <= part[0].start
    found = [term.term for term in FoldedText(shown.text[begin:end]).terms()]
    assert found[: len(phrase.terms) - 1] == list(phrase.terms)[:-1]


@given(st.text(max_size=60))
def test_every_part_of_a_text_is_a_query_or_a_clear_refusal(text: str) -> None:
    try:
        phrases = parse_query(text)
    except InvalidInput:
        return
    assert all(phrase.terms for phrase in phrases)


def test_words_phrases_and_prefixes_are_distinguished() -> None:
    assert parse_query('dog* "vet visit" 東京 我 dog*') == (
        Phrase(("dog",), is_prefix=True),
        Phrase(("vet", "visit")),
        Phrase(("東京",)),
        Phrase(("我",), is_prefix=True),
    )
    assert len(parse_query(" ".join(f"w{n}" for n in range(50)))) == MAX_PHRASES


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("我们明天去北京看长城", "北", ["北"]),
        ("我们明天去北京看长城", "城", ["城"]),
        ("北北京", "北", ["北北"]),
        ("한국어 텍스트입니다", "텍", ["텍"]),
        ("한국어 텍스트입니다", "텍스", ["텍스"]),
        ("v2北京", "v2北", ["v2北"]),
        ("ﾊﾟﾝとパン", "パ", ["パ"]),
        ("a holdfast b", "hold*", ["holdfast"]),
    ],
)
def test_what_was_searched_for_is_marked_and_no_more(
    text: str, query: str, marked: list[str]
) -> None:
    shown = snippet(text, parse_query(query))
    assert shown is not None
    assert [shown.text[start:end] for start, end in shown.highlights] == marked


def test_a_snippet_shows_the_first_match_and_marks_all_it_shows() -> None:
    text = "word " * 100 + "the needle, and again the\nNeedle"
    shown = snippet(text, parse_query("needle"))
    assert shown is not None
    assert [shown.text[start:end] for start, end in shown.highlights] == ["needle", "Needle"]
    assert shown.text.startswith("…word")
    assert "\n" not in shown.text
    assert len(shown.text) <= SNIPPET + 2


ANSWER = (
    b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"},'
    b'{"type":"refusal","refusal":"b"},{"type":"input_image"}]}'
)


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (b'{"role":"user","content":"hi"}', ("user", "hi")),
        (ANSWER, ("assistant", "a\nb")),
        (
            b'{"type":"function_call","name":"add","arguments":"{\\"a\\":1}"}',
            ("tool", 'add {"a":1}'),
        ),
        (b'{"type":"function_call_output","output":[{"text":"3"}]}', ("tool", "3")),
        (b'{"type":"mcp_call","name":"x","output":"done"}', ("tool", "done")),
        (b'{"type":"reasoning","summary":[]}', None),
        (b'{"role":"user","content":""}', None),
        (b"not json", None),
        (b"[]", None),
    ],
)
def test_the_text_of_an_item(item: bytes, found: tuple[str, str] | None) -> None:
    assert item_text(item) == found


WORDS = st.none() | st.integers() | st.sampled_from(["", " ", "one", "two"])
PARTS = st.fixed_dictionaries(
    {}, optional={"type": WORDS, "text": WORDS, "refusal": WORDS, "other": WORDS}
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": WORDS | st.sampled_from(["message", "function_call", "mcp_call", "reasoning"]),
        "role": WORDS | st.sampled_from(["user", "assistant"]),
        "content": WORDS | st.lists(PARTS | WORDS, max_size=3),
        "output": WORDS | st.lists(PARTS, max_size=2),
        "name": WORDS,
    },
)


@given(ITEMS)
def test_a_common_message_is_read_like_any_other_item(item: dict[str, object]) -> None:
    body = msgspec.json.encode(item)
    assert item_text(body) == _text_of_any(body)


def test_only_the_beginning_of_a_long_item_is_searched() -> None:
    body = b'{"role":"user","content":"' + b"x" * (MAX_CHARACTERS + 10) + b'"}'
    long = item_text(body)
    assert long is not None
    assert len(long.text) == MAX_CHARACTERS
