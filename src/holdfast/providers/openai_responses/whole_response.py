"""Read a Responses server's whole response as our answer: unique ids, marked encrypted content.

Nearly every answer is one valid message with a complete usage: its item keeps its bytes and is
decoded once. Everything else is read field by field.
"""

from typing import Annotated, Any, Literal

import msgspec

from holdfast.core.model.items import OUTPUT_SUFFIX, message
from holdfast.core.model.session import Usage
from holdfast.core.openai.response import complete_usage
from holdfast.ports.provider import Answer, TextAnswer
from holdfast.providers.errors import broken, failure_in_stream
from holdfast.providers.http.upstream import read_json
from holdfast.providers.items.ids import MAX_ITEM_ID, MIN_UNIQUE, IdAllocator
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.items.shapes import normalize

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_NULL = msgspec.Raw(b"null")
_COPIED_FIELDS = ("service_tier", "moderation", "tool_usage")
"""Fields of the server's response that are copied into ours."""
MAX_OUTPUT_ITEMS = 2_000
"""The most items of an answer: each one costs far more memory than its bytes."""
CALLS = frozenset({"function_call", "custom_tool_call"})
"""Items that a client answers: each needs a call id, even if the server gave none."""


class Response(msgspec.Struct):
    """The fields of a response that we read."""

    id: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] = []
    usage: msgspec.Raw = _NULL
    error: Any = None
    incomplete_details: Any = None
    service_tier: msgspec.Raw = _NULL
    moderation: msgspec.Raw = _NULL
    tool_usage: msgspec.Raw = _NULL


class _ValidText(msgspec.Struct, gc=False, tag="output_text"):
    text: str
    annotations: list[Any]


class _ValidRefusal(msgspec.Struct, gc=False, tag="refusal"):
    refusal: str


class _PlainText(msgspec.Struct, gc=False, tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: tuple[()] | None = None


_UniqueId = Annotated[str, msgspec.Meta(min_length=MIN_UNIQUE, max_length=MAX_ITEM_ID)]


class _PlainMessage(msgspec.Struct, gc=False):
    """A message that needs no change, and is one text without log probabilities."""

    type: Literal["message"]
    id: _UniqueId
    role: Literal["assistant"]
    status: str
    content: tuple[_PlainText]
    call_id: None = None
    encrypted_content: None = None


class _ValidMessage(msgspec.Struct, gc=False):
    """A message that needs no change: its id is unique, and it has no encrypted content."""

    type: Literal["message"]
    id: _UniqueId
    role: str
    status: str
    content: list[_ValidText | _ValidRefusal]
    call_id: None = None
    encrypted_content: None = None


class _InputDetails(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class _OutputDetails(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    reasoning_tokens: int


class _CompleteUsage(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A usage object with exactly the gateway's fields."""

    input_tokens: int
    input_tokens_details: _InputDetails
    output_tokens: int
    output_tokens_details: _OutputDetails
    total_tokens: int


_read_response = msgspec.json.Decoder(Response).decode
_read_plain_message = msgspec.json.Decoder(_PlainMessage).decode
_read_valid_message = msgspec.json.Decoder(_ValidMessage).decode
_read_complete_usage = msgspec.json.Decoder(_CompleteUsage).decode


class FinishedAnswer(msgspec.Struct, frozen=True):
    """A finished answer, and the server's response id."""

    answer: Answer
    response_id: str | None


class WholeOutput:
    """Reads a server's whole response."""

    def __init__(self, ids: IdAllocator, owner: SealOwner) -> None:
        self._ids = ids
        self._owner = owner

    def whole(self, data: bytes) -> FinishedAnswer:
        """Return a whole response's answer."""
        try:
            if not data.isascii():
                data.decode()  # items are not decoded here, but must be valid UTF-8
            response = _read_response(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise _unreadable() from exc
        return self._finish(response, text_answer(response.output))

    def _finish(self, response: Response, plain: TextAnswer | None = None) -> FinishedAnswer:
        """Return the answer of a response; `plain` is its only item, if that is known."""
        status: Literal["completed", "incomplete"]
        match response.status:
            case None if not (response.error or response.id or self._has_output(response)):
                raise _unreadable()  # any JSON object, such as the error of a proxy
            case "completed" | None if not response.error:
                status = "completed"
            case "incomplete":
                status = "incomplete"
            case "queued" | "in_progress":
                raise broken(
                    f"the upstream answered with a response that is still {response.status}",
                    "upstream_unfinished",
                )
            case "cancelled":
                raise broken("the upstream cancelled the response", "upstream_cancelled")
            case _:
                raise failure_in_stream(response.error)
        if len(response.output) > MAX_OUTPUT_ITEMS:
            raise broken(
                f"the upstream's answer has more than {MAX_OUTPUT_ITEMS} items",
                "upstream_answer_too_long",
            )
        items = [plain.item.body] if plain is not None else []
        if plain is None:
            for index, raw in enumerate(response.output):
                items.append(self._item(raw, index))
        details = response.incomplete_details
        usage, usage_detail = _usage(response.usage)
        answer = Answer(
            items=items or self._streamed_items(status),
            status=status,
            incomplete_reason=_reason(details) if details is not None else None,
            usage=usage,
            usage_detail=usage_detail,
            fields=_copied_fields(response),
            plain=plain,
        )
        return FinishedAnswer(answer, response.id)

    def _has_output(self, response: Response) -> bool:
        return bool(response.output or self._streamed_items("completed"))

    def _streamed_items(self, _status: str) -> list[bytes]:
        """Return the items of a response whose output is empty."""
        return []

    def _item(self, raw: msgspec.Raw, index: int) -> bytes:
        """Return an item's bytes, unchanged if it needs neither an id nor a mark."""
        try:
            _read_valid_message(raw)
        except msgspec.DecodeError:
            item = read_json(bytes(raw))
        else:
            return bytes(raw)
        before = (item.get("id"), item.get("call_id"), item.get("encrypted_content"))
        own, is_changed = self._with_own_ids(item, index)
        after = (own["id"], own.get("call_id"), own.get("encrypted_content"))
        return bytes(raw) if before == after and not is_changed else _encode(own)

    def _with_own_ids(self, item: Json, index: int) -> tuple[Json, bool]:
        """Return a valid item with the gateway's ids, and whether its form had to change."""
        if not isinstance(item.get("type") or item.get("role"), str):
            raise broken(
                "the upstream's answer has an item without a type", "upstream_broken_answer"
            )
        if not item.get("type"):
            item["type"] = "message"
        is_changed = normalize(item)
        kind = str(item.get("type") or "item")
        item["id"] = self._ids.item(kind, item.get("id"), index)
        call_id = item.get("call_id")
        if call_id is not None or kind in CALLS:
            is_output = kind.endswith(OUTPUT_SUFFIX)
            ours = self._ids.output_of(call_id) if is_output else self._ids.call(call_id, index)
            item["call_id"] = ours if isinstance(ours, str) else str(ours)
        encrypted = item.get("encrypted_content")
        if isinstance(encrypted, str) and encrypted:
            item["encrypted_content"] = self._owner.mark(encrypted)
        return item, is_changed


def text_answer(output: list[msgspec.Raw]) -> TextAnswer | None:
    """Return an output that is one plain message, as nearly all are, or None for any other."""
    if len(output) != 1:
        return None
    try:
        said = _read_plain_message(output[0])
    except msgspec.DecodeError:
        return None
    if "\0" in said.id:
        return None
    text = said.content[0].text
    return TextAnswer(message("assistant", text, bytes(output[0]), said.id), text)


def _unreadable() -> Exception:
    return broken("the upstream's answer is not a valid response", "upstream_broken_answer")


def _copied_fields(response: Response) -> dict[str, msgspec.Raw]:
    copied: dict[str, msgspec.Raw] = {}
    for name in _COPIED_FIELDS:
        raw = getattr(response, name)
        if raw is not _NULL and bytes(raw) != b"null":
            copied[name] = raw
    return copied


def _reason(details: Any) -> str | None:
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) else None


def _usage(raw: msgspec.Raw) -> tuple[Usage | None, bytes | None]:
    """Return the usage, and its JSON."""
    if raw is _NULL:
        return None, None
    try:
        usage_value = _read_complete_usage(raw)
    except msgspec.DecodeError:
        return _partial_usage(raw)
    cached = usage_value.input_tokens_details.cached_tokens
    reasoning = usage_value.output_tokens_details.reasoning_tokens
    usage = Usage(usage_value.input_tokens, cached, usage_value.output_tokens, reasoning)
    return usage, _encode(usage_value)


def _partial_usage(raw: msgspec.Raw) -> tuple[Usage | None, bytes | None]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _unreadable() from exc
    if type(value) is not dict:
        return None, None
    usage = Usage(
        input_tokens=_number(value, "input_tokens"),
        cached_tokens=_number(value.get("input_tokens_details"), "cached_tokens"),
        output_tokens=_number(value, "output_tokens"),
        reasoning_tokens=_number(value.get("output_tokens_details"), "reasoning_tokens"),
    )
    return usage, complete_usage(value) if value else None


def _number(fields: Any, name: str) -> int:
    value = fields[name] if type(fields) is dict and name in fields else 0
    return value if type(value) is int else 0
