"""Steering over WebSocket: input for a response that the same connection is receiving.

The input is a separate turn that joins the running one at its next model call. Its response
follows the steered response, as the successor that clients wait for.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import TurnRequest
from holdfast.engine.turns.turn_service import TurnTicket
from holdfast.http.request.body import Fields

MAX_PENDING = 16
"""The most inputs that may wait to join one response."""
FIELDS = frozenset({"type", "previous_response_id", "input"})
_MESSAGE_FIELDS = frozenset({"type", "role", "content"})
_PARTS = ("input_text", "input_image", "input_file")
_encode = msgspec.json.Encoder().encode

SteerError = Literal[
    "response_not_found",
    "invalid_input",
    "too_many_pending_steers",
    "response_already_completed",
    "successor_creation_failed",
]


class Steer:
    """Input that was sent to steer a response."""

    def __init__(self, previous: str) -> None:
        self.previous = previous
        self.ticket: asyncio.Future[TurnTicket | None] = asyncio.get_running_loop().create_future()
        """Its turn once accepted; None if it is rejected."""
        self.is_pending = False
        """Whether the client knows that it waits for the outputs of the client's tools."""


class RunningResponse:
    """A response whose events a connection is sending, and the input that steers it."""

    def __init__(self, ticket: TurnTicket, request: TurnRequest, stream_id: str | None) -> None:
        self.ticket = ticket
        self.request = request
        self.stream_id = stream_id
        self.steers: list[Steer] = []


def check_steering(fields: Fields, items: Sequence[NewItem]) -> str:
    """Return the id of the response to steer; raise `InvalidInput` for anything but messages."""
    for name in fields:
        if name not in FIELDS:
            raise InvalidInput(f"response.steer has no field {name!r}", param=name)
    raw = fields.get("previous_response_id")
    previous = msgspec.json.decode(raw) if raw is not None else None
    if not isinstance(previous, str):
        raise InvalidInput("previous_response_id must be text", param="previous_response_id")
    if not items:
        raise InvalidInput("input: at least one message is needed", param="input")
    for index, item in enumerate(items):
        if not _is_plain_message(msgspec.json.decode(item.body)):
            raise InvalidInput(
                "only messages of the user with text, images and files can steer",
                param=f"input[{index}]",
            )
    return previous


def _is_plain_message(item: Any) -> bool:
    if not isinstance(item, dict) or not item.keys() <= _MESSAGE_FIELDS:
        return False
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return (
        item.get("type", "message") == "message"
        and item.get("role") == "user"
        and all(isinstance(part, dict) and part.get("type") in _PARTS for part in parts)
    )


def required_input(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the inputs a client must send before a response can continue, without the results."""
    output: Iterable[dict[str, Any]] = response.get("output") or ()
    answered = {item.get("call_id") for item in output if item["type"].endswith("_output")}
    required: list[dict[str, Any]] = []
    for item in output:
        kind, call_id = item["type"], item.get("call_id")
        if kind == "mcp_approval_request":
            required.append({"type": "mcp_approval_response", "approval_request_id": item["id"]})
        elif kind in ("function_call", "custom_tool_call") and call_id not in answered:
            name = {"name": item["name"]} if kind == "function_call" else {}
            required.append({"type": f"{kind}_output", "call_id": call_id, **name})
    return required


# ── events ──────────────────────────────────────────────────────────────────────────────────


def accepted_event(steer: Steer, ticket: TurnTicket, stream_id: str | None) -> bytes:
    """Return the event that says that the input is stored."""
    return _event("accepted", stream_id, steer=_steer_value(steer, ticket))


def pending_event(
    steer: Steer, ticket: TurnTicket, required: list[dict[str, Any]], stream_id: str | None
) -> bytes:
    """Return the event that says that the input waits for the client's tools."""
    return _event(
        "pending",
        stream_id,
        steer=_steer_value(steer, ticket),
        reason="waiting_for_required_input",
        required_input=required,
    )


def failed_event(code: SteerError, message: str, fields: Fields, stream_id: str | None) -> bytes:
    """Return the event that returns input to the client that was not stored."""
    names = ("input", "previous_response_id")
    error = {"code": code, "message": message, "type": "invalid_request_error"}
    steer = {name: fields.get(name) for name in names}
    return _event("failed", stream_id, error=error, steer=steer)


def _steer_value(steer: Steer, ticket: TurnTicket) -> dict[str, str]:
    return {"id": f"steer_{ticket.turn.id}", "previous_response_id": steer.previous}


def _event(kind: str, stream_id: str | None, **value: Any) -> bytes:
    lane = {"stream_id": stream_id} if stream_id is not None else {}
    return _encode({"type": f"response.steer.{kind}", "sequence_number": 0, **value, **lane})
