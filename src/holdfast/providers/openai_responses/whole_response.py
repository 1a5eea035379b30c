"""A Responses server's whole response as our answer: ids that are unique, seals marked.

Nearly every answer is one message in order, with a usage in full: its item stays the bytes that
came, and nothing of either is looked at twice. Whatever is otherwise is read field by field.
"""

from typing import Annotated, Any, Literal

import msgspec

from holdfast.core.model.items import OUTPUT_SUFFIX
from holdfast.core.model.session import Usage
from holdfast.core.openai.response import whole_usage
from holdfast.ports.provider import Answer
from holdfast.providers.errors import broken, failure_in_stream
from holdfast.providers.http.upstream import read_json
from holdfast.providers.items.ids import MAX_KEPT, MIN_UNIQUE, IdAllocator
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.items.shapes import shape

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_NULL = msgspec.Raw(b"null")
_KEPT_FIELDS = ("service_tier", "moderation", "tool_usage")
"""What a server says of its response that belongs to ours."""
CALLS = frozenset({"function_call", "custom_tool_call"})
"""What a client answers to: each needs an id, whether its server gave it one or not."""


class Response(msgspec.Struct):
    """What is read of a response."""

    id: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] = []
    usage: msgspec.Raw = _NULL
    error: Any = None
    incomplete_details: Any = None
    service_tier: msgspec.Raw = _NULL
    moderation: msgspec.Raw = _NULL
    tool_usage: msgspec.Raw = _NULL


class _SaidPart(msgspec.Struct, gc=False):
    type: str
    text: str = ""
    refusal: str = ""
    annotations: list[Any] = []


class _Said(msgspec.Struct, gc=False):
    """A message in which everything is in order: nothing in it must be ours."""

    type: Literal["message"]
    id: Annotated[str, msgspec.Meta(min_length=MIN_UNIQUE, max_length=MAX_KEPT)]
    role: str
    content: list[_SaidPart]
    call_id: None = None
    encrypted_content: None = None


class _Read(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class _Made(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    reasoning_tokens: int


class _Counted(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A usage that has everything that ours has, and nothing else."""

    input_tokens: int
    input_tokens_details: _Read
    output_tokens: int
    output_tokens_details: _Made
    total_tokens: int


_read_response = msgspec.json.Decoder(Response).decode
_read_said = msgspec.json.Decoder(_Said).decode
_read_counted = msgspec.json.Decoder(_Counted).decode


class Ending(msgspec.Struct, frozen=True):
    """A finished answer, and the name its server has for it."""

    answer: Answer
    response_id: str | None


class WholeOutput:
    """Takes a server's whole response, and gives ours."""

    def __init__(self, names: IdAllocator, maker: SealOwner) -> None:
        self._names = names
        self._maker = maker

    def whole(self, data: bytes) -> Ending:
        """Return a whole response's answer."""
        try:
            if not data.isascii():
                data.decode()  # items are not looked into, and have to be readable later
            response = _read_response(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise _unreadable() from exc
        return self._end(response)

    def _end(self, response: Response) -> Ending:
        status: Literal["completed", "incomplete"]
        match response.status:
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
        items: list[bytes] = []
        for index, raw in enumerate(response.output):
            items.append(self._own_bytes(raw, index))
        details = response.incomplete_details
        usage, usage_detail = _usage(response.usage)
        answer = Answer(
            items=items or self._told(status),
            status=status,
            incomplete_reason=_reason(details) if details is not None else None,
            usage=usage,
            usage_detail=usage_detail,
            fields=_kept_fields(response),
        )
        return Ending(answer, response.id)

    def _told(self, _status: str) -> list[bytes]:
        """Return the items of a response that has none."""
        return []

    def _own_bytes(self, raw: msgspec.Raw, index: int) -> bytes:
        """Return an item's bytes, untouched where nothing in them must be ours."""
        try:
            _read_said(raw)
        except msgspec.DecodeError:
            item = read_json(bytes(raw))
        else:
            return bytes(raw)
        before = (item.get("id"), item.get("call_id"), item.get("encrypted_content"))
        own, is_odd = self._owned(item, index)
        after = (own["id"], own.get("call_id"), own.get("encrypted_content"))
        return bytes(raw) if before == after and not is_odd else _encode(own)

    def _owned(self, item: Json, index: int) -> tuple[Json, bool]:
        """Return an item in our names and in order, and whether it was out of order."""
        if not isinstance(item.get("type") or item.get("role"), str):
            raise broken("the upstream's answer has an item of no type", "upstream_broken_answer")
        if not item.get("type"):
            item["type"] = "message"
        is_odd = shape(item)
        kind = str(item.get("type") or "item")
        item["id"] = self._names.item(kind, item.get("id"), index)
        call_id = item.get("call_id")
        if call_id is not None or kind in CALLS:
            is_output = kind.endswith(OUTPUT_SUFFIX)
            ours = self._names.answered(call_id) if is_output else self._names.call(call_id, index)
            item["call_id"] = ours if isinstance(ours, str) else str(ours)
        sealed = item.get("encrypted_content")
        if isinstance(sealed, str) and sealed:
            item["encrypted_content"] = self._maker.mark(sealed)
        return item, is_odd


def _unreadable() -> Exception:
    return broken("the upstream's answer is no response", "upstream_broken_answer")


def _kept_fields(response: Response) -> dict[str, msgspec.Raw]:
    kept: dict[str, msgspec.Raw] = {}
    for name in _KEPT_FIELDS:
        raw = getattr(response, name)
        if raw is not _NULL and bytes(raw) != b"null":
            kept[name] = raw
    return kept


def _reason(details: Any) -> str | None:
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) else None


def _usage(raw: msgspec.Raw) -> tuple[Usage | None, bytes | None]:
    """Return what was used, and the words for it."""
    if raw is _NULL:
        return None, None
    try:
        counted = _read_counted(raw)
    except msgspec.DecodeError:
        return _odd_usage(raw)
    cached = counted.input_tokens_details.cached_tokens
    reasoned = counted.output_tokens_details.reasoning_tokens
    usage = Usage(counted.input_tokens, cached, counted.output_tokens, reasoned)
    return usage, _encode(counted)


def _odd_usage(raw: msgspec.Raw) -> tuple[Usage | None, bytes | None]:
    try:
        told = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _unreadable() from exc
    if type(told) is not dict:
        return None, whole_usage(told) if told else None
    usage = Usage(
        input_tokens=_number(told, "input_tokens"),
        cached_tokens=_number(told.get("input_tokens_details"), "cached_tokens"),
        output_tokens=_number(told, "output_tokens"),
        reasoning_tokens=_number(told.get("output_tokens_details"), "reasoning_tokens"),
    )
    return usage, whole_usage(told) if told else None


def _number(told: Any, name: str) -> int:
    value = told[name] if type(told) is dict and name in told else 0
    return value if type(value) is int else 0
