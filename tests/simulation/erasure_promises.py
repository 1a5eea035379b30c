"""What is erased is gone: from the log, the index, searches, and every other row of the store."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.core.model.items import StoredItem
from holdfast.core.model.session import Session
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Accept
from tests.simulation.clients import said_by
from tests.simulation.erasing import ErasedItem, FoundItem
from tests.simulation.model import text_of
from tests.simulation.world import Story
from tests.written_rows import ItemsAdded, rows_of

Breaches = Iterator[str]


def erased_is_found_nowhere(story: Story) -> Breaches:
    """a text that no item has any more, because it was erased, is in no row at all."""
    yield from leftovers(story, story.image.dump)


def leftovers(story: Story, dump: Sequence[tuple[str, bytes]]) -> Breaches:
    """Yield each text of a story that was erased and is still in one of the values of a store."""
    image = story.image
    if not dump:
        return
    kept = b"\n".join(
        item.body
        for items in image.items.values()
        for item in items
        if (item.session_id, item.seq) not in image.erased
    )
    kept += b"\n".join(turn.input or b"" for turn in image.turns.values())
    for text in sorted(_texts(story)):
        pattern = re.compile(re.escape(text.encode()) + rb"(?![0-9A-Za-z.])")
        if pattern.search(kept):
            continue
        places = {place for place, content in dump if pattern.search(content)}
        if not _is_of_deleted_session(story, text):
            places.discard("outbox.body")  # messages are sent all the same
        if places:
            yield f"erasure {text!r} was erased and is still in {sorted(places)}"


def _is_of_deleted_session(story: Story, text: str) -> bool:
    """Whether only sessions that were deleted had a text."""
    return not any(
        text in item.body.decode() for items in story.image.items.values() for item in items
    )


def _texts(story: Story) -> set[str]:
    """Return every text that was ever sent to be stored, if it cannot be confused with others.

    The small server of the simulation stores its answers as results of runs, and a schedule its
    prompt: they are left out.
    """
    own = {op.same_as or op.id for op in story.plan.ops if op.entry_point == "server"}
    own |= {op.id for op in story.plan.ops if op.kind in ("fork", "compact")}
    prompts = {said_by(op, op.id) for op in story.plan.ops if op.kind == "schedule"}
    found: set[str] = set()
    for written in story.journal:
        if isinstance(written.command, Accept):
            found.update(text_of(item.body) for item in written.command.items)
        if isinstance(written.result, Decision):
            for row in rows_of(written.result.changes):
                if isinstance(row, ItemsAdded):
                    found.update(_text(item.body) for item in row.items)
    return {
        text for text in found
        if ("|" in text or " run_" in text) and text not in prompts and not (
            text.startswith(("answer ", "note ")) and _op_of(text) in own)
    }  # fmt: skip


def _text(body: bytes) -> str:
    value = msgspec.json.decode(body)
    output = value.get("output")
    return output if isinstance(output, str) else text_of(body)


def _op_of(text: str) -> str:
    return text.split(" ")[1]


def copies_are_erased(story: Story) -> Breaches:
    """an erased item is blank wherever its turn was written again."""
    image = story.image
    for session_id, seq in sorted(image.erased):
        items = image.items.get(session_id, [])
        for erased in (item for item in items if item.seq == seq):
            for other in items:
                is_equal = (other.turn_number, other.body) == (erased.turn_number, erased.body)
                is_copy = is_equal and _is_written_again(story, erased, other)
                is_text = "|" in text_of(other.body) or " run_" in text_of(other.body)
                if is_copy and is_text and (session_id, other.seq) not in image.erased:
                    yield f"erasure {session_id}: item {seq} is gone, its copy {other.seq} is not"


def _is_written_again(story: Story, one: StoredItem, other: StoredItem) -> bool:
    """Whether two equal items of a turn are in different blocks of it, not two equal inputs."""
    first, last = sorted((one.seq, other.seq))
    return any(
        record.kind in ("retry", "move") and record.from_seq <= first <= record.to_seq < last
        for record in story.image.records.get(one.session_id, [])
    )


def nothing_erased_is_indexed(story: Story) -> Breaches:
    """the index, once it has followed the log, has no words of what was erased."""
    image = story.image
    for session_id, seq in image.indexed:
        session = image.sessions.get(session_id)
        if session is None or session.deleted_at is not None:
            yield f"search the index has item {seq} of {session_id}, which was deleted"
        elif (session_id, seq) in image.erased:
            yield f"search the index has item {seq} of {session_id}, which was erased"


def nothing_erased_is_found(story: Story) -> Breaches:
    """I10: no search finds what was erased before it began, or what others said."""
    gone: dict[tuple[str, int | None], int] = {}
    for heard in story.heard:
        if isinstance(heard.answer, ErasedItem):
            gone.setdefault((heard.answer.session_id, heard.answer.seq), heard.heard)
        elif isinstance(heard.answer, Session) and heard.op.kind == "delete":
            gone.setdefault((heard.answer.id, None), heard.heard)
    for heard in story.heard:
        if heard.op.kind != "search" or heard.answer is None or heard.error is not None:
            continue
        for hit in heard.answer:
            assert isinstance(hit, FoundItem)
            for name in ((hit.session_id, hit.seq), (hit.session_id, None)):
                if gone.get(name, heard.sent) < heard.sent:
                    yield f"search {heard.op.id} found {hit.text!r}, which had been erased"
            if story.image.sessions[hit.session_id].tenant != heard.op.tenant:
                yield f"I10 {heard.op.id} found {hit.text!r} of another tenant"
