"""What clients of one session see could have happened in one order, whatever overlapped."""

import random
from dataclasses import replace

import pytest

from tests.simulation.judge import keep, live
from tests.simulation.linearizability import Operation, is_linearizable
from tests.simulation.model import Script
from tests.simulation.plan import Op, Plan, storm_of
from tests.simulation.session_history import EMPTY, Action, apply, history_of

COUNT = 60


def busy_session(seed: int, breakage: str | None = None) -> Plan:
    """Return a world in which many clients append to, read and speak in one session."""
    rng = random.Random(f"session {seed}")
    kinds = rng.choices(("turn", "append", "read"), (5, 3, 3), k=9)
    ops = tuple(
        Op(
            id=f"o{number}",
            kind=kind,  # type: ignore[arg-type]
            at=round(rng.uniform(0.0, 1.2), 2),
            script=Script(op=f"o{number}", seconds=rng.choice((0.0, 0.1, 0.3))),
            patience=20.0,
        )
        for number, kind in enumerate(kinds)
    )
    rough = storm_of(seed)
    return replace(rough, seed=f"session {seed}", ops=ops, breakage=breakage)


@pytest.mark.parametrize("first", range(0, COUNT, 20))
def test_the_history_of_a_session_is_linearizable(first: int) -> None:
    for seed in range(first, first + 20):
        story = keep(busy_session(seed), f"busy_session({seed})")
        assert is_linearizable(history_of(story), apply, EMPTY), f"busy_session({seed})"


@pytest.mark.parametrize("seed", [1639])
def test_what_a_long_run_once_found_is_linearizable(seed: int) -> None:
    story = keep(busy_session(seed), f"busy_session({seed})")
    assert is_linearizable(history_of(story), apply, EMPTY), f"busy_session({seed})"


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 3000, 200))
def test_the_histories_of_many_sessions_are_linearizable(first: int) -> None:
    for seed in range(first, first + 200):
        story = keep(busy_session(seed), f"busy_session({seed})")
        assert is_linearizable(history_of(story), apply, EMPTY), f"busy_session({seed})"


def test_a_reservation_in_two_steps_gives_histories_that_are_not() -> None:
    found = (
        is_linearizable(
            history_of(live(busy_session(seed, "reservation in two steps"))), apply, EMPTY
        )
        for seed in range(30)
    )
    assert not all(found)


def serial_history(rng: random.Random, count: int) -> list[Operation[Action]]:
    """Return appends and reads that happened one after the other, with some overlap around them."""
    log: tuple[str, ...] = ()
    history = []
    for number in range(count):
        invoked = 10 * number - rng.randrange(25)
        returned = 10 * number + 1 + rng.randrange(25)
        if rng.random() < 0.6:
            log = (*log, f"i{number}")
            history.append(Operation(Action("append", text=f"i{number}"), invoked, returned))
        else:
            history.append(Operation(Action("read", seen=log), invoked, returned))
    return history


@pytest.mark.parametrize("seed", range(20))
def test_the_checker_accepts_what_happened_in_some_order(seed: int) -> None:
    assert is_linearizable(serial_history(random.Random(seed), 16), apply, EMPTY)


@pytest.mark.parametrize("seed", range(20))
def test_the_checker_refuses_a_read_that_misses_what_was_committed(seed: int) -> None:
    history = serial_history(random.Random(seed), 24)
    places = [n for n, op in enumerate(history) if len(op.action.seen or ()) > 4]
    read = history[places[-1]]
    assert read.action.seen is not None
    seen = read.action.seen[1:]
    history[places[-1]] = replace(read, action=replace(read.action, seen=seen))
    assert not is_linearizable(history, apply, EMPTY)


def test_an_operation_without_an_answer_may_have_happened_or_not() -> None:
    unsure = Operation(Action("append", text="a"), 0, None)
    for seen in ((), ("a",)):
        history = [unsure, Operation(Action("read", seen=seen), 5, 6)]
        assert is_linearizable(history, apply, EMPTY)
    back_and_forth = [
        unsure,
        Operation(Action("read", seen=("a",)), 5, 6),
        Operation(Action("read", seen=()), 7, 8),
    ]
    assert not is_linearizable(back_and_forth, apply, EMPTY)
