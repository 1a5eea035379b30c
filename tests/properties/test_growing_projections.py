"""What is extended is what would be made anew, however a log grows, is rewound or goes on."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model.items import StoredItem
from holdfast.core.model.request import hash_items
from holdfast.core.projection.growing_list import GrowingList, SharedPrefix, share
from holdfast.core.projection.project import project
from holdfast.engine.model_call.growing_projection import project_grown
from holdfast.providers.items.ids import call_id_of
from holdfast.providers.items.replay import Replay
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.items.serialized_input import has_call, write_input
from holdfast.providers.openai_chat.input import ChatForm, ChatInputWriter, TranslationCache
from tests.properties import test_projection as plain
from tests.properties import test_valid_requests as wild

logs = st.one_of(plain.logs(), wild.logs())
cuts = st.lists(st.integers(0, 16), max_size=6).map(sorted)
asides = st.frozensets(st.integers(1, 14), max_size=3)
ways = st.builds(
    lambda opaque, plain: Replay(
        owner=SealOwner("p", "a", "m"), is_opaque_allowed=opaque, is_plain=plain
    ),
    st.booleans(),
    st.booleans(),
)
forms = st.builds(ChatForm, st.sampled_from("uv"), st.booleans(), st.booleans())
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("hide"), st.integers(0, 12), st.integers(1, 4)),
        st.tuples(st.just("regenerate"), st.integers(1, 3)),
        st.tuples(st.just("fork"), st.integers(0, 12)),
        st.tuples(st.just("read again")),
        st.tuples(st.just("earlier"), st.integers(0, 12)),
        st.tuples(st.just("quarantine"), asides),
    ),
    max_size=10,
)


def check_shown(history: SharedPrefix[StoredItem], aside: frozenset[int]) -> SharedPrefix[bytes]:
    """Compare a projection with one that is made anew."""
    shown, digest = project_grown(history, aside)
    assert shown == project(list(history), aside)
    assert digest == hash_items(shown)
    return shown


def check_sent(
    shown: SharedPrefix[bytes], writer: ChatInputWriter, chats: list[ChatForm], way: Replay
) -> None:
    """Compare what upstreams of both kinds are sent with what is written anew."""
    for form in chats:
        sent = b"".join(writer.write(shown, form, instructions="be kind").pieces)
        afresh = ChatInputWriter(TranslationCache()).write(
            list(shown), form, instructions="be kind"
        )
        assert sent == b"".join(afresh.pieces)
    assert b"".join(write_input(way, shown)) == b",".join(way.items(list(shown)))
    for call_id in {*filter(None, map(call_id_of, shown)), "call_of_nobody"}:
        is_there = any(call_id_of(body) == call_id for body in shown)
        assert has_call(call_id, way, shown) == is_there
        assert writer.has_call(call_id, shown, chats[0]) == is_there


def take_step(
    items: GrowingList[StoredItem], step: tuple[Any, ...], log: list[StoredItem]
) -> GrowingList[StoredItem]:
    """Return the list of a context after what the store does to it."""
    match step:
        case ("append", count):
            items += [log.pop(0) for _ in range(min(count, len(log)))]
        case ("hide", first, count):
            return items.without(first, first + count)
        case ("regenerate", count):
            end = len(items)
            again = [msgspec.structs.replace(one, seq=one.seq + 50) for one in items[-count:]]
            rewound = items.without(max(end - count, 0), end)
            rewound += again
            return rewound
        case ("fork", length):
            return items.upto(length)
        case ("read again",):
            return GrowingList(items)
    return items


@given(
    log=logs, start=st.integers(0, 8), steps=steps, ways=st.lists(ways, min_size=1, max_size=2),
    chats=st.lists(forms, min_size=1, max_size=3),
)  # fmt: skip
def test_a_lane_is_projected_and_sent_as_if_it_was_read_at_once(
    log: list[StoredItem], start: int, steps: list[Any], ways: list[Replay], chats: list[ChatForm]
) -> None:
    writer, aside = ChatInputWriter(TranslationCache()), frozenset[int]()
    items, log = GrowingList(log[:start]), log[start:]
    earlier: list[tuple[SharedPrefix[bytes], list[bytes]]] = []
    lanes = []
    for step in [("append", 0), *steps]:
        if step[0] == "fork":
            lanes.append(items)
        if step[0] == "quarantine":
            aside = step[1]
        items = take_step(items, step, log)
        history = share(items)
        if step[0] == "earlier":
            history = history.upto(step[1])
        shown = check_shown(history, aside)
        for way in ways:
            check_sent(shown, writer, chats, way)
        earlier.append((shown, list(shown)))
    for lane in lanes:
        check_sent(check_shown(share(lane), aside), writer, chats, ways[0])
    # What was sent before has not changed meanwhile.
    for shown, expected in earlier:
        assert shown == expected


@given(log=logs, cuts=cuts)
def test_a_log_that_grows_is_shown_as_if_it_came_at_once(
    log: list[StoredItem], cuts: list[int]
) -> None:
    whole = share(log)
    for cut in [*cuts, len(log)]:
        check_shown(whole.upto(cut), frozenset())


@given(one=logs, other=logs, aside=asides)
def test_another_log_is_shown_as_it_is(
    one: list[StoredItem], other: list[StoredItem], aside: frozenset[int]
) -> None:
    first, second = share(one), share(other)
    for log, quarantined in ((first, frozenset[int]()), (second, aside), (first, aside)):
        check_shown(log, quarantined)


@given(log=logs, cuts=cuts, way=ways)
def test_a_log_that_grows_is_projected_and_sent_as_if_it_came_at_once(
    log: list[StoredItem], cuts: list[int], way: Replay
) -> None:
    whole = share(log)
    seen = []
    for cut in [*cuts, len(log)]:
        shown, _ = project_grown(whole.upto(cut))
        told = write_input(way, shown)
        seen.append((shown, project(log[:cut]), told))
    for shown, expected, told in seen:
        assert shown == expected
        assert b"".join(told) == b",".join(way.items(expected))


def test_a_long_history_is_sent_in_few_pieces_and_earlier_pieces_are_not_copied() -> None:
    body = b'{"type":"message","role":"user","content":"%s"}' % (b"x" * 100)
    replay = Replay(owner=SealOwner("p", "a", "m"))
    history, copied = share(list[bytes]()), 0
    before: tuple[bytes, ...] = ()
    for _ in range(1000):
        history = history.grown([body, body])
        told = write_input(replay, history)
        copied += sum(len(piece) for piece in told if piece not in before)
        assert len(told) < 12
        before = told
    assert b"".join(before) == b",".join([body] * 2000)
    assert copied < 30 * len(body) * 2000
