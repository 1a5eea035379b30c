"""Transcripts against lists: what is in a log, what is to be seen of it, in whole and in pages."""

from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import Any, Literal

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from holdfast.core.errors import ItemNotFound, RunFenced
from holdfast.core.ids import SessionId, WorkerId
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import (
    Accept,
    ExpireWorker,
    Extend,
    Finish,
    Fork,
    Hide,
    Recover,
    Renew,
    Started,
)
from holdfast.ports.store import ItemQuery
from holdfast.testing.store_client import answered, text_of
from tests.properties.store_harness import FOREVER, StoreHarness

Ending = Literal["completed", "failed", "interrupted"]


@dataclass
class Entry:
    """One item of a log."""

    text: str
    turn: str
    is_hidden: bool = False
    is_partial: bool = False


@dataclass
class Book:
    """A session as the model knows it."""

    id: str
    entries: list[Entry] = field(default_factory=list)
    inherited: int = 0

    def of(self, turn: str) -> list[Entry]:
        """Return what a turn wrote here and is still to be seen."""
        own = self.entries[self.inherited :]
        return [entry for entry in own if entry.turn == turn and not entry.is_hidden]

    def block(self, turn: str) -> list[Entry]:
        """Return the last block that a turn wrote here, hidden or not."""
        back = dropwhile(lambda entry: entry.turn != turn, reversed(self.entries))
        return list(takewhile(lambda entry: entry.turn == turn, back))[::-1]


class TranscriptMachine(RuleBasedStateMachine):
    """Writes to a session and to forks of it in every way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = StoreHarness("a", "b")
        self.books: list[Book] = []
        self.torn: dict[str, Book] = {}
        self.count = 0

    def teardown(self) -> None:
        self.harness.close()

    def new(self, word: str) -> str:
        self.count += 1
        return f"{word}{self.count}"

    def book(self, data: st.DataObject) -> Book:
        return data.draw(st.sampled_from(self.books))

    def arrival(self, book: Book | None, name: str, worker: str = "a", **more: Any) -> Accept:
        where: dict[str, Any] = {"session_id": book.id} if book else {"key": "k"}
        return self.harness.callers[worker].arrival(
            f"{name}!", idempotency_key=name, body_hash=name.encode(), **where, **more
        )

    def start(self, book: Book | None, name: str, worker: str = "a", **more: Any) -> Started:
        outcome = self.harness.ask(self.arrival(book, name, worker, **more))
        assert isinstance(outcome, Started), outcome
        return outcome

    def extend(self, book: Book, run: Started, turn: str, count: int) -> None:
        texts = [self.new("n") for _ in range(count)]
        if texts:
            self.harness.ask(Extend(fence=run.fence, items=answered(*texts)))
            book.entries.extend(Entry(text, turn) for text in texts)

    # ── what can be done ────────────────────────────────────────────────────────────────────

    @initialize()
    def first_words(self) -> None:
        run = self.start(None, self.new("t"))
        self.books.append(Book(run.session.id, [Entry(f"t{self.count}!", f"t{self.count}")]))
        self.harness.ask(Finish(fence=run.fence, outcome="completed"))

    @rule(data=st.data(), extends=st.integers(0, 2), answers=st.integers(0, 2))
    def converse(self, data: st.DataObject, extends: int, answers: int) -> None:
        book, turn = self.book(data), self.new("t")
        run = self.start(book, turn)
        book.entries.append(Entry(f"{turn}!", turn))
        self.extend(book, run, turn, extends)
        texts = [self.new("a") for _ in range(answers)]
        self.harness.ask(Finish(fence=run.fence, outcome="completed", items=answered(*texts)))
        book.entries.extend(Entry(text, turn) for text in texts)

    @rule(data=st.data(), ending=st.sampled_from(["failed", "interrupted"]), half=st.booleans())
    def break_off(self, data: st.DataObject, ending: Ending, half: bool) -> None:
        book, turn = self.book(data), self.new("t")
        run = self.start(book, turn)
        book.entries.append(Entry(f"{turn}!", turn))
        self.extend(book, run, turn, 1)
        partial = answered(self.new("h")) if half else ()
        self.harness.ask(
            Finish(fence=run.fence, outcome=ending, partial=partial, is_retryable=True)
        )
        if half:
            book.entries.append(Entry(f"h{self.count}", turn, is_partial=True))
        self.torn[turn] = book

    @rule(data=st.data(), half=st.booleans())
    def lose_the_worker(self, data: st.DataObject, half: bool) -> None:
        book, turn = self.book(data), self.new("t")
        run = self.start(book, turn, "b")
        book.entries.append(Entry(f"{turn}!", turn))
        if half:
            partial = answered(self.new("h"))
            self.harness.ask(Extend(fence=run.fence, partial=partial))
            book.entries.append(Entry(f"h{self.count}", turn, is_partial=True))
        dead, heir = self.harness.callers["b"], self.harness.callers["a"]
        self.harness.ask(ExpireWorker(worker=dead.worker))
        self.harness.ask(Recover(session_id=SessionId(book.id), worker=heir.worker))
        dead.worker = WorkerId(dead.ids.new("wrk"))
        self.harness.ask(Renew(worker=dead.worker, lease_seconds=FOREVER, is_new=True))
        late = self.harness.ask(
            Finish(fence=run.fence, outcome="completed", items=answered("too late"))
        )
        assert isinstance(late, RunFenced), late
        self.torn[turn] = book

    @precondition(lambda self: self.torn)
    @rule(data=st.data())
    def take_up_again(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(sorted(self.torn)))
        book = self.torn.pop(turn)
        run = self.start(book, turn)
        self.place_again(book, turn)
        text = self.new("a")
        self.harness.ask(Finish(fence=run.fence, outcome="completed", items=answered(text)))
        book.entries.append(Entry(text, turn))

    def place_again(self, book: Book, turn: str) -> None:
        """A block at the head goes on, its torn end hidden; any other is written anew.

        Where others hid all of it, it is written anew as it was.
        """
        seen, whole = book.of(turn), [e for e in book.block(turn) if not e.is_partial]
        kept = [entry for entry in whole if not entry.is_hidden]
        goes_on = book.entries[-1].turn == turn and bool(kept)
        for entry in seen:
            entry.is_hidden = not goes_on or entry.is_partial
        if not goes_on:
            book.entries.extend(Entry(entry.text, turn) for entry in kept or whole)

    @rule(data=st.data(), back=st.integers(0, 6))
    def edit(self, data: st.DataObject, back: int) -> None:
        book, turn = self.book(data), self.new("t")
        head = len(book.entries)
        after = max(head - back, 0)
        run = self.start(book, turn, rewind=(after, head))
        for entry in book.entries[after:]:
            entry.is_hidden = True
        book.entries.append(Entry(f"{turn}!", turn))
        self.harness.ask(Finish(fence=run.fence, outcome="completed"))

    @rule(data=st.data(), extends=st.integers(0, 2))
    def roll_back(self, data: st.DataObject, extends: int) -> None:
        book, turn, other = self.book(data), self.new("t"), self.new("t")
        run = self.start(book, turn)
        book.entries.append(Entry(f"{turn}!", turn))
        self.extend(book, run, turn, extends)
        second = self.start(book, other, on_busy="rollback")
        for entry in book.of(turn):
            entry.is_hidden = True
        book.entries.append(Entry(f"{other}!", other))
        self.harness.ask(Finish(fence=second.fence, outcome="completed"))

    @rule(data=st.data(), first=st.integers(0, 12), length=st.integers(0, 3))
    def hide(self, data: st.DataObject, first: int, length: int) -> None:
        book = self.book(data)
        caller = self.harness.callers["a"]
        outcome = self.harness.ask(
            Hide(
                tenant=caller.tenant,
                session_id=SessionId(book.id),
                from_seq=first,
                to_seq=first + length,
            )
        )
        if not 1 <= first <= first + length <= len(book.entries):
            assert isinstance(outcome, ItemNotFound)
            return
        assert isinstance(outcome, Session), outcome
        for entry in book.entries[first - 1 : first + length]:
            entry.is_hidden = True

    @precondition(lambda self: len(self.books) < 4)
    @rule(data=st.data(), at=st.integers(0, 14))
    def fork(self, data: st.DataObject, at: int) -> None:
        book = self.book(data)
        caller = self.harness.callers["a"]
        at = min(at, len(book.entries))
        outcome = self.harness.ask(
            Fork(
                tenant=caller.tenant,
                session_id=SessionId(book.id),
                new_id=SessionId(caller.ids.new("ses")),
                after_seq=at,
            )
        )
        assert isinstance(outcome, Session), outcome
        shared = [
            Entry(entry.text, entry.turn, entry.is_hidden, entry.is_partial)
            for entry in book.entries[:at]
        ]
        self.books.append(Book(outcome.id, shared, inherited=at))

    # ── what must hold ──────────────────────────────────────────────────────────────────────

    @invariant()
    def every_log_and_view_is_as_the_model_says(self) -> None:
        for book in self.books:
            session, log, visible = self.harness.do(self.query(book))
            assert log == [entry.text for entry in book.entries]
            expected = [entry.text for entry in book.entries if not entry.is_hidden]
            assert visible == expected
            assert self.harness.do(self.read_whole(book)) == expected
            assert session.item_count == len(expected)
            assert session.head_seq == len(book.entries)

    async def query(self, book: Book) -> tuple[Session, list[str], list[str]]:
        caller = self.harness.callers["a"]
        session = await caller.session(book.id)
        log = await caller.read.items(session, ItemQuery(view="log"))
        visible = await caller.read.items(session, ItemQuery())
        return session, [text_of(item) for item in log], [text_of(item) for item in visible]

    async def read_whole(self, book: Book) -> list[str]:
        """Read as clients do who come again and again, of whom little is read anew."""
        caller = self.harness.callers["a"]
        found = await caller.read.transcript(caller.tenant, session_id=SessionId(book.id))
        assert found is not None
        return [item["content"][0]["text"] for item in msgspec.json.decode(found.listed)]

    @rule(
        data=st.data(),
        after=st.none() | st.integers(0, 16),
        limit=st.integers(1, 6),
        order=st.sampled_from(["asc", "desc"]),
        view=st.sampled_from(["visible", "log"]),
    )
    def read_a_page(
        self,
        data: st.DataObject,
        after: int | None,
        limit: int,
        order: Literal["asc", "desc"],
        view: Literal["visible", "log"],
    ) -> None:
        book = self.book(data)
        caller = self.harness.callers["a"]
        session = self.harness.do(caller.session(book.id))
        query = ItemQuery(after=after, limit=limit, order=order, view=view)
        found = self.harness.do(caller.read.items(session, query))
        numbered = [
            (seq, entry.text)
            for seq, entry in enumerate(book.entries, 1)
            if view == "log" or not entry.is_hidden
        ]
        if order == "desc":
            numbered.reverse()
        if after is not None:
            way = 1 if order == "asc" else -1
            numbered = [(seq, text) for seq, text in numbered if (seq - after) * way > 0]
        assert [(item.seq, text_of(item)) for item in found] == numbered[:limit]


TestTranscript = TranscriptMachine.TestCase
TestTranscript.settings = settings(max_examples=40)
