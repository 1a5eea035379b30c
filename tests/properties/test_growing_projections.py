"""What is extended is what would be made anew, however a log grows."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model.items import StoredItem
from holdfast.core.model.request import hash_items
from holdfast.core.projection.prefix_cache import SharedPrefix
from holdfast.core.projection.project import project
from holdfast.engine.model_call.projection_cache import ProjectionCache
from holdfast.providers.items.ids import call_id_of
from holdfast.providers.items.replay import Replay
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.items.serialized_input import SerializedInputCache
from tests.properties import test_projection as plain
from tests.properties import test_valid_requests as wild

logs = st.one_of(plain.logs(), wild.logs())
cuts = st.lists(st.integers(0, 16), max_size=6).map(sorted)
ways = st.builds(
    lambda opaque, plain: Replay(
        owner=SealOwner("p", "a", "m"), is_opaque_allowed=opaque, is_plain=plain
    ),
    st.booleans(),
    st.booleans(),
)


@given(log=logs, cuts=cuts)
def test_a_log_that_grows_is_shown_as_if_it_came_at_once(
    log: list[StoredItem], cuts: list[int]
) -> None:
    projections = ProjectionCache()
    for cut in [*cuts, len(log)]:
        shown, hasher = projections.project("s", log[:cut])
        assert shown == project(log[:cut])
        assert hasher.digest() == hash_items(shown).digest()


@given(one=logs, other=logs, aside=st.frozensets(st.integers(1, 14), max_size=3))
def test_another_log_under_the_same_name_is_shown_as_it_is(
    one: list[StoredItem], other: list[StoredItem], aside: frozenset[int]
) -> None:
    projections = ProjectionCache()
    for log, quarantined in ((one, frozenset[int]()), (other, aside), (one, aside)):
        shown, hasher = projections.project("s", log, quarantined)
        assert shown == project(log, quarantined)
        assert hasher.digest() == hash_items(shown).digest()


@given(log=logs, cuts=cuts, ways=st.lists(ways, min_size=1, max_size=3))
def test_a_history_that_grows_is_sent_as_if_it_came_at_once(
    log: list[StoredItem], cuts: list[int], ways: list[Replay]
) -> None:
    retelling = SerializedInputCache()
    for cut in [*cuts, len(log)]:
        history = project(log[:cut])
        for replay in ways:
            told = retelling.write("s", replay, history)
            assert b"".join(told) == b",".join(replay.items(history))
            for call_id in {*filter(None, map(call_id_of, history)), "call_of_nobody"}:
                has_call = any(call_id_of(body) == call_id for body in history)
                assert retelling.has_call(call_id, "s", replay, history) == has_call


@given(one=logs, other=logs, way=ways)
def test_another_history_under_the_same_name_is_sent_as_it_is(
    one: list[StoredItem], other: list[StoredItem], way: Replay
) -> None:
    retelling = SerializedInputCache()
    for log in (one, other, one):
        history = project(log)
        told = retelling.write("s", way, history)
        assert b"".join(told) == b",".join(way.items(history))


@given(log=logs, cuts=cuts, way=ways)
def test_a_log_that_grows_is_projected_and_sent_as_if_it_came_at_once(
    log: list[StoredItem], cuts: list[int], way: Replay
) -> None:
    projections, retelling = ProjectionCache(), SerializedInputCache()
    whole = SharedPrefix(log)
    seen = []
    for cut in [*cuts, len(log)]:
        shown, _ = projections.project("s", whole.upto(min(cut, len(log))))
        told = retelling.write("s", way, shown)
        seen.append((shown, project(log[:cut]), told))
    for shown, expected, told in seen:
        assert shown == expected
        assert b"".join(told) == b",".join(way.items(expected))


def test_a_long_history_is_sent_in_few_pieces_and_earlier_pieces_are_not_copied() -> None:
    body = b'{"type":"message","role":"user","content":"%s"}' % (b"x" * 100)
    retelling, replay = SerializedInputCache(), Replay(owner=SealOwner("p", "a", "m"))
    history, copied = SharedPrefix[bytes]([]), 0
    before: tuple[bytes, ...] = ()
    for _ in range(1000):
        history = history.grown([body, body])
        told = retelling.write("s", replay, history)
        copied += sum(len(piece) for piece in told if piece not in before)
        assert len(told) < 12
        before = told
    assert b"".join(before) == b",".join([body] * 2000)
    assert copied < 30 * len(body) * 2000


def test_what_is_held_is_bounded_in_bytes() -> None:
    body = b'{"type":"message","role":"user","content":"%s"}' % (b"x" * 1000)
    items = [StoredItem("s", n, n, "message", None, None, b"", False, body) for n in range(1, 9)]
    projections, retelling = (
        ProjectionCache(max_bytes=50_000),
        SerializedInputCache(max_bytes=50_000),
    )
    replay = Replay(owner=SealOwner("p", "a", "m"))
    for number in range(40):
        history, _ = projections.project(f"s{number}", items)
        retelling.write(f"s{number}", replay, history)
        assert 0 < projections.held_bytes <= 50_000
        assert 0 < retelling.held_bytes <= 50_000
