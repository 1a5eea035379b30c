"""A request that is compared with the end of a log gets what a comparison with all of it gives."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history.diff import LogEntry, SentItem, find_new, find_new_near_end

prints = st.sampled_from([b"", b"a", b"b", b"c"])
roles = st.sampled_from(["user", "assistant"])


@st.composite
def logs(draw: st.DrawFn) -> list[LogEntry]:
    """Return a log of few different items, so that parts of it repeat."""
    made = draw(st.lists(st.tuples(prints, st.integers(0, 9)), min_size=1, max_size=24))
    return [
        LogEntry(
            seq,
            fingerprint,
            partial_text="cut" if chance == 0 else None,
            is_refused=chance == 1,
        )
        for seq, (fingerprint, chance) in enumerate(made, 1)
    ]


@st.composite
def requests(draw: st.DrawFn) -> list[SentItem]:
    """Return a request of such items."""
    made = draw(st.lists(st.tuples(prints, roles), min_size=1, max_size=6))
    return [SentItem(fingerprint, "message", role) for fingerprint, role in made]


@given(logs(), requests(), st.integers(1, 20), st.booleans())
def test_the_end_of_a_log_gives_the_same_diff_or_none(
    log: list[LogEntry], sent: list[SentItem], size: int, is_whole: bool
) -> None:
    found = find_new_near_end(sent, log[-size:], is_whole=is_whole)
    if found is not None:
        assert found == find_new(sent, log, is_whole=is_whole)


@given(logs(), st.integers(1, 4))
def test_the_end_of_a_log_is_enough_for_what_repeats_it(log: list[LogEntry], count: int) -> None:
    plain = [LogEntry(entry.seq, b"%d" % entry.seq) for entry in log]
    sent = [SentItem(entry.fingerprint, "message", "assistant") for entry in plain[-count:]]
    if len(plain) > 2 * count + 1:
        assert find_new_near_end(sent, plain[-2 * count - 1 :]) is not None
