"""Parse requests of the Responses API: the input into items, other fields stay raw."""

import msgspec

from holdfast.core.compaction.context_options import read_context_options
from holdfast.core.errors import InvalidInput
from holdfast.core.model.items import NewItem, message
from holdfast.core.model.request import TurnRequest
from holdfast.http.request.body import Fields, pop_field, pop_list, pop_metadata
from holdfast.http.request.decoding import PLAIN_BYTES
from holdfast.http.request.item_validation import parse_item

TRIGGER = "compaction_trigger"
REFERENCE = "item_reference"


class ResponseRequest(msgspec.Struct, frozen=True):
    """A parsed request and the conversation that it names."""

    turn_request: TurnRequest
    items: list[NewItem]
    conversation: str | None = None
    has_references: bool = False
    """Whether any item is a reference to a stored item."""

    @property
    def is_bound(self) -> bool:
        """Whether the body names a conversation or a parent response."""
        return self.conversation is not None or self.turn_request.previous_response_id is not None


class _PlainResponse(msgspec.Struct, forbid_unknown_fields=True):
    """A Responses request with one user text and no options."""

    model: str
    input: str
    store: bool = True
    stream: bool = False


_read_plain_response = msgspec.json.Decoder(_PlainResponse).decode


def read_plain_response(body: bytes) -> ResponseRequest | None:
    """Return a request that is one user text without options; None for any other.

    Other and invalid requests are decoded field by field, which gives the same result for this one.
    """
    if len(body) > PLAIN_BYTES:
        return None
    try:
        plain = _read_plain_response(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not plain.model:
        return None
    request = TurnRequest(
        api="responses", model=plain.model, is_stored=plain.store, is_stream=plain.stream
    )
    return ResponseRequest(request, [message("user", plain.input)])


def read_response_request(fields: Fields) -> ResponseRequest:
    """Parse a request whose input is still among its fields."""
    return parse_response_request(fields, read_input(fields))


def parse_response_request(fields: Fields, items: list[NewItem]) -> ResponseRequest:
    """Parse a request's fields; reject invalid ones."""
    has_references = is_compaction = False
    for item in items:
        if is_compaction:
            raise InvalidInput(f"{TRIGGER} must be the last item of the input", param="input")
        is_compaction = item.kind == TRIGGER
        has_references = has_references or item.kind == REFERENCE
    conversation = _conversation(fields) if "conversation" in fields else None
    turn_request = _parse_turn_request(fields, conversation, is_compaction=is_compaction)
    if conversation is not None and turn_request.previous_response_id is not None:
        raise InvalidInput(
            "send conversation or previous_response_id, not both", param="previous_response_id"
        )
    return ResponseRequest(turn_request, items, conversation, has_references)


def read_input(fields: Fields) -> list[NewItem]:
    """Remove `input` from the fields and return its items; text becomes one user message."""
    if "input" not in fields:
        return []
    if bytes(fields["input"]).lstrip()[:1] == b'"':
        return [message("user", pop_field(fields, "input", str))]
    entries = pop_list(fields, "input") or ()
    return [parse_item(bytes(entry), f"input[{index}]") for index, entry in enumerate(entries)]


def _parse_turn_request(
    fields: Fields, conversation: str | None, *, is_compaction: bool
) -> TurnRequest:
    """Remove the fields that the gateway handles; the others stay raw."""
    model = pop_field(fields, "model", str)
    is_stored = pop_field(fields, "store", bool, True) if "store" in fields else True
    is_background = (
        pop_field(fields, "background", bool, False) if "background" in fields else False
    )
    is_stream = pop_field(fields, "stream", bool, False) if "stream" in fields else False
    parent_field = "previous_response_id"
    previous = pop_field(fields, parent_field, str) if parent_field in fields else None
    if not model:
        raise InvalidInput("you must provide a model parameter", param="model")
    if "include" in fields:
        _check_include(fields)
    read_context_options(fields)
    if "metadata" in fields:
        fields["metadata"] = msgspec.Raw(pop_metadata(fields) or b"{}")
    if is_background and not is_stored:
        raise InvalidInput("background responses must be stored", param="background")
    return TurnRequest(
        api="responses",
        model=model,
        fields=fields,
        is_stored=is_stored,
        is_background=is_background,
        is_stream=is_stream,
        previous_response_id=previous,
        is_conversation=conversation is not None,
        is_compaction=is_compaction,
    )


def _check_include(fields: Fields) -> None:
    """Check that `include` is a list of strings; its values are checked by the upstream."""
    if pop_field({"include": fields["include"]}, "include", list[str]) is None:
        del fields["include"]


class _Conversation(msgspec.Struct):
    id: str


def _conversation(fields: Fields) -> str | None:
    value: str | _Conversation | None = pop_field(fields, "conversation", str | _Conversation)
    return value.id if isinstance(value, _Conversation) else value
