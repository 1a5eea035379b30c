"""The history of a session from its clients' view: appends, reads, and turns that begin and end.

The model is a list. A turn begins when its input is appended to the list, and its model must have
seen the list at that moment. It ends when its answer is appended, or is interrupted without one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tests.simulation.clients import Heard, said_by
from tests.simulation.linearizability import Operation
from tests.simulation.model import ModelCall, text_of
from tests.simulation.plan import Op
from tests.simulation.replica import Answer
from tests.simulation.world import Story

Log = tuple[str, ...]
State = tuple[Log, str | None]
"""The list, and the turn in progress."""

EMPTY: State = ((), None)


@dataclass(frozen=True, slots=True)
class Action:
    """One operation; `seen` is what it read, if it read anything."""

    kind: Literal["append", "read", "begin", "end", "tear"]
    turn: str = ""
    text: str = ""
    seen: Log | None = None


def apply(state: State, action: Action) -> Iterable[State]:
    """Return the states that may follow; empty if the action is impossible here."""
    log, running = state
    match action.kind:
        case "read" if action.seen == log:
            yield state
        case "append" if running is None:
            yield (*log, action.text), None
        case "begin" if running is None:
            after = (*log, action.text)
            if action.seen is None or action.seen == after:
                yield after, action.turn
        case "end" if running == action.turn:
            yield (*log, action.text), None
        case "tear" if running == action.turn:
            yield log, None
        case _:
            pass


def history_of(story: Story) -> list[Operation[Action]]:
    """Return the operations of a story's clients on its one session."""
    calls = {call.op: call for call in story.model.calls}
    history: list[Operation[Action]] = []
    for heard in [*story.heard, *story.probes]:
        match heard.op.kind:
            case "append":
                action = Action("append", text=said_by(heard.op, heard.op.id))
                history.append(Operation(action, heard.sent, _returned(heard)))
            case "read" if heard.answer is not None:
                history.append(
                    Operation(Action("read", seen=heard.answer), heard.sent, heard.heard)
                )
            case "turn":
                history.extend(_turn(heard, calls.get(heard.op.id)))
            case _:
                pass
    return history


def _returned(heard: Heard) -> int | None:
    return heard.heard if heard.error is None else None


def _turn(heard: Heard, call: ModelCall | None) -> Iterable[Operation[Action]]:
    op = heard.op
    begin = Action("begin", op.id, _words(op), _shown(call))
    if call is None:
        yield Operation(begin, heard.sent, None)
        yield Operation(Action("tear", op.id), heard.sent, None)
        return
    yield Operation(begin, heard.sent, call.moment)
    if isinstance(heard.answer, Answer) and heard.answer.stored is not None:
        end = Action("end", op.id, heard.answer.stored.text)
        yield Operation(end, call.moment, heard.heard)
    else:
        yield Operation(Action("end", op.id, f"answer {op.id} {call.run_id}"), call.moment, None)
        # A frozen worker may call its model long after it lost the turn.
        yield Operation(Action("tear", op.id), heard.sent, None)


def _words(op: Op) -> str:
    return said_by(op, op.id)


def _shown(call: ModelCall | None) -> Log | None:
    return tuple(text_of(body) for body in call.context) if call is not None else None
