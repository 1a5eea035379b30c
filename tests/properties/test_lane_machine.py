"""The lane of a session against a list: who runs, who waits, who is next, and how each one ends."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.errors import LaneFull, RunFenced, SessionBusy, TurnCancelled, TurnInterrupted
from holdfast.core.ids import Key, RunId, WorkerId
from holdfast.core.model.items import write_item
from holdfast.core.model.turn import RUN_AGAIN, Fence, OnBusy, Source
from holdfast.core.transaction.commands import (
    Accept,
    Cancel,
    Claim,
    ExpireWorker,
    Finish,
    LaneLimits,
    Queued,
    Recover,
    Renew,
    Repeated,
    Started,
)
from holdfast.ports.store import SessionView, TurnView
from tests.properties.store_harness import FOREVER, StoreHarness

LIMITS = LaneLimits(max_waiting=3, max_attempts=2, can_run_again=True)
HOLD_SECONDS = 60.0
WORKERS = ("a", "b")
SOURCES: st.SearchStrategy[Source] = st.sampled_from(["user", "background", "channel", "system"])


@dataclass
class Known:
    """A turn as the model knows it."""

    id: str
    name: str
    source: Source
    worker: str
    place: int
    end: str | None = None
    code: str | None = None
    is_retryable: bool = False
    attempts: int = 0
    step: int = 0
    fence: Fence | None = None
    old_fences: list[Fence] = field(default_factory=list)


class LaneMachine(RuleBasedStateMachine):
    """Drives one lane from two workers, one of which may die, and predicts every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = StoreHarness(*WORKERS)
        self.turns: list[Known] = []
        self.active: Known | None = None
        self.held_until: float | None = None
        self.gone: set[str] = set()
        self.count = 0

    def teardown(self) -> None:
        self.harness.close()

    # ── the model ───────────────────────────────────────────────────────────────────────────

    def waiting(self) -> list[Known]:
        found = [turn for turn in self.turns if turn.end is None and turn is not self.active]
        return sorted(found, key=lambda turn: turn.place)

    def is_due(self, worker: str) -> bool:
        """Whether the turn that has the lane is to be settled by whoever looks next."""
        if self.active is None:
            return False
        if self.held_until is not None:
            return self.held_until <= self.harness.clock.now()
        return self.active.worker in self.gone and self.active.worker != worker

    def settle(self, worker: str) -> None:
        turn = self.active
        assert turn is not None
        self.active = None
        if self.held_until is not None:
            self.held_until = None
            self.end(turn, "interrupted", "tool_wait_expired", is_retryable=False)
        elif turn.attempts >= LIMITS.max_attempts:
            self.end(turn, "failed", "turn_abandoned", is_retryable=False)
        elif turn.source in RUN_AGAIN:
            turn.worker = worker
            self.forget_fence(turn)
        else:
            self.end(turn, "interrupted", "worker_lost", is_retryable=True)

    def end(self, turn: Known, outcome: str, code: str | None, *, is_retryable: bool) -> None:
        turn.end, turn.code, turn.is_retryable = outcome, code, is_retryable
        self.forget_fence(turn)
        if self.active is turn:
            self.active, self.held_until = None, None

    def forget_fence(self, turn: Known) -> None:
        if turn.fence is not None:
            turn.old_fences.append(turn.fence)
            turn.fence = None

    def begin(self, turn: Known, worker: str, fence: Fence) -> None:
        turn.worker, turn.fence = worker, fence
        turn.attempts += 1
        self.active, self.held_until = turn, None

    def tail(self) -> int:
        return max([len(self.turns), *(turn.place for turn in self.turns if turn.end is None)]) + 1

    # ── what can be done ────────────────────────────────────────────────────────────────────

    def accept(self, worker: str, name: str, **more: Any) -> Any:
        caller = self.harness.callers[worker]
        arrival = caller.arrival(
            name, key="k", limits=LIMITS, idempotency_key=name, body_hash=name.encode(), **more
        )
        return self.harness.ask(arrival), arrival

    @initialize(sources=st.lists(SOURCES, min_size=2, max_size=4))
    def arrive_together(self, sources: list[Source]) -> None:
        for number, source in enumerate(sources):
            self.arrive(WORKERS[number % 2], "enqueue", source)

    @rule(worker=st.sampled_from(WORKERS), source=SOURCES)
    def arrive_and_wait(self, worker: str, source: Source) -> None:
        self.arrive(worker, "enqueue", source)

    @rule(
        worker=st.sampled_from(WORKERS),
        on_busy=st.sampled_from(["reject", "interrupt", "rollback"]),
        source=SOURCES,
    )
    def arrive_in_a_hurry(self, worker: str, on_busy: OnBusy, source: Source) -> None:
        self.arrive(worker, on_busy, source)

    def arrive(self, worker: str, on_busy: OnBusy, source: Source) -> None:
        if worker in self.gone:
            return
        self.count += 1
        outcome, arrival = self.accept(worker, f"t{self.count}", on_busy=on_busy, source=source)
        will_settle = self.is_due(worker)
        waits = len(self.waiting()) + (will_settle and self.will_requeue())
        is_free = self.active is None or will_settle
        if not is_free or waits:
            if on_busy == "reject":
                assert isinstance(outcome, SessionBusy)
                return
            if on_busy == "enqueue" and waits >= LIMITS.max_waiting:
                assert isinstance(outcome, LaneFull)
                return
        if will_settle:
            self.settle(worker)
        turn = Known(arrival.turn_id, f"t{self.count}", source, worker, self.tail())
        if on_busy in ("interrupt", "rollback") and (self.active is not None or waits):
            places = [known.place for known in self.turns if known.end is None]
            turn.place = min(places, default=1) - 1
            if self.active is not None:
                code = {"interrupt": "interrupted_by_turn", "rollback": "rolled_back"}[on_busy]
                self.end(self.active, "cancelled", code, is_retryable=False)
            waits = 0
        self.turns.append(turn)
        self.check_admitted(turn, worker, outcome, starts=self.active is None and not waits)

    def will_requeue(self) -> bool:
        turn = self.active
        assert turn is not None
        is_kept = turn.source in RUN_AGAIN and turn.attempts < LIMITS.max_attempts
        return self.held_until is None and is_kept

    def check_admitted(self, turn: Known, worker: str, outcome: Any, *, starts: bool) -> None:
        assert isinstance(outcome, Started if starts else Queued), outcome
        assert outcome.turn.id == turn.id
        if isinstance(outcome, Started):
            self.begin(turn, worker, outcome.fence)

    def torn(self) -> list[Known]:
        return [turn for turn in self.turns if turn.end in ("interrupted", "failed")]

    @precondition(lambda self: self.torn())
    @rule(worker=st.sampled_from(WORKERS), data=st.data())
    def send_torn_again(self, worker: str, data: st.DataObject) -> None:
        self.send_again(worker, data.draw(st.sampled_from(self.torn())))

    @precondition(lambda self: self.turns)
    @rule(worker=st.sampled_from(WORKERS), data=st.data())
    def send_any_again(self, worker: str, data: st.DataObject) -> None:
        self.send_again(worker, data.draw(st.sampled_from(self.turns)))

    def send_again(self, worker: str, turn: Known) -> None:
        if worker in self.gone or turn.step:
            return
        outcome, _ = self.accept(worker, turn.name)
        if self.active is turn and self.is_due(worker):
            self.settle(worker)
        is_torn = turn.end == "interrupted" or (turn.end == "failed" and turn.is_retryable)
        if not is_torn or turn.code == "tool_wait_expired":
            assert isinstance(outcome, Repeated), outcome
            assert outcome.turn.id == turn.id
            return
        if self.is_due(worker):
            self.settle(worker)
        starts = self.active is None and not self.waiting()
        turn.place = self.tail()
        turn.attempts = turn.attempts if turn.code == "worker_lost" else 0
        turn.end = turn.code = None
        turn.worker = worker
        self.check_admitted(turn, worker, outcome, starts=starts)

    @precondition(lambda self: self.waiting())
    @rule(worker=st.sampled_from(WORKERS))
    def claim_the_next(self, worker: str) -> None:
        self.claim(worker, self.waiting()[0])

    @precondition(lambda self: self.turns)
    @rule(worker=st.sampled_from(WORKERS), data=st.data())
    def claim_any(self, worker: str, data: st.DataObject) -> None:
        self.claim(worker, data.draw(st.sampled_from(self.turns)))

    def claim(self, worker: str, turn: Known) -> None:
        if worker in self.gone:
            return
        caller = self.harness.callers[worker]
        outcome = self.harness.ask(
            Claim(
                turn_id=turn.id,  # type: ignore[arg-type]
                run_id=RunId(caller.ids.new("run")),
                worker=caller.worker,
                limits=LIMITS,
            )
        )
        if turn.end is not None:
            refused = TurnCancelled if turn.end == "cancelled" else TurnInterrupted
            assert isinstance(outcome, refused)
            return
        was_active = turn is self.active
        if self.is_due(worker):
            self.settle(worker)
        is_next = self.active is None and self.waiting()[:1] == [turn]
        if is_next and not was_active:
            assert isinstance(outcome, Started), outcome
            self.begin(turn, worker, outcome.fence)
        else:
            assert isinstance(outcome, Queued), outcome

    @precondition(lambda self: self.active is not None and self.active.fence is not None)
    @rule(
        outcome=st.sampled_from(["completed", "failed", "interrupted"]), is_retryable=st.booleans()
    )
    def finish_one(self, outcome: str, is_retryable: bool) -> None:
        self.finish(outcome, is_retryable)

    def finish(self, outcome: str, is_retryable: bool) -> None:
        turn = self.active
        assert turn is not None
        assert turn.fence is not None
        ended = self.harness.ask(
            Finish(fence=turn.fence, outcome=outcome, is_retryable=is_retryable)  # type: ignore[arg-type]
        )
        assert not isinstance(ended, Exception), ended
        self.end(turn, outcome, None, is_retryable=is_retryable)

    @precondition(lambda self: self.waiting())
    @rule(outcome=st.sampled_from(["completed", "interrupted"]))
    def run_them_all(self, outcome: str) -> None:
        """Let the lane come free, however many wait in it."""
        for _ in range(2 * len(self.turns)):
            if self.waiting() and (self.active is None or self.is_due("a")):
                self.claim("a", self.waiting()[0])
            if self.active is not None and self.active.fence is not None:
                self.finish(outcome, True)

    @precondition(lambda self: self.active is not None and self.active.fence is not None)
    @rule()
    def call_tools(self) -> None:
        turn = self.active
        assert turn is not None
        assert turn.fence is not None
        ended = self.harness.ask(
            Finish(
                fence=turn.fence,
                outcome="completed",
                pending_calls=(f"call_{turn.name}",),
                hold_seconds=HOLD_SECONDS,
            )
        )
        assert not isinstance(ended, Exception), ended
        self.forget_fence(turn)
        self.held_until = self.harness.clock.now() + HOLD_SECONDS

    @precondition(lambda self: self.held_until is not None)
    @rule(worker=st.sampled_from(WORKERS))
    def answer_tools(self, worker: str) -> None:
        turn = self.active
        assert turn is not None
        assert self.held_until is not None
        if worker in self.gone or self.held_until <= self.harness.clock.now():
            return
        output = write_item(
            {"type": "function_call_output", "call_id": f"call_{turn.name}", "output": "4"}
        )
        caller = self.harness.callers[worker]
        arrival: Accept = caller.arrival(key="k", items=(output,), limits=LIMITS, on_busy="reject")
        outcome = self.harness.ask(arrival)
        assert isinstance(outcome, Started), outcome
        assert outcome.turn.id == turn.id
        turn.step += 1
        turn.attempts = 0
        self.begin(turn, worker, outcome.fence)

    @precondition(lambda self: any(turn.old_fences for turn in self.turns))
    @rule(data=st.data())
    def write_late(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from([turn for turn in self.turns if turn.old_fences]))
        fence = data.draw(st.sampled_from(turn.old_fences))
        outcome = self.harness.ask(Finish(fence=fence, outcome="completed"))
        assert isinstance(outcome, RunFenced), outcome

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(self.turns))
        caller = self.harness.callers["a"]
        outcome = self.harness.ask(Cancel(tenant=caller.tenant, turn_id=turn.id))  # type: ignore[arg-type]
        assert not isinstance(outcome, Exception), outcome
        if turn.end is None:
            self.end(turn, "cancelled", "turn_cancelled", is_retryable=False)

    @precondition(lambda self: "b" not in self.gone and self.active is not None)
    @rule()
    def die(self) -> None:
        worker = self.harness.callers["b"].worker
        self.harness.ask(ExpireWorker(worker=worker))
        self.gone.add("b")

    def is_survived(self) -> bool:
        is_owner = any(turn.worker == "b" and turn.end is None for turn in self.turns)
        return "b" in self.gone and not is_owner

    @precondition(lambda self: self.is_survived())
    @rule()
    def come_back(self) -> None:
        """Another process takes the dead one's place, under a new name."""
        caller = self.harness.callers["b"]
        self.harness.ask(ExpireWorker(worker=caller.worker, drop=True))
        caller.worker = WorkerId(caller.ids.new("wrk"))
        self.harness.ask(Renew(worker=caller.worker, lease_seconds=FOREVER, is_new=True))
        self.gone.discard("b")

    @precondition(lambda self: self.turns)
    @rule()
    def recover(self) -> None:
        caller = self.harness.callers["a"]
        view = self.harness.do(caller.read.turn(caller.tenant, self.turns[0].id))  # type: ignore[arg-type]
        assert view is not None
        command = Recover(session_id=view.turn.session_id, worker=caller.worker, limits=LIMITS)
        outcome = self.harness.ask(command)
        assert not isinstance(outcome, Exception), outcome
        if self.is_due("a"):
            self.settle("a")
        for turn in self.waiting():
            if turn.worker not in self.gone:
                continue
            if turn.source in RUN_AGAIN:
                turn.worker = "a"
            else:
                self.end(turn, "interrupted", "worker_lost", is_retryable=True)

    @precondition(lambda self: self.held_until is not None)
    @rule(seconds=st.sampled_from([1.0, HOLD_SECONDS / 2, HOLD_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.harness.clock.advance(seconds)

    # ── what must hold ──────────────────────────────────────────────────────────────────────

    @invariant()
    def the_store_agrees(self) -> None:
        if not self.turns:
            return
        session, views = self.harness.do(self.query())
        assert [view.turn.id for view in views] == [turn.id for turn in self.turns]
        for turn, view in zip(self.turns, views, strict=True):
            assert view.status == self.status(turn), turn
            assert (view.turn.outcome, view.turn.error_code) == (turn.end, turn.code), turn
        assert session.session.active_turn_id == (self.active.id if self.active else None)
        assert session.queued_turns == len(self.waiting())

    async def query(self) -> tuple[SessionView, list[TurnView]]:
        caller = self.harness.callers["a"]
        session = await caller.read.session(caller.tenant, key=Key("k"))
        assert session is not None
        return session, await caller.read.turns(session.session.id, limit=500)

    def status(self, turn: Known) -> str:
        if turn.end is not None:
            return turn.end
        if turn is not self.active:
            return "queued"
        if self.held_until is not None:
            return "requires_action"
        return "interrupted" if turn.worker in self.gone else "running"


TestLane = LaneMachine.TestCase
TestLane.settings = settings(max_examples=100)
