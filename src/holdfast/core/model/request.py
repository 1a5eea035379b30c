"""The request of a turn, stored with it so that the turn can be run again.

Requests of both APIs are stored with the fields of the Responses API; fields that only Chat has
are stored beside them. Values stay the bytes that the client sent.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Literal

import msgspec

from holdfast.core.ids import Tenant, TurnId
from holdfast.core.model.delivery import Delivery

Api = Literal["responses", "chat"]
RESPONSE_PREFIX = "resp_"
TURN_PREFIX = "turn_"


class AnswerName(msgspec.Struct, frozen=True):
    """The id of a response, and its tenant."""

    tenant: Tenant
    id: str


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request without its input, which is in the log."""

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
    """Whether it was accepted before the response that it continues had ended."""
    is_compaction: bool = False
    """Whether its input ends with a `compaction_trigger`, so that no model has to answer."""
    sender: str = ""
    """The sender, if its tools may need approvals: an API key's id, or a platform user."""
    approvers: tuple[str, ...] = ()
    """Who else may approve calls of its tools."""
    history_hash: bytes = b""
    """Hash of the history in the request; later requests find its answer by it."""
    delivery: Delivery | None = None
    """Where to send the answer, for turns of channels and schedules."""
    fixed_answer: str | None = None
    """A text that is the turn's answer, instead of a model call."""
    files_of: AnswerName | None = None
    """The response whose files are sent together with `fixed_answer`."""


class SentRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request as it was sent to a provider: enough to rebuild it from the log and to verify it.

    `digest` is `ports.provider.digest_call` over what was sent; all else is in the log already.
    """

    digest: bytes
    records: int
    """The number of the last record over the log that the request took into account."""
    upstream: str
    covers_seq: int | None = None
    """The last item that the provider's state covered, or None if the whole history was sent."""
    strips_opaque: bool = False
    """Whether encrypted content was left out."""
    is_plain: bool = False
    """Whether the plainest form of every item was sent."""
    left_out: tuple[int, ...] = ()
    """Items that were left out because the provider may refuse them."""
    last_seq: int | None = None
    """The last item of the log that was sent, if the run itself may have added it."""


DIGEST_BYTES = 16
"""Size of a request's digest."""


def hash_items(bodies: Iterable[bytes], before: bytes = b"") -> bytes:
    """Return the digest of items; `before` is the digest of those before them.

    Each item's digest is keyed by the one before it, so that 16 bytes are enough to go on from.
    """
    for body in bodies:
        before = blake2b(body, digest_size=DIGEST_BYTES, key=before).digest()
    return before


write_request: Callable[[TurnRequest], bytes] = msgspec.json.Encoder().encode
"""Serialize a request for storage with its turn."""
read_request: Callable[[bytes], TurnRequest] = msgspec.json.Decoder(TurnRequest).decode
"""Deserialize what `write_request` returned."""


def find_request(raw: bytes) -> TurnRequest | None:
    """Return a turn's request, or None if it has another format, as embedded turns may have."""
    try:
        return read_request(raw) if raw else None
    except msgspec.DecodeError:
        return None


def response_id(turn_id: str, step: int) -> str:
    """Return the response id of a step of a turn; it is derived, not stored."""
    name = RESPONSE_PREFIX + turn_id.removeprefix(TURN_PREFIX)
    return f"{name}_{step}" if step else name


def conversation_id(session_id: str) -> str:
    """Return the id of a session in the Conversations API."""
    return "conv_" + session_id.removeprefix("ses_")


def turn_of_response(name: str) -> tuple[TurnId, int] | None:
    """Return the turn and step of a response id, or None if this gateway did not create it."""
    if not name.startswith(RESPONSE_PREFIX):
        return None
    rest, _, step = name.removeprefix(RESPONSE_PREFIX).partition("_")
    if not rest.isalnum() or (step and not (step.isdecimal() and len(step) < 6)):
        return None
    return TurnId(TURN_PREFIX + rest), int(step or 0)
