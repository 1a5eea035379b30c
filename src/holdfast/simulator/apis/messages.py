"""The Anthropic Messages API: JSON or events, tools, thinking, and counting tokens."""

import json
from typing import Any

from holdfast.simulator.apis.messages_input import read_messages, read_tools, summarize, tokens_of
from holdfast.simulator.apis.reply import ModelReply, compose, words_of
from holdfast.simulator.apis.responses_output import forced_tool
from holdfast.simulator.delivery.errors import anthropic_error
from holdfast.simulator.faults.effects import ConstantCallIds, Failed, Incomplete, Overloaded
from holdfast.simulator.state.call import ApiAnswer, Call, StreamedEvent
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.sealing import sign
from holdfast.simulator.state.tokens import count_text
from holdfast.simulator.state.world import World


def create(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/messages."""
    messages = read_messages(world, call)
    reply = compose(
        summarize(messages),
        read_tools(call.body.get("tools")),
        forced_tool(call.body.get("tool_choice")),
        call.script,
    )
    message = _message(call, reply, tokens_of(call, messages))
    return ApiAnswer(
        body=message,
        events=_events(call, message) if call.is_stream else None,
        between_seconds=reply.between_seconds,
        headers={"request-id": call.ids.new("req_011C", size=10)},
        id=message["id"],
    )


def count_tokens(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/messages/count_tokens."""
    messages = read_messages(world, call, needs_max_tokens=False)
    return ApiAnswer(body={"input_tokens": tokens_of(call, messages)})


def _message(call: Call, reply: ModelReply, used: int) -> Json:
    text, reason = _limited(call, reply)
    content: list[Json] = []
    reasoning_tokens = 0
    if _thinks(call):
        thinking = reply.reasoning or ""
        reasoning_tokens = count_text(thinking)
        signature = sign(call.owner, thinking)
        content.append({"type": "thinking", "thinking": thinking, "signature": signature})
    if text:
        content.append({"type": "text", "text": text})
    content += [_tool_use(call, tool_call.name, tool_call.arguments) for tool_call in reply.calls]
    output_tokens = count_text(text) + sum(
        count_text(each.name + each.arguments) for each in reply.calls
    )
    return {
        "id": call.ids.new("msg_01", size=11),
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {
            "input_tokens": used,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output_tokens + reasoning_tokens,
            "service_tier": "standard",
        },
    }


def _thinks(call: Call) -> bool:
    options = call.body.get("thinking")
    return isinstance(options, dict) and options.get("type") in ("enabled", "adaptive")


def _limited(call: Call, reply: ModelReply) -> tuple[str, str]:
    incomplete, limit = call.effect(Incomplete), call.body["max_tokens"]
    text = reply.refusal if reply.refusal is not None else reply.text
    if incomplete is not None:
        return "".join(words_of(text)[: incomplete.words]), "max_tokens"
    if isinstance(limit, int) and limit < count_text(text):
        return "".join(words_of(text)[:limit]), "max_tokens"
    if reply.refusal is not None:
        return text, "refusal"
    return text, "tool_use" if reply.calls else "end_turn"


def _tool_use(call: Call, name: str, arguments: str) -> Json:
    constant = call.effect(ConstantCallIds)
    use_id = constant.call_id if constant else call.ids.new("toolu_01", size=11)
    given: Any = json.loads(arguments)
    return {"type": "tool_use", "id": use_id, "name": name, "input": given}


def _events(call: Call, message: Json) -> list[StreamedEvent]:
    """Return the message as the events of a stream, cut if a fault says so."""
    events = _whole(message)
    overloaded, failed = call.effect(Overloaded), call.effect(Failed)
    if overloaded is not None:
        error = anthropic_error("Overloaded", "overloaded_error")
        return [*events[: overloaded.event], StreamedEvent("error", error)]
    if failed is not None:
        error = anthropic_error("Internal server error", "api_error")
        return [*events[: failed.event], StreamedEvent("error", error)]
    return events


def _whole(message: Json) -> list[StreamedEvent]:
    usage = message["usage"]
    begun = message | {
        "content": [],
        "stop_reason": None,
        "usage": usage | {"output_tokens": 1},
    }
    events = [_event("message_start", message=begun)]
    for index, block in enumerate(message["content"]):
        events += _block_events(index, block)
        if index == 0:
            events.insert(2, _event("ping"))
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    spent = {"output_tokens": usage["output_tokens"]}
    events.append(_event("message_delta", delta=ending, usage=spent))
    events.append(StreamedEvent("message_stop", {"type": "message_stop"}, is_terminal=True))
    return events


def _event(kind: str, **fields: object) -> StreamedEvent:
    return StreamedEvent(kind, {"type": kind, **fields})


def _block_events(index: int, block: Json) -> list[StreamedEvent]:
    match block["type"]:
        case "text":
            empty: Json = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": word} for word in words_of(block["text"])]
        case "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            words = words_of(block["thinking"])
            deltas = [{"type": "thinking_delta", "thinking": word} for word in words]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case _:
            empty = block | {"input": {}}
            text = json.dumps(block["input"])
            deltas = [
                {"type": "input_json_delta", "partial_json": text[start : start + 8]}
                for start in range(0, len(text), 8)
            ]
    return [
        _event("content_block_start", index=index, content_block=empty),
        *(_event("content_block_delta", index=index, delta=delta) for delta in deltas),
        _event("content_block_stop", index=index),
    ]
