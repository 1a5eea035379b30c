"""Requests of the Responses API as values: the input as items, the rest as it came."""

import msgspec

from holdfast.core.compaction.context_options import read_context_options
from holdfast.core.errors import InvalidInput
from holdfast.core.model.items import NewItem, message
from holdfast.core.model.request import TurnRequest
from holdfast.http.request.body import Fields, take, take_list
from holdfast.http.request.item_validation import read_sent_item
from holdfast.http.request.metadata import take_metadata

TRIGGER = "compaction_trigger"
REFERENCE = "item_reference"


class ResponseRequest(msgspec.Struct, frozen=True):
    """What a client wants answered, and where it says it belongs."""

    asked: TurnRequest
    items: list[NewItem]
    conversation: str | None = None
    refers: bool = False
    """Whether any of the items names a stored one instead of being one."""

    @property
    def is_bound(self) -> bool:
        """Whether the request itself says where it belongs."""
        return self.conversation is not None or self.asked.previous_response_id is not None


def read_response_request(fields: Fields) -> ResponseRequest:
    """Take a request apart, or say what is wrong with it."""
    items = read_input(fields)
    refers = is_compaction = False
    for item in items:
        if is_compaction:
            raise InvalidInput(f"{TRIGGER} must be the last item of the input", param="input")
        is_compaction = item.kind == TRIGGER
        refers = refers or item.kind == REFERENCE
    conversation = _conversation(fields) if "conversation" in fields else None
    asked = _read_asked(fields, conversation, is_compaction=is_compaction)
    if conversation is not None and asked.previous_response_id is not None:
        raise InvalidInput(
            "send conversation or previous_response_id, not both", param="previous_response_id"
        )
    return ResponseRequest(asked, items, conversation, refers)


def read_input(fields: Fields) -> list[NewItem]:
    """Take `input` out of the body: text, or items kept as they came."""
    if "input" not in fields:
        return []
    if bytes(fields["input"]).lstrip()[:1] == b'"':
        return [message("user", take(fields, "input", str))]
    listed = take_list(fields, "input")
    return [read_sent_item(bytes(one), f"input[{index}]") for index, one in enumerate(listed or ())]


def _read_asked(fields: Fields, conversation: str | None, *, is_compaction: bool) -> TurnRequest:
    """Take what concerns us out of the body; the rest stays as it came."""
    model = take(fields, "model", str)
    is_stored = take(fields, "store", bool, True) if "store" in fields else True
    is_background = take(fields, "background", bool, False) if "background" in fields else False
    is_stream = take(fields, "stream", bool, False) if "stream" in fields else False
    named = "previous_response_id"
    previous = take(fields, named, str) if named in fields else None
    if not model:
        raise InvalidInput("you must provide a model parameter", param="model")
    if "include" in fields:
        _check_include(fields)
    read_context_options(fields)
    if "metadata" in fields:
        fields["metadata"] = msgspec.Raw(take_metadata(fields) or b"{}")
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
    """What is included is the upstream's affair; that it is a list of names is ours."""
    if take({"include": fields["include"]}, "include", list[str]) is None:
        del fields["include"]


class _Conversation(msgspec.Struct):
    id: str


def _conversation(fields: Fields) -> str | None:
    named: str | _Conversation | None = take(fields, "conversation", str | _Conversation)
    return named.id if isinstance(named, _Conversation) else named
