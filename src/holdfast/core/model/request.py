"""What a client asked of a turn, kept with it so that it can be carried out again.

Requests of both APIs are kept in the words of the Responses API; what only Chat can say is kept
beside them. Values stay the bytes they came in.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from holdfast.core.ids import TurnId

Api = Literal["responses", "chat"]
RESPONSE_PREFIX = "resp_"
TURN_PREFIX = "turn_"


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, without its input: that is in the log."""

    api: Api
    model: str
    fields: dict[str, msgspec.Raw] = {}
    chat_fields: dict[str, msgspec.Raw] = {}
    is_stored: bool = True
    is_background: bool = False
    is_stream: bool = False
    previous_response_id: str | None = None
    is_conversation: bool = False
    waits_for_parent: bool = False
    """Whether it was taken in before the response that it continues had ended."""
    is_compaction: bool = False
    """Whether its input ends with a `compaction_trigger`: then it wants nothing else."""
    history_hash: bytes = b""
    """Of the history that the request brought or repeated, where its answer may be found by it."""


write_request: Callable[[TurnRequest], bytes] = msgspec.json.Encoder().encode
"""Return the request as a turn keeps it."""
read_request: Callable[[bytes], TurnRequest] = msgspec.json.Decoder(TurnRequest).decode
"""Return what `write_request` wrote."""


def response_id(turn_id: str, step: int) -> str:
    """Return the id of the response that a step of a turn gives: a name, not a second row."""
    name = RESPONSE_PREFIX + turn_id.removeprefix(TURN_PREFIX)
    return f"{name}_{step}" if step else name


def conversation_id(session_id: str) -> str:
    """Return the name that the Conversations API has for a session."""
    return "conv_" + session_id.removeprefix("ses_")


def turn_of_response(name: str) -> tuple[TurnId, int] | None:
    """Return the turn and step that a response id names, if it can be one of ours."""
    if not name.startswith(RESPONSE_PREFIX):
        return None
    rest, _, step = name.removeprefix(RESPONSE_PREFIX).partition("_")
    if not rest.isalnum() or (step and not (step.isdecimal() and len(step) < 6)):
        return None
    return TurnId(TURN_PREFIX + rest), int(step or 0)
