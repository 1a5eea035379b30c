"""Sessions, turns and runs as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.healing.policy import Heal, read_heals
from holdfast.core.model.request import TurnRequest, find_request, response_id
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.engine.turns.approvals import waits_for_approval
from holdfast.ports.store import SessionView, TurnView

COUNTERS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def session_value(view: SessionView) -> dict[str, Any]:
    """Return a session object."""
    session = view.session
    return {
        "id": session.id,
        "object": "session",
        "key": session.key,
        "generation": session.generation,
        "previous_session_id": session.previous_session_id,
        "parent_session_id": session.parent_id,
        "parent_sequence": session.parent_seq if session.parent_id is not None else None,
        "status": view.status,
        "active_turn_id": session.active_turn_id,
        "queued_turns": view.queued_turns,
        "waits_for": _waits_for(session),
        "last_turn": _last_turn(view.last_turn),
        "created_at": int(session.created_at),
        "source": session.started_by,
        "last_user_activity_at": _seconds(session.last_user_activity_at),
        "item_count": session.item_count,
        "turn_count": session.turn_count,
        "usage": _usage({name: getattr(session, name) for name in COUNTERS}),
        "metadata": msgspec.Raw(session.metadata),
    }


def _waits_for(session: Session) -> str | None:
    """Return what the running turn waits for from outside, if it waits."""
    if not session.is_held:
        return None
    return "approval" if waits_for_approval(session) else "tool_outputs"


def _last_turn(turn: Turn | None) -> dict[str, Any] | None:
    if turn is None or turn.outcome is None:
        return None
    request = find_request(turn.request)
    return {
        "id": turn.id,
        "status": turn.outcome,
        "model": request.model if request is not None else None,
        "error": _error(turn),
        "started_at": _seconds(turn.started_at),
        "ended_at": _seconds(turn.ended_at),
        "duration_ms": _duration_ms(turn),
    }


def turn_value(view: TurnView, runs: Sequence[Run]) -> dict[str, Any]:
    """Return a turn object with its runs; unknown values are `null`."""
    turn, request = view.turn, find_request(view.turn.request)
    return {
        "id": turn.id,
        "object": "turn",
        "session_id": turn.session_id,
        "number": turn.number,
        "status": view.status,
        "source": turn.source,
        "model": request.model if request is not None else None,
        "step": turn.step,
        "attempts": turn.attempts,
        "merged_into": turn.merged_into,
        "error": _error(turn),
        "response_id": _response_id(turn, request),
        "first_sequence": turn.first_seq,
        "last_sequence": turn.last_seq,
        "accepted_at": int(turn.accepted_at),
        "started_at": _seconds(turn.started_at),
        "ended_at": _seconds(turn.ended_at),
        "queued_ms": _queued_ms(turn),
        "duration_ms": _duration_ms(turn),
        "usage": _usage(_total_usage(runs)),
        "runs": [run_value(run, view) for run in runs],
    }


def run_value(run: Run, view: TurnView) -> dict[str, Any]:
    """Return a run object."""
    status = run.outcome or ("running" if view.status == "running" else "interrupted")
    return {
        "id": run.id,
        "object": "run",
        "step": run.step,
        "status": status,
        "epoch": run.epoch,
        "worker": run.worker,
        "error": _error(run),
        "started_at": int(run.started_at),
        "ended_at": _seconds(run.ended_at),
        "duration_ms": _duration_ms(run),
        "usage": _usage({name: getattr(run, name) for name in COUNTERS}),
        "heals": _heals(run) if run.heals else None,
        "late": msgspec.Raw(run.late) if run.late else None,
    }


def _heals(run: Run) -> list[Heal]:
    """Return a run's heals without the sent requests, which the projection shows."""
    return [msgspec.structs.replace(heal, sent=None) for heal in read_heals(run.heals)]


def _total_usage(runs: Sequence[Run]) -> dict[str, int | None]:
    """Sum the usage of ended runs; `None` if the usage of one of them is unknown."""
    ended = [run for run in runs if run.outcome is not None]
    sums: dict[str, int | None] = {}
    for name in COUNTERS:
        counts = [getattr(run, name) for run in ended]
        is_known = bool(counts) and None not in counts
        sums[name] = sum(counts) if is_known else None
    return sums


def _usage(counts: dict[str, int | None]) -> dict[str, int | None]:
    input_tokens, output_tokens = counts["input_tokens"], counts["output_tokens"]
    is_known = input_tokens is not None and output_tokens is not None
    total = (input_tokens or 0) + (output_tokens or 0) if is_known else None
    return {**counts, "total_tokens": total}


def _response_id(turn: Turn, request: TurnRequest | None) -> str | None:
    """Return the id of the response of the turn's last step, if it is stored."""
    if request is None or request.api != "responses" or not request.is_stored:
        return None
    return response_id(turn.id, turn.step)


def _error(ended: Turn | Run) -> dict[str, Any] | None:
    if ended.error_code is None:
        return None
    return {"code": ended.error_code, "message": ended.error_message}


def _duration_ms(ended: Turn | Run) -> int | None:
    if ended.ended_at is None or ended.started_at is None:
        return None
    return round((ended.ended_at - ended.started_at) * 1000)


def _queued_ms(turn: Turn) -> int | None:
    """Return how long a turn waited for its lane; None if it has not started."""
    return round((turn.started_at - turn.accepted_at) * 1000) if turn.started_at else None


def _seconds(moment: float | None) -> int | None:
    return int(moment) if moment is not None else None
