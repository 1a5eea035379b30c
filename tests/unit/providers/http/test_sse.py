"""Server-sent events are the same however their bytes are cut and their lines end."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.http.connection import StopReading
from holdfast.providers.http.sse import EventTooLong, SseEvent, SseSplitter
from holdfast.providers.http.upstream import EventReader
from tests.unit.providers.http.raw_server import CollectedEvents

_words = st.text(
    st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=12
)
_kinds = st.one_of(st.just(""), st.sampled_from(["ping", "response.created"]))
_events = st.lists(st.tuples(_kinds, st.lists(_words, min_size=1, max_size=3)), max_size=6)


def split(*chunks: bytes) -> list[SseEvent]:
    splitter = SseSplitter()
    return [event for chunk in chunks for event in splitter.split(chunk)]


@given(
    events=_events,
    end=st.sampled_from(["\n", "\r", "\r\n"]),
    space=st.sampled_from(["", " "]),
    has_bom=st.booleans(),
    has_comments=st.booleans(),
    data=st.data(),
)
def test_events_are_the_same_however_their_bytes_are_cut(
    events: list[tuple[str, list[str]]],
    end: str,
    space: str,
    has_bom: bool,
    has_comments: bool,
    data: st.DataObject,
) -> None:
    lines: list[str] = []
    for kind, texts in events:
        lines += [": a comment", "id: 7", "retry: 1"] if has_comments else []
        lines += [f"event:{space}{kind}"] if kind else []
        # A text that begins with a space is only kept whole behind the one that is taken away.
        lines += [f"data:{space or (' ' if text.startswith(' ') else '')}{text}" for text in texts]
        lines.append("")
    text = ("\ufeff" if has_bom else "") + "".join(line + end for line in lines)
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    edges = [0, *cuts, len(raw)]
    chunks = [raw[a:b] for a, b in itertools.pairwise(edges)]
    want = [SseEvent(kind or "message", "\n".join(texts).encode()) for kind, texts in events]
    assert split(*chunks) == want
    assert split(*(raw[i : i + 1] for i in range(len(raw)))) == want


def test_bytes_after_the_last_empty_line_are_no_event() -> None:
    assert split(b"data: 1\n\ndata: 2\n") == [SseEvent("message", b"1")]
    assert split(b"data: 1") == []


def test_an_event_without_data_is_skipped() -> None:
    assert split(b"event: ping\n\n: comment\n\n\n\n") == []
    assert split(b"data\n\n") == [SseEvent("message", b"")]
    assert split(b"data:\n\n") == [SseEvent("message", b"")]


def test_all_line_ends_may_be_mixed() -> None:
    assert split(b"data: 1\r\n\rdata: 2\r\r\ndata: 3\n\r\n") == [
        SseEvent("message", b"1"), SseEvent("message", b"2"), SseEvent("message", b"3"),
    ]  # fmt: skip


def test_an_event_that_never_ends_is_refused() -> None:
    splitter = SseSplitter(max_event_bytes=10)
    assert splitter.split(b"data: 1234") == []
    with pytest.raises(EventTooLong):
        splitter.split(b"5")


_BLOCKS = (
    b"data: 1\n\n", b"event: a\ndata: 2\n\n", b"event: \ndata: 3\n\n", b"event: b\n\n",
    b"data:4\n\n", b"data: 5\ndata: 6\n\n", b": comment\n\n", b"\n\n", b"\n\ndata: 7\n\n",
    b"data: [DONE] is no end\n\n", b"data: 8\r\n\r\n", b"event: \xff\ndata: 9\n\n",
    b"id: 1\nevent: c\ndata: \n\n",
)  # fmt: skip
_END = b"data: [DONE]\n\n"


@given(
    begin=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    pieces=st.lists(st.lists(st.sampled_from(_BLOCKS), min_size=1).map(b"".join), max_size=4),
    is_ended=st.booleans(),
    is_apart=st.booleans(),
)
def test_pieces_of_whole_events_are_read_as_the_splitter_reads_them(
    begin: bytes, pieces: list[bytes], is_ended: bool, is_apart: bool
) -> None:
    raw = begin + b"".join(pieces)
    pieces = [begin + b"".join(pieces[:1]), *pieces[1:]]
    if is_ended:
        pieces = [*pieces, _END] if is_apart else [*pieces[:-1], pieces[-1] + _END]
    sink = CollectedEvents()
    reader = EventReader(sink)
    try:
        for piece in pieces:
            assert reader.write(piece)
    except StopReading:
        assert sink.is_ended
    assert sink.is_ended == is_ended
    assert sink.events == split(raw)
