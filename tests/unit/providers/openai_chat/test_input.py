"""The messages of Chat requests: each item is translated once, at every length of history."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.projection.growing_list import SharedPrefix, share
from holdfast.core.projection.project import project
from holdfast.providers.openai_chat.input import (
    ChatForm,
    ChatInputWriter,
    TranslationCache,
)
from tests.own_calls import own_calls
from tests.properties.test_valid_requests import logs
from tests.unit.providers.chat_upstream import check

Json = dict[str, Any]
FORM = ChatForm("u")
LENGTHS = (10, 100, 1000)


def user(text: str) -> bytes:
    part = {"type": "input_text", "text": text}
    return msgspec.json.encode({"type": "message", "role": "user", "content": [part]})


def assistant(text: str) -> bytes:
    part = {"type": "output_text", "text": text, "annotations": []}
    return msgspec.json.encode({"type": "message", "role": "assistant", "content": [part]})


def conversation(turns: int, name: str = "") -> list[bytes]:
    items: list[bytes] = []
    for number in range(turns):
        items += [user(f"{name} question {number}"), assistant(f"{name} answer {number}")]
    return items


def messages(
    cache: ChatInputWriter, history: "list[bytes] | SharedPrefix[bytes]", **options: Any
) -> list[Json]:
    form = options.pop("form", FORM)
    written = cache.write(history, form, **options)
    sent: list[Json] = msgspec.json.decode(b"[%b]" % b"".join(written.pieces))
    return sent


def next_turn(turns: int) -> tuple[int, int]:
    """Return the items that the turn after `turns` others translates, and its calls."""
    cache = ChatInputWriter(TranslationCache())
    history = share(conversation(turns))
    cache.write(history, FORM)
    longer = history.grown([user("and now?")])
    before = cache.translations.translated
    calls = own_calls(lambda: cache.write(longer, FORM, instructions="be kind"))
    return cache.translations.translated - before, calls


def test_a_turn_costs_the_same_at_every_length() -> None:
    costs = [next_turn(length) for length in LENGTHS]
    assert [translated for translated, _ in costs] == [1, 1, 1]
    assert len({calls for _, calls in costs}) == 1, costs


def test_a_fork_translates_nothing_again() -> None:
    cache = ChatInputWriter(TranslationCache())
    history = conversation(100)
    cache.write(history, FORM)
    before = cache.translations.translated
    forked = messages(cache, [*history[:150], user("otherwise")])
    assert cache.translations.translated - before == 1
    assert len(forked) == 151


def test_a_compaction_translates_only_its_summary() -> None:
    cache = ChatInputWriter(TranslationCache())
    history = conversation(100)
    cache.write(history, FORM)
    before = cache.translations.translated
    kept = messages(cache, [user("summary"), *history[100:]])
    assert cache.translations.translated - before == 1
    assert kept[0]["content"].startswith("summary")


def test_a_whole_history_without_a_session_is_translated_once() -> None:
    cache = ChatInputWriter(TranslationCache())
    for turns in range(1, 50):
        cache.write(conversation(turns), FORM)
    assert cache.translations.translated == 2 * 49


def test_checking_new_items_serializes_nothing_and_translates_them_for_the_request() -> None:
    cache = ChatInputWriter(TranslationCache())
    items = share(conversation(3))
    check(cache.translations, items)
    assert items.shared.forms == ()
    assert cache.translations.translated == len(items)
    cache.write(items, FORM)
    assert cache.translations.translated == len(items)


def test_upstreams_share_translations() -> None:
    shared = TranslationCache()
    for _ in range(3):
        ChatInputWriter(shared).write(conversation(10), FORM)
    assert shared.translated == 20


def test_joining_adjacent_messages_is_linear() -> None:
    def calls(count: int) -> int:
        cache = ChatInputWriter(TranslationCache())
        history = [user(f"line {number}") for number in range(count)]
        return own_calls(lambda: cache.write(history, FORM))

    small, large = calls(100), calls(1000)
    assert large <= 10 * small
    [joined] = messages(ChatInputWriter(TranslationCache()), [user("a"), user("b"), user("c")])
    assert joined["content"] == "a\n\nb\n\nc"


def test_the_cache_is_bounded_in_bytes() -> None:
    cache = ChatInputWriter(TranslationCache(max_bytes=100_000))
    for number in range(100):
        cache.write(conversation(20, "x" * 100 + str(number)), FORM)
        assert 0 < cache.translations.held_bytes <= 100_000


def test_translations_in_use_stay_while_others_are_forgotten() -> None:
    cache = ChatInputWriter(TranslationCache(max_bytes=100_000))
    items = conversation(5)
    for number in range(100):
        before = cache.translations.translated
        check(cache.translations, items)
        assert cache.translations.translated - before == (0 if number else len(items))
        check(cache.translations, conversation(5, "x" * 100 + str(number)))
    before = cache.translations.translated
    check(cache.translations, conversation(5, "x" * 100 + "1"))
    assert cache.translations.translated - before == 10


def follow(before: SharedPrefix[bytes], history: list[bytes]) -> SharedPrefix[bytes]:
    """Return a history that shares the list of another one, as far as both are the same."""
    common = 0
    while common < min(len(before), len(history)) and before[common] == history[common]:
        common += 1
    return before.upto(common).grown(history[common:])


forms = st.builds(ChatForm, st.just("u"), st.booleans(), st.booleans())
cuts = st.lists(st.integers(0, 16), max_size=6).map(sorted)


@given(log=logs(), cuts=cuts, forms=st.lists(forms, min_size=1, max_size=3), told=st.booleans())
def test_a_history_that_grows_is_written_as_if_it_came_at_once(
    log: Any, cuts: list[int], forms: list[ChatForm], told: bool
) -> None:
    cache = ChatInputWriter(TranslationCache())
    instructions = "be kind" if told else None
    history = share(list[bytes]())
    for cut in [*cuts, len(log)]:
        history = follow(history, project(log[:cut]))
        for form in forms:
            grown = messages(cache, history, form=form, instructions=instructions)
            fresh = ChatInputWriter(TranslationCache())
            assert grown == messages(fresh, history, form=form, instructions=instructions)
            sources = fresh.sources(history, form, instructions=instructions)
            assert len(sources) in (len(grown), len(grown) - 1)


def named(name: str, text: str) -> bytes:
    item = {"type": "message", "role": "user", "name": name, "content": text}
    return msgspec.json.encode(item)


def test_speakers_with_different_names_stay_apart() -> None:
    cache = ChatInputWriter(TranslationCache())
    history = [named("ann", "hi"), named("ben", "hello"), named("ben", "again")]
    assert messages(cache, history) == [
        {"role": "user", "name": "ann", "content": "hi"},
        {"role": "user", "name": "ben", "content": "hello\n\nagain"},
    ]
    [joined] = messages(cache, history, form=ChatForm("u", alternates=True))
    assert joined == {"role": "user", "content": "hi\n\nhello\n\nagain"}


def reasoning(text: str) -> bytes:
    part = {"type": "reasoning_text", "text": text}
    return msgspec.json.encode({"type": "reasoning", "summary": [], "content": [part]})


CALL = b'{"type":"function_call","call_id":"callone01","name":"f","arguments":"{}"}'
OUTPUT = b'{"type":"function_call_output","call_id":"callone01","output":"1"}'


def test_reasoning_goes_back_with_the_call_that_it_led_to() -> None:
    cache = ChatInputWriter(TranslationCache())
    history = [user("hi"), reasoning("hm"), CALL, OUTPUT]
    _, call, _ = messages(cache, history)
    assert call["reasoning_content"] == "hm"
    assert call["tool_calls"][0]["function"]["name"] == "f"
    _, plain, _ = messages(cache, history, form=ChatForm("u", drops_reasoning=True))
    assert "reasoning_content" not in plain


@pytest.mark.parametrize("after", [[assistant("done")], [], [user("more")]])
def test_reasoning_that_led_to_no_call_is_not_sent(after: list[bytes]) -> None:
    cache = ChatInputWriter(TranslationCache())
    sent = messages(cache, [user("hi"), reasoning("hm"), *after])
    assert "reasoning_content" not in str(sent)
    assert sent == messages(cache, [user("hi"), *after])


def system(text: str) -> bytes:
    return msgspec.json.encode({"type": "message", "role": "system", "content": text})


FIRST_ITEMS = {
    "user": user("hi"),
    "assistant": assistant("welcome"),
    "system": system("be brief"),
    "call": CALL,
    "output": OUTPUT,
    "reasoning": reasoning("hm"),
    "settings": b'{"type":"configuration"}',
}
NEXT_ITEMS = [[], [user("more")], [assistant("ok")], [CALL, OUTPUT], [system("louder")]]


@pytest.mark.parametrize("first", FIRST_ITEMS.values(), ids=FIRST_ITEMS)
@pytest.mark.parametrize("after", NEXT_ITEMS)
def test_a_history_that_begins_with_one_item_goes_on_as_if_it_came_at_once(
    first: bytes, after: list[bytes]
) -> None:
    cache = ChatInputWriter(TranslationCache())
    history = share([first])
    alone = messages(cache, history)
    assert alone == messages(cache, history, form=ChatForm("other"), instructions=None)
    grown = messages(cache, history.grown(after))
    assert grown == messages(cache, [first, *after])
