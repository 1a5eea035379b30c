"""The response object and its items, as the Responses API shapes them."""

from dataclasses import dataclass
from typing import Any

from holdfast.simulator.apis.reply import ModelReply, OfferedTool, ToolCall, compose, words_of
from holdfast.simulator.apis.responses_input import ResponseInput, summarize
from holdfast.simulator.delivery.errors import invalid
from holdfast.simulator.delivery.injection import server_failure
from holdfast.simulator.faults.effects import (
    Cancelled,
    ConstantCallIds,
    Failed,
    Incomplete,
    QueuedForever,
)
from holdfast.simulator.state.call import Call
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.sealing import seal
from holdfast.simulator.state.tokens import count_text
from holdfast.simulator.state.world import World

_DEFAULTS: Json = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
_ECHOED = frozenset(_DEFAULTS) | {"prompt", "prompt_cache_retention", "moderation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltResponse:
    """A response, and the pause between its events."""

    response: Json
    between_seconds: float


def make_response(world: World, call: Call, request: ResponseInput) -> BuiltResponse:
    """Return the finished response to `call`."""
    reply = compose(
        summarize(call, request.context),
        read_tools(call.body.get("tools")),
        forced_tool(call.body.get("tool_choice")),
        call.script,
    )
    # A WebSocket client may store its input without an answer.
    output = [] if call.body.get("generate") is False else _items_of(world, call, reply)
    response = _envelope(call, request)
    response["output"] = output
    response["usage"] = _usage(request, reply, reasons=bool(output) and _is_reasoning(output[0]))
    _limit_output(call, response)
    _apply_ending_faults(call, response)
    return BuiltResponse(response=response, between_seconds=reply.between_seconds)


def _is_reasoning(item: Json) -> bool:
    return bool(item["type"] == "reasoning")


def read_tools(given: Any) -> list[OfferedTool]:
    """Return the function and custom tools of a call; other types are ignored."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise invalid("Invalid type for 'tools': expected an array.", "tools", "invalid_type")
    tools = []
    for tool in given:
        if not isinstance(tool, dict) or tool.get("type") not in ("function", "custom"):
            continue
        nested = tool.get("function")
        inner = nested if isinstance(nested, dict) else tool
        schema = inner.get("parameters") or inner.get("input_schema") or {}
        tools.append(
            OfferedTool(
                name=str(inner.get("name", "")), schema=schema, is_custom=tool["type"] == "custom"
            )
        )
    return tools


def forced_tool(choice: Any) -> str | None:
    """Return the tool that must be called, `*` for any, None for none."""
    if choice in ("required", "any"):
        return "*"
    if not isinstance(choice, dict):
        return None
    nested = choice.get("function")
    name = nested.get("name") if isinstance(nested, dict) else choice.get("name")
    if isinstance(name, str):
        return name
    return "*" if choice.get("mode") == "required" or choice.get("type") == "any" else None


def _items_of(world: World, call: Call, reply: ModelReply) -> list[Json]:
    items: list[Json] = []
    if _wants_reasoning(world, call):
        items.append(_reasoning(call, reply.reasoning or ""))
    if reply.refusal is not None:
        items.append(_message(call, {"type": "refusal", "refusal": reply.refusal}))
    elif reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        items.append(_message(call, part))
    items += [_tool_call(call, tool_call) for tool_call in reply.calls]
    return items


def _wants_reasoning(world: World, call: Call) -> bool:
    options = call.body.get("reasoning")
    effort = options.get("effort") if isinstance(options, dict) else None
    return effort != "none" and (effort is not None or world.reasons(call.model))


def _reasoning(call: Call, text: str) -> Json:
    options = call.body.get("reasoning")
    summary = [{"type": "summary_text", "text": text}] if _wants_summary(options) else []
    item: Json = {"id": call.ids.new("rs_"), "type": "reasoning", "summary": summary}
    include = call.body.get("include")
    if isinstance(include, list) and "reasoning.encrypted_content" in include:
        item["encrypted_content"] = seal(call.owner, f"{item['id']}:{text}")
    return item


def _wants_summary(options: Any) -> bool:
    return isinstance(options, dict) and bool(
        options.get("summary") or options.get("generate_summary")
    )


def _message(call: Call, part: Json) -> Json:
    return {
        "id": call.ids.new("msg_"),
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


def _tool_call(call: Call, made: ToolCall) -> Json:
    constant = call.effect(ConstantCallIds)
    call_id = constant.call_id if constant else call.ids.new("call_", size=12)
    if made.is_custom:
        return {
            "id": call.ids.new("ctc_"),
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": call_id,
            "name": made.name,
            "input": made.arguments,
        }
    return {
        "id": call.ids.new("fc_"),
        "type": "function_call",
        "status": "completed",
        "arguments": made.arguments,
        "call_id": call_id,
        "name": made.name,
    }


def echoed_fields(body: Json) -> Json:
    """Return the request fields that the response repeats, with the API's defaults filled in.

    Null means the default. Nested objects are complete: clients parse them by a strict schema.
    """
    echoed = {name: body[name] for name in _ECHOED.intersection(body) if body[name] is not None}
    if isinstance(echoed.get("tools"), list):
        echoed["tools"] = [_echoed_tool(tool) for tool in echoed["tools"]]
    for name in ("reasoning", "text"):
        if isinstance(echoed.get(name), dict):
            echoed[name] = {**_DEFAULTS[name], **_without_nulls(echoed[name])}
    form = echoed["text"].get("format") if isinstance(echoed.get("text"), dict) else None
    if isinstance(form, dict) and form.get("type") == "json_schema":
        echoed["text"]["format"] = {"description": None, "strict": False, **_without_nulls(form)}
    choice = echoed.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        echoed["tool_choice"] = {"mode": "auto", **_without_nulls(choice)}
    return echoed


def _echoed_tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    defaults: Json = {"description": None, "parameters": None, "strict": True}
    return defaults | _without_nulls(tool)


def _without_nulls(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _envelope(call: Call, request: ResponseInput) -> Json:
    body = call.body
    response: Json = {
        "id": call.ids.new("resp_"),
        "object": "response",
        "created_at": call.now,
        "status": "completed",
        "completed_at": call.now,
        "error": None,
        "incomplete_details": None,
        "model": call.model,
        **_DEFAULTS,
    }
    response |= echoed_fields(body)
    if request.conversation is not None:
        response["conversation"] = {"id": request.conversation.id}
    return response


def _usage(request: ResponseInput, reply: ModelReply, *, reasons: bool) -> Json:
    reasoning_tokens = count_text(reply.reasoning or "") if reasons else 0
    output_tokens = count_text(reply.text) + count_text(reply.refusal or "")
    output_tokens += sum(count_text(call.name) + count_text(call.arguments) for call in reply.calls)
    cached = request.prior_tokens // 128 * 128 if request.prior_tokens >= 1024 else 0
    return {
        "input_tokens": request.input_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": reasoning_tokens + output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": request.input_tokens + reasoning_tokens + output_tokens,
    }


def _limit_output(call: Call, response: Json) -> None:
    """Truncate the output at max_output_tokens."""
    limit = call.body.get("max_output_tokens")
    used = response["usage"]["output_tokens"]
    if isinstance(limit, int) and 0 < limit < used:
        _stop_early(response, words=max(1, limit), reason="max_output_tokens")
        response["usage"]["output_tokens"] = limit
        response["usage"]["total_tokens"] = response["usage"]["input_tokens"] + limit


def _stop_early(response: Json, *, words: int, reason: str) -> None:
    response["status"] = "incomplete"
    response["incomplete_details"] = {"reason": reason}
    response["completed_at"] = None
    if not response["output"]:
        return
    last = response["output"][-1]
    if last["type"] == "message" and last["content"][0]["type"] == "output_text":
        part = last["content"][0]
        part["text"] = "".join(words_of(part["text"])[:words])
    last["status"] = "incomplete"


def _apply_ending_faults(call: Call, response: Json) -> None:
    """Apply the faults that change how a response ends."""
    incomplete = call.effect(Incomplete)
    if incomplete is not None:
        _stop_early(response, words=incomplete.words, reason=incomplete.reason)
    if call.effect(Failed):
        response["error"] = {"code": "server_error", "message": server_failure(call)}
        _empty(response, "failed")
    elif call.effect(Cancelled):
        _empty(response, "cancelled")
    elif call.effect(QueuedForever):
        _empty(response, "queued")


def _empty(response: Json, status: str) -> None:
    response["status"] = status
    response["completed_at"] = None
    response["usage"] = None
    if status == "queued":
        response["output"] = []
