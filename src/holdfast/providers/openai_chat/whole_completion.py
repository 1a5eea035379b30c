"""Read a Chat server's whole completion if it is one finished text, as nearly all are.

Everything else (calls, reasoning, refusals, log probabilities, unusual types) is read by
`ChatOutput`, which would return the same answer for these completions.
"""

from typing import Any, Literal

import msgspec

from holdfast.core.model.item_ids import with_place
from holdfast.core.model.items import message
from holdfast.core.model.session import Usage
from holdfast.core.openai.response import complete_usage, usage_value
from holdfast.ports.provider import Answer, TextAnswer
from holdfast.providers.items.ids import NewId

_encode = msgspec.json.Encoder().encode


class _Message(msgspec.Struct, gc=False):
    content: str
    reasoning_content: None = None
    reasoning: None = None
    refusal: None = None
    annotations: tuple[()] | None = None
    tool_calls: tuple[()] | None = None
    function_call: None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message
    finish_reason: Literal["stop"]
    index: Literal[0] = 0
    delta: None = None
    logprobs: None = None


class _ChatUsage(msgspec.Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int = 0
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class _Completion(msgspec.Struct, gc=False):
    choices: tuple[_Choice]
    error: None = None
    usage: _ChatUsage | None = None
    service_tier: str | None = None


_read_completion = msgspec.json.Decoder(_Completion).decode


def read_text_completion(data: bytes, new_id: NewId, answer_seq: int = 0) -> Answer | None:
    """Return the answer of a completion that is one finished text, or None for any other."""
    try:
        completion = _read_completion(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    text = completion.choices[0].message.content
    if not text:
        return None
    item_id = with_place(new_id("msg"), answer_seq)
    item = {
        "id": item_id,
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
    }
    body = _encode(item)
    usage = usage_detail = None
    counted = completion.usage
    if counted is not None:
        usage = Usage(counted.prompt_tokens, 0, counted.completion_tokens, 0)
        usage_detail = usage_value(usage)
        is_total = counted.total_tokens in (0, usage.input_tokens + usage.output_tokens)
        if counted.prompt_tokens_details or counted.completion_tokens_details or not is_total:
            usage, usage_detail = _detailed_usage(counted)
    tier = completion.service_tier
    return Answer(
        items=[body],
        plain=TextAnswer(message("assistant", text, body, item_id), text),
        usage=usage,
        usage_detail=usage_detail,
        fields={"service_tier": msgspec.Raw(_encode(tier))} if tier else {},
    )


def _detailed_usage(usage: _ChatUsage) -> tuple[Usage, bytes | None]:
    """Return the token counts, and the usage in the Responses format with all server details."""
    input_tokens, output_tokens = usage.prompt_tokens, usage.completion_tokens
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = prompt.get("cached_tokens") if prompt is not None else None
    reasoning = completion.get("reasoning_tokens") if completion is not None else None
    detail = {
        "input_tokens": input_tokens,
        "input_tokens_details": prompt or None,
        "output_tokens": output_tokens,
        "output_tokens_details": completion or None,
        "total_tokens": usage.total_tokens or input_tokens + output_tokens,
    }
    tokens = Usage(
        input_tokens,
        cached if type(cached) is int else 0,
        output_tokens,
        reasoning if type(reasoning) is int else 0,
    )
    return tokens, complete_usage(detail)
