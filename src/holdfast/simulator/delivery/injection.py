"""Return the error of a call whose fault is the whole answer."""

from typing import Any

from holdfast.simulator.delivery.errors import (
    Problem,
    anthropic_error,
    catalogue_problem,
    openai_error,
)
from holdfast.simulator.faults.catalogue import SERVER_FAILURE
from holdfast.simulator.faults.effects import (
    Effect,
    ErrorFault,
    Failed,
    ListedFault,
    Lock,
    Overflow,
    Overloaded,
    Quota,
    RateLimit,
)
from holdfast.simulator.state.call import Call
from holdfast.simulator.state.json import Json

_OVERFLOWS = {"messages": "A06", "chat": "C07"}


def injected_problem(call: Call) -> Problem | None:
    """Return the error of the first such fault; None if there is none."""
    for effect in call.effects:
        problem = _problem_of(call, effect)
        if problem is not None:
            return problem
    return None


def _problem_of(call: Call, effect: Effect) -> Problem | None:
    match effect:
        case ListedFault():
            return catalogue_problem(effect.id, **(values_of(call, effect.id) | effect.values))
        case ErrorFault():
            return _custom_error(call, effect)
        case RateLimit():
            return _rate_limited(call, effect.retry_after_seconds)
        case Quota():
            return catalogue_problem("C04")
        case Failed() if call.api in ("chat", "messages") and not call.is_stream:
            return _custom_error(call, ErrorFault(message=server_failure(call)))
        case Lock():
            return catalogue_problem("R08")
        case Overflow() if effect.at == "before" or not _streams_responses(call):
            number = _OVERFLOWS.get(call.api, "R10")
            return catalogue_problem(number, **values_of(call, number))
        case Overloaded() if effect.at == "before" or not _streams_messages(call):
            return catalogue_problem("A09", request_id=call.ids.new("req_011C", size=10))
        case _:
            return None


def server_failure(call: Call) -> str:
    """Return the message of a server that fails while working."""
    return SERVER_FAILURE.format(request_id=call.ids.uuid())


def _streams_responses(call: Call) -> bool:
    return call.api == "responses" and call.is_stream


def _streams_messages(call: Call) -> bool:
    return call.api == "messages" and call.is_stream


def _custom_error(call: Call, effect: ErrorFault) -> Problem:
    headers = dict(effect.headers)
    if effect.retry_after_seconds is not None:
        headers["retry-after"] = f"{effect.retry_after_seconds:g}"
    if call.api == "messages":
        request_id = call.ids.new("req_011C", size=10)
        body = anthropic_error(effect.message, effect.type, request_id)
    else:
        body = openai_error(effect.message, type=effect.type, param=effect.param, code=effect.code)
    return Problem(effect.status, body, headers=headers)


def _rate_limited(call: Call, seconds: float) -> Problem:
    shown = f"{seconds:g}"
    if call.api == "messages":
        body = anthropic_error(
            "This request would exceed your organization's rate limit.",
            "rate_limit_error",
            call.ids.new("req_011C", size=10),
        )
        return Problem(429, body, headers={"retry-after": shown}, fault="C05")
    return catalogue_problem("C05", **(values_of(call, "C05") | {"seconds": shown}))


def values_of(call: Call, number: str) -> dict[str, Any]:
    """Return the values of a catalogue message, taken from the call where possible."""
    body = call.body
    values: dict[str, Any] = {
        "model": call.model or "model",
        "request_id": call.ids.new("req_011C", size=10),
        "limit": 32_768 if number == "C07" else 200_000,
        "used": 200_251,
        "requested": 42_832 if number == "C07" else 20_000,
    }
    if number == "R02":
        values["id"] = body.get("previous_response_id") or "resp_0"
    elif number in ("R01", "R03", "R06", "R07"):
        values["id"] = _first(body.get("input"), "id") or "rs_0"
    elif number in ("R04", "R05"):
        values["id"] = _first(body.get("input"), "call_id") or "call_0"
    elif number == "R17":
        named = body.get("conversation") or call.parameters.get("id") or "conv_0"
        values["id"] = named.get("id") if isinstance(named, dict) else named
    elif number == "C01":
        values |= {"id": "call_0", "index": len(body.get("messages") or [0]) - 1}
    elif number == "C03":
        values |= {"field": "messages[0].tool_calls[0].id", "length": 43}
    elif number in ("A01", "A02"):
        values["id"] = "toolu_0"
    elif number == "G02":
        values["seconds"] = 26
    return values


def _first(items: Any, name: str) -> Any:
    if not isinstance(items, list):
        return None
    found: list[Json] = [item for item in items if isinstance(item, dict) and item.get(name)]
    reasoning = [item for item in found if item.get("type") == "reasoning"]
    chosen = reasoning or found
    return chosen[0][name] if chosen else None
