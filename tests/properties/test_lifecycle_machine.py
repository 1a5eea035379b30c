"""The life of a key against a list of generations: reset, restored, erased, and never mixed up."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.errors import RunFenced, SessionChanged, SessionNotFound, SessionRetired
from holdfast.core.ids import Key, RunId, SessionId, TurnId
from holdfast.core.model.session import ProviderState, Session
from holdfast.core.model.turn import Fence
from holdfast.core.transaction.commands import (
    Claim,
    Delete,
    Finish,
    Queued,
    Reset,
    Restore,
    Started,
)
from holdfast.ports.store import ItemQuery, SessionQuery, SessionView
from holdfast.testing.store_client import answered, text_of
from tests.properties.store_harness import StoreHarness

STATE = ProviderState("openai", "acc", "gpt", b"resp_1")


@dataclass
class Generation:
    """One session of the key."""

    id: str
    number: int
    texts: list[str] = field(default_factory=list)
    has_state: bool = False
    is_deleted: bool = False


class LifecycleMachine(RuleBasedStateMachine):
    """Lives through generations of one key, with a turn under way or not, and others behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = StoreHarness("a")
        self.caller = self.harness.callers["a"]
        self.generations: list[Generation] = []
        self.live: Generation | None = None
        self.running: Fence | None = None
        self.running_id: TurnId | None = None
        self.waiting: list[tuple[TurnId, str]] = []
        self.cancelled: dict[TurnId, tuple[str, Generation]] = {}
        self.late: list[Fence] = []
        self.count = 0

    def teardown(self) -> None:
        self.harness.close()

    def word(self) -> str:
        self.count += 1
        return f"w{self.count}"

    def speak(self, **where: Any) -> Any:
        self.count += 1
        return self.harness.ask(self.caller.arrival(f"w{self.count}", on_busy="reject", **where))

    def arrived(self, outcome: Started) -> None:
        """Take note of a turn that began, in a generation that is new or not."""
        if self.live is None:
            self.live = Generation(outcome.session.id, len(self.generations) + 1)
            self.generations.append(self.live)
        assert outcome.session.id == self.live.id
        assert outcome.session.generation == self.live.number
        self.live.texts.append(f"w{self.count}")
        self.running, self.running_id = outcome.fence, outcome.turn.id

    def retire(self, code: str) -> None:
        """The live generation goes, and with it everything that was accepted in it."""
        if self.live is None:
            return
        if self.running is not None and self.running_id is not None:
            self.late.append(self.running)
            self.cancelled[self.running_id] = (code, self.live)
        self.cancelled |= {turn_id: (code, self.live) for turn_id, _ in self.waiting}
        self.running, self.waiting = None, []
        self.live.has_state = False
        self.live = None

    # ── what can be done ────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.running is None)
    @rule()
    def begin_by_key(self) -> None:
        outcome = self.speak(key="k")
        assert isinstance(outcome, Started), outcome
        self.arrived(outcome)

    @precondition(lambda self: self.generations and self.running is None)
    @rule(data=st.data())
    def begin_by_id(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.generations))
        outcome = self.speak(session_id=chosen.id)
        if chosen.is_deleted:
            assert isinstance(outcome, SessionNotFound), outcome
        elif chosen is not self.live:
            assert isinstance(outcome, SessionRetired), outcome
            assert outcome.live_id == (self.live.id if self.live else None)
        else:
            assert isinstance(outcome, Started), outcome
            self.arrived(outcome)

    @precondition(lambda self: self.running is not None)
    @rule()
    def end(self) -> None:
        assert self.running is not None
        assert self.live is not None
        text = self.word()
        ended = self.harness.ask(
            Finish(
                fence=self.running,
                outcome="completed",
                items=answered(text),
                provider_state=STATE,
            )
        )
        assert not isinstance(ended, Exception), ended
        self.live.texts.append(text)
        self.live.has_state = True
        self.running = None
        if self.waiting:
            self.begin_next()

    def begin_next(self) -> None:
        assert self.live is not None
        turn_id, text = self.waiting.pop(0)
        outcome = self.harness.ask(
            Claim(
                turn_id=turn_id, run_id=RunId(self.caller.ids.new("run")), worker=self.caller.worker
            )
        )
        assert isinstance(outcome, Started), outcome
        self.live.texts.append(text)
        self.running, self.running_id = outcome.fence, turn_id

    @precondition(lambda self: self.running is not None)
    @rule(by_key=st.booleans())
    def wait_behind(self, by_key: bool) -> None:
        assert self.live is not None
        text = self.word()
        where: dict[str, Any] = {"key": "k"} if by_key else {"session_id": self.live.id}
        outcome = self.harness.ask(self.caller.arrival(text, **where))
        assert isinstance(outcome, Queued), outcome
        assert outcome.session.id == self.live.id
        self.waiting.append((outcome.turn.id, text))

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def end_late(self, data: st.DataObject) -> None:
        fence = data.draw(st.sampled_from(self.late))
        outcome = self.harness.ask(
            Finish(
                fence=fence,
                outcome="completed",
                items=answered("too late"),
                provider_state=STATE,
            )
        )
        assert isinstance(outcome, RunFenced), outcome

    @precondition(lambda self: self.generations)
    @rule(data=st.data(), expects=st.booleans())
    def reset(self, data: st.DataObject, expects: bool) -> None:
        chosen = data.draw(st.sampled_from(self.generations))
        expected = data.draw(st.sampled_from(self.generations)) if expects else chosen
        new_id = SessionId(self.caller.ids.new("ses"))
        outcome = self.harness.ask(
            Reset(
                tenant=self.caller.tenant,
                session_id=SessionId(chosen.id),
                new_id=new_id,
                expected_id=SessionId(expected.id) if expects else None,
            )
        )
        if chosen.is_deleted:
            assert isinstance(outcome, SessionNotFound), outcome
        elif chosen is not self.live or expected is not chosen:
            assert isinstance(outcome, SessionChanged), outcome
        else:
            assert isinstance(outcome, Session), outcome
            assert outcome.previous_session_id == chosen.id
            self.retire("session_reset")
            self.live = Generation(new_id, len(self.generations) + 1)
            self.generations.append(self.live)

    @precondition(lambda self: self.generations)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.generations))
        outcome = self.harness.ask(
            Restore(tenant=self.caller.tenant, session_id=SessionId(chosen.id))
        )
        if chosen.is_deleted:
            assert isinstance(outcome, SessionNotFound), outcome
            return
        assert isinstance(outcome, Session), outcome
        if chosen is not self.live:
            self.retire("session_restored")
            self.live = chosen

    @precondition(lambda self: len(self.generations) > 1)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.generations))
        outcome = self.harness.ask(
            Delete(tenant=self.caller.tenant, session_id=SessionId(chosen.id))
        )
        if chosen.is_deleted:
            assert isinstance(outcome, SessionNotFound), outcome
            return
        assert isinstance(outcome, Session), outcome
        if chosen is self.live:
            # Its turns go with it: nobody can ask what became of them.
            self.retire("session_deleted")
        chosen.is_deleted, chosen.has_state = True, False

    # ── what must hold ──────────────────────────────────────────────────────────────────────

    @invariant()
    def one_generation_at_most_is_live(self) -> None:
        view = self.harness.do(self.caller.read.session(self.caller.tenant, key=Key("k")))
        if self.live is None:
            assert view is None
            return
        assert view is not None
        assert view.session.id == self.live.id
        assert view.session.active_run_id == (self.running.run_id if self.running else None)
        assert view.status == ("running" if self.running else "idle")
        assert view.queued_turns == len(self.waiting)

    @invariant()
    def what_was_accepted_before_has_ended_and_says_why(self) -> None:
        for turn_id, (code, generation) in self.cancelled.items():
            view = self.harness.do(self.caller.read.turn(self.caller.tenant, turn_id))
            assert (view is None) == generation.is_deleted
            if view is not None:
                assert (view.status, view.turn.error_code) == ("cancelled", code)

    @invariant()
    def every_generation_is_listed_until_it_is_erased(self) -> None:
        views, texts, states = self.harness.do(self.query())
        kept = [one for one in self.generations if not one.is_deleted]
        assert sorted(view.session.id for view in views) == sorted(one.id for one in kept)
        for one in kept:
            assert texts[one.id] == one.texts
            assert states[one.id] == one.has_state

    async def query(self) -> tuple[list[SessionView], dict[str, list[str]], dict[str, bool]]:
        read, tenant = self.caller.read, self.caller.tenant
        query = SessionQuery(key=Key("k"), generations=True, limit=500)
        views = await read.sessions(tenant, query)
        texts: dict[str, list[str]] = {}
        states: dict[str, bool] = {}
        for view in views:
            session = view.session
            items = await read.items(session, ItemQuery())
            texts[session.id] = [text_of(item) for item in items]
            states[session.id] = bool(await read.provider_state(session.id))
        return views, texts, states


TestLifecycle = LifecycleMachine.TestCase
TestLifecycle.settings = settings(max_examples=40)
