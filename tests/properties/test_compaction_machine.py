"""Compactions, undone, hidden from, forked: what is shown is what a small model says it is."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from holdfast.core.compaction.records import SUMMARY_OPENING, CompactionRecord
from holdfast.core.errors import HoldfastError
from holdfast.core.ids import SessionId
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Compact, Fork, Hide, Started, UndoCompaction
from holdfast.ports.store import ItemQuery
from holdfast.testing.store_client import StoreClient, text_of
from tests.properties.store_harness import StoreHarness


@dataclass
class Made:
    """A compaction as the model knows it."""

    name: str
    to_seq: int
    keeps: tuple[int, ...]
    is_undone: bool = False
    is_void: bool = False
    is_own: bool = True


@dataclass
class Shelf:
    """A session as the model knows it."""

    session: Session
    log: list[str] = field(default_factory=list)
    hidden: set[int] = field(default_factory=set)
    made: list[Made] = field(default_factory=list)

    def current(self) -> Made | None:
        """Return the compaction that counts."""
        standing = [one for one in self.made if not one.is_undone and not one.is_void]
        return standing[-1] if standing else None

    def shown(self) -> list[str]:
        """Return what a model is to be shown."""
        current = self.current()
        covered = current.to_seq if current else 0
        head = [self.log[seq - 1] for seq in current.keeps] if current else []
        rest = [
            text for seq, text in enumerate(self.log, 1)
            if seq > covered and seq not in self.hidden
        ]  # fmt: skip
        return [*head, *([current.name] if current else []), *rest]

    def fork(self, session: Session, after: int) -> "Shelf":
        """Return the session that begins as this one was up to an item."""
        made = [
            Made(one.name, one.to_seq, one.keeps, one.is_undone,
                 one.is_void or one.to_seq > after, is_own=False)
            for one in self.made
        ]  # fmt: skip
        hidden = {seq for seq in self.hidden if seq <= after}
        return Shelf(session, self.log[:after], hidden, made)


class CompactionMachine(RuleBasedStateMachine):
    """Everything that changes what is shown, in any order."""

    @initialize()
    def open(self) -> None:
        """Begin with one session."""
        self.harness = StoreHarness("w")
        self.caller: StoreClient = self.harness.callers["w"]
        self.count = 0
        session = self.harness.do(self.caller.reserve("k"))
        self.shelves = [Shelf(session)]

    def teardown(self) -> None:
        """Let the store go."""
        if hasattr(self, "harness"):
            self.harness.close()

    def pick(self, data: st.DataObject) -> Shelf:
        """Return one of the sessions."""
        return data.draw(st.sampled_from(self.shelves))

    def begin(self, shelf: Shelf) -> Started:
        """Return a run of a turn that says nothing."""
        work = self.caller.start(session_id=shelf.session.id, source="system")
        return self.harness.do(work)

    @rule(data=st.data(), count=st.integers(1, 4))
    def say(self, data: st.DataObject, count: int) -> None:
        """Add a turn."""
        shelf = self.pick(data)
        texts = []
        for _ in range(count):
            self.count += 1
            texts.append(f"t{self.count}")
        run = self.harness.do(self.caller.start(*texts, session_id=shelf.session.id))
        self.harness.do(self.caller.finish(run, items=()))
        shelf.log += texts

    @precondition(lambda self: any(shelf.log for shelf in self.shelves))
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        """Have a summary stand for a part, or be refused."""
        shelf = self.pick(data)
        to_seq = data.draw(st.integers(0, len(shelf.log) + 1))
        seen = [seq for seq in range(1, to_seq + 1) if seq not in shelf.hidden]
        keeps = tuple(sorted(data.draw(st.sets(st.sampled_from(seen), max_size=2)))) if seen else ()
        self.count += 1
        name = f"sum{self.count}"
        run = self.begin(shelf)
        made = CompactionRecord(
            id=name, mode="given", reason="asked", text=name, keeps=keeps,
            tokens_before=2, tokens_after=1,
        )  # fmt: skip
        answer = self.harness.ask(Compact(fence=run.fence, to_seq=to_seq, compaction=made))
        self.harness.do(self.caller.finish(run, items=()))
        current = shelf.current()
        covered = current.to_seq if current else 0
        is_possible = max(covered, 1) <= to_seq <= len(shelf.log)
        assert isinstance(answer, HoldfastError) != is_possible
        if is_possible:
            shelf.made.append(Made(name, to_seq, keeps))

    @precondition(lambda self: any(shelf.made for shelf in self.shelves))
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        """Take a compaction back; a fork cannot take its parent's."""
        shelf = self.pick(data)
        if not shelf.made:
            return
        one = data.draw(st.sampled_from(shelf.made))
        answer = self.harness.ask(
            UndoCompaction(
                tenant=self.caller.tenant, session_id=shelf.session.id, compaction_id=one.name
            )
        )
        assert isinstance(answer, HoldfastError) != one.is_own
        if one.is_own:
            one.is_undone = True

    @precondition(lambda self: any(shelf.log for shelf in self.shelves))
    @rule(data=st.data(), erase=st.booleans())
    def hide(self, data: st.DataObject, erase: bool) -> None:
        """Take a range out of the view."""
        shelf = self.pick(data)
        if not shelf.log:
            return
        first = data.draw(st.integers(1, len(shelf.log)))
        last = data.draw(st.integers(first, min(first + 2, len(shelf.log))))
        is_erased = erase and len(self.shelves) == 1
        hide = Hide(
            tenant=self.caller.tenant, session_id=shelf.session.id, from_seq=first, to_seq=last,
            erase=is_erased,
        )  # fmt: skip
        self.harness.do(self.caller.submit(hide))
        shelf.hidden |= set(range(first, last + 1))
        for one in shelf.made:
            if one.to_seq >= first:
                one.is_void = True
        if is_erased:
            shelf.made = [one for one in shelf.made if one.to_seq < first]

    @precondition(lambda self: len(self.shelves) < 4)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """Go on elsewhere from some point."""
        shelf = self.pick(data)
        after = data.draw(st.integers(0, len(shelf.log)))
        self.count += 1
        child = self.harness.do(
            self.caller.submit(
                Fork(
                    tenant=self.caller.tenant,
                    session_id=shelf.session.id,
                    new_id=SessionId(f"ses_fork{self.count}"),
                    after_seq=after,
                )
            )
        )
        self.shelves.append(shelf.fork(child, after))

    @invariant()
    def what_is_shown_is_what_the_model_says(self) -> None:
        """Compare every session with its model."""
        for shelf in getattr(self, "shelves", []):
            session = self.harness.do(self.caller.session(shelf.session.id))
            items = self.harness.do(self.caller.read.context(session))
            texts = [text_of(item).removeprefix(SUMMARY_OPENING) for item in items]
            assert texts == shelf.shown()
            view = self.harness.do(self.caller.read.items(session, ItemQuery()))
            assert len(view) == len(shelf.log) - len(shelf.hidden)


TestCompactionMachine: Any = CompactionMachine.TestCase
TestCompactionMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
