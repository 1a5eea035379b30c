"""Print a story in readable lines."""

from typing import Any

import msgspec

from holdfast.core.model.session import Session
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import Appended, Ended, Queued, Repeated, Started
from tests.simulation.disk import Written, outcome_of

_NAMED = ("turn_id", "run_id", "session_id", "worker", "key", "idempotency_key", "outcome", "again")


def line(event: str | Written) -> str:
    """Return one event of a trace as a line."""
    if isinstance(event, str):
        return event
    asked = " ".join(f"{k}={v}" for k, v in _asked(event.command).items())
    name = type(event.command).__name__
    answer = _answer(outcome_of(event))
    return f"{event.at:8.3f} {event.replica} #{event.write} {name} {asked} -> {answer}"


def _asked(command: Any) -> dict[str, Any]:
    fields = {name: getattr(command, name, None) for name in _NAMED}
    fence = getattr(command, "fence", None)
    if fence is not None:
        fields["fence"] = f"{fence.session_id}/{fence.run_id}/e{fence.epoch}"
    if getattr(command, "on_busy", "enqueue") != "enqueue":
        fields["on_busy"] = command.on_busy
    return {name: value for name, value in fields.items() if value}


def _answer(outcome: Any) -> str:
    match outcome:
        case Started():
            return f"started {outcome.turn.id} e{outcome.fence.epoch} {outcome.session.id}"
        case Queued():
            return f"queued {outcome.turn.id} at {outcome.turn.position} {outcome.session.id}"
        case Repeated():
            return f"repeated {outcome.turn.id} ({outcome.turn.outcome})"
        case Ended() | Appended():
            return f"{outcome.turn.id} {outcome.turn.outcome} head {outcome.session.head_seq}"
        case Turn():
            return f"{outcome.id} {outcome.outcome}"
        case Session():
            return f"{outcome.id} e{outcome.epoch} head {outcome.head_seq}"
        case BaseException():
            return f"{type(outcome).__name__}: {outcome}"
        case _:
            return msgspec.json.encode(outcome).decode()
