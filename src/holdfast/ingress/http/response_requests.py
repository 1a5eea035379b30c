"""Requests of the Responses API as values: the input as items, the rest as it came."""

from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.items import NewItem, message
from holdfast.core.request import TurnRequest
from holdfast.core.wishes import read_wish
from holdfast.ingress.http.bodies import Fields, take, take_list
from holdfast.ingress.http.metadata import take_metadata
from holdfast.ingress.http.sent_items import read_sent_item

_OURS = ("conversation", "input")
TRIGGER = "compaction_trigger"


class ResponseRequest(msgspec.Struct, frozen=True):
    """What a client wants answered, and where it says it belongs."""

    asked: TurnRequest
    items: list[NewItem]
    conversation: str | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the request itself says where it belongs."""
        return self.conversation is not None or self.asked.previous_response_id is not None


def read_response_request(fields: Fields) -> ResponseRequest:
    """Take a request apart, or say what is wrong with it."""
    items = read_input(fields)
    conversation = _conversation(fields)
    asked = read_asked(fields)
    asked = msgspec.structs.replace(
        asked,
        is_conversation=conversation is not None,
        is_compaction=_ends_with_trigger(items),
    )
    if conversation is not None and asked.previous_response_id is not None:
        raise InvalidInput(
            "send conversation or previous_response_id, not both", param="previous_response_id"
        )
    return ResponseRequest(asked, items, conversation)


def _ends_with_trigger(items: list[NewItem]) -> bool:
    """Whether a request asks for compaction; it must say so last."""
    if any(item.kind == TRIGGER for item in items[:-1]):
        raise InvalidInput(f"{TRIGGER} must be the last item of the input", param="input")
    return bool(items) and items[-1].kind == TRIGGER


def read_input(fields: Fields) -> list[NewItem]:
    """Take `input` out of the body: text, or items kept as they came."""
    raw = fields.get("input")
    if raw is None:
        return []
    if bytes(raw).lstrip()[:1] == b'"':
        return [message("user", take(fields, "input", str))]
    listed = take_list(fields, "input")
    return [read_sent_item(bytes(one), f"input[{index}]") for index, one in enumerate(listed or ())]


def read_asked(fields: Fields) -> TurnRequest:
    """Take what concerns us out of the body; the rest stays as it came."""
    model = take(fields, "model", str)
    if not model:
        raise InvalidInput("you must provide a model parameter", param="model")
    is_stored = take(fields, "store", bool, True)
    is_background = take(fields, "background", bool, False)
    if is_background and not is_stored:
        raise InvalidInput("background responses must be stored", param="background")
    _check_include(fields)
    read_wish(fields)
    metadata = take_metadata(fields)
    if metadata is not None:
        fields["metadata"] = msgspec.Raw(metadata)
    return TurnRequest(
        api="responses",
        model=model,
        is_stored=is_stored,
        is_background=is_background,
        is_stream=take(fields, "stream", bool, False),
        previous_response_id=take(fields, "previous_response_id", str),
        fields={k: v for k, v in fields.items() if k not in _OURS},
    )


def _check_include(fields: Fields) -> None:
    """What is included is the upstream's affair; that it is a list of names is ours."""
    raw = fields.get("include")
    named: Any = take({"include": raw}, "include", list[str]) if raw is not None else None
    if raw is not None and named is None:
        del fields["include"]


class _Conversation(msgspec.Struct):
    id: str


def _conversation(fields: Fields) -> str | None:
    named: str | _Conversation | None = take(fields, "conversation", str | _Conversation)
    return named.id if isinstance(named, _Conversation) else named
