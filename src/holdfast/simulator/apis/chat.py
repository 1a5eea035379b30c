"""The Chat Completions API: create as JSON or chunks, and the completions that were stored."""

from typing import Any

from holdfast.simulator.apis.chat_input import check_size, read_messages, summarize
from holdfast.simulator.apis.fields import check_types
from holdfast.simulator.apis.pages import page
from holdfast.simulator.apis.reply import ModelReply, compose, words_of
from holdfast.simulator.apis.responses_output import forced_tool, read_tools
from holdfast.simulator.delivery.errors import invalid, missing, not_found, openai_error
from holdfast.simulator.delivery.injection import server_failure
from holdfast.simulator.faults.effects import ConstantCallIds, Failed, Incomplete
from holdfast.simulator.state.call import ApiAnswer, Call, StreamedEvent
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.tokens import count_text
from holdfast.simulator.state.world import World

MAX_CHOICES = 128


def create(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/chat/completions."""
    messages = read_messages(world, call)
    used = check_size(world, call, messages)
    tools = read_tools(call.body.get("tools"))
    reply = compose(
        summarize(messages), tools, forced_tool(call.body.get("tool_choice")), call.script
    )
    completion = _completion(world, call, reply, used)

    def commit() -> None:
        if call.body.get("store") is True:
            call.account.completions[completion["id"]] = completion
            call.account.completion_messages[completion["id"]] = [
                {"id": f"{completion['id']}-{number}", **message}
                for number, message in enumerate(messages)
            ]

    return ApiAnswer(
        body=completion,
        events=_chunks(call, completion) if call.is_stream else None,
        ends_with_done=True,
        commit=commit,
        between_seconds=reply.between_seconds,
        id=completion["id"],
    )


def _completion(world: World, call: Call, reply: ModelReply, used: int) -> Json:
    text, finish = _limited(call, reply)
    calls = _tool_calls(call, reply)
    message: Json = {
        "role": "assistant",
        "content": text or None if calls or reply.refusal else text,
        "refusal": reply.refusal,
        "annotations": [],
    }
    if calls:
        message["tool_calls"] = calls
    output_tokens = count_text(text) + sum(count_text(c.name + c.arguments) for c in reply.calls)
    reasoning_tokens = count_text(reply.reasoning or "") if world.reasons(call.model) else 0
    count = _count(call.body)
    choice: Json = {"message": message, "logprobs": None, "finish_reason": finish}
    completion: Json = {
        "id": call.ids.new("chatcmpl-", size=14),
        "object": "chat.completion",
        "created": call.now,
        "model": call.model,
        "choices": [{"index": index, **choice} for index in range(count)],
        "usage": _usage(used, output_tokens * count, reasoning_tokens * count),
        "service_tier": "default",
        "system_fingerprint": "fp_simulated",
    }
    if call.body.get("metadata") is not None:
        completion["metadata"] = call.body["metadata"]
    if world.profile.name == "azure-like":
        _add_filter_results(completion)
    return completion


def _count(body: Json) -> int:
    """Return how many choices a request asks for; all are the same."""
    count = body.get("n")
    if count is None:
        return 1
    if type(count) is not int or not 1 <= count <= MAX_CHOICES:
        text = f"Invalid 'n': expected an integer between 1 and {MAX_CHOICES}."
        raise invalid(text, "n", "invalid_value")
    return count


def _usage(used: int, output_tokens: int, reasoning_tokens: int) -> Json:
    return {
        "prompt_tokens": used,
        "completion_tokens": output_tokens + reasoning_tokens,
        "total_tokens": used + output_tokens + reasoning_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens, "audio_tokens": 0},
    }


def _limited(call: Call, reply: ModelReply) -> tuple[str, str]:
    """Return the text and the finish reason, cut if a limit or a fault says so."""
    incomplete = call.effect(Incomplete)
    limit = call.body.get("max_completion_tokens") or call.body.get("max_tokens")
    if incomplete is not None:
        finish = "length" if incomplete.reason == "max_output_tokens" else "content_filter"
        return "".join(words_of(reply.text)[: incomplete.words]), finish
    if isinstance(limit, int) and 0 < limit < count_text(reply.text):
        return "".join(words_of(reply.text)[:limit]), "length"
    return reply.text, "tool_calls" if reply.calls else "stop"


def _tool_calls(call: Call, reply: ModelReply) -> list[Json]:
    constant = call.effect(ConstantCallIds)
    return [
        {
            "id": constant.call_id if constant else call.ids.new("call_", size=12),
            "type": "function",
            "function": {"name": tool_call.name, "arguments": tool_call.arguments},
        }
        for tool_call in reply.calls
    ]


def _add_filter_results(completion: Json) -> None:
    """Azure adds its content filter's verdicts."""
    safe = {"filtered": False, "severity": "safe"}
    verdict = {"hate": safe, "self_harm": safe, "sexual": safe, "violence": safe}
    completion["prompt_filter_results"] = [{"prompt_index": 0, "content_filter_results": verdict}]
    for choice in completion["choices"]:
        choice["content_filter_results"] = verdict


def _chunks(call: Call, completion: Json) -> list[StreamedEvent]:
    """Return the completion as the chunks of a stream."""
    options = call.body.get("stream_options")
    wants_usage = isinstance(options, dict) and options.get("include_usage") is True
    head: Json = {
        "id": completion["id"],
        "object": "chat.completion.chunk",
        "created": completion["created"],
        "model": completion["model"],
        "service_tier": "default",
        "system_fingerprint": completion["system_fingerprint"],
    }
    if wants_usage:
        head["usage"] = None
    choices = completion["choices"]
    events = [
        StreamedEvent(None, head | _choice(choice["index"], delta, None))
        for choice in choices
        for delta in _deltas(choice["message"])
    ]
    failed = call.effect(Failed)
    if failed is not None:
        error = openai_error(server_failure(call), type="server_error", code="server_error")
        return [*events[: failed.event], StreamedEvent(None, error)]
    for choice in choices:
        last = head | _choice(choice["index"], {}, choice["finish_reason"])
        events.append(StreamedEvent(None, last, is_terminal=choice is choices[-1]))
    if wants_usage:
        events.append(StreamedEvent(None, head | {"choices": [], "usage": completion["usage"]}))
    return events


def _choice(index: int, delta: Json, finish: str | None) -> Json:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"choices": [choice]}


def _deltas(message: Json) -> list[Json]:
    deltas: list[Json] = [{"role": "assistant", "content": "", "refusal": None}]
    if message.get("refusal"):
        deltas += [{"refusal": word} for word in words_of(message["refusal"])]
    deltas += [{"content": word} for word in words_of(message["content"] or "")]
    for index, tool_call in enumerate(message.get("tool_calls") or []):
        deltas += _tool_call_deltas(index, tool_call)
    return deltas


def _tool_call_deltas(index: int, tool_call: Json) -> list[Json]:
    function = tool_call["function"]
    opening: Json = {
        "index": index,
        "id": tool_call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": ""},
    }
    pieces: list[Any] = [opening]
    text = function["arguments"]
    pieces += [
        {"index": index, "function": {"arguments": text[start : start + 8]}}
        for start in range(0, len(text), 8)
    ]
    return [{"tool_calls": [piece]} for piece in pieces]


def _find(call: Call) -> Json:
    completion_id = call.parameters["id"]
    completion = call.account.completions.get(completion_id)
    if completion is None:
        raise not_found(f"Completion {completion_id} not found")
    return completion


def list_all(world: World, call: Call) -> ApiAnswer:
    """Answer GET /v1/chat/completions: the stored ones."""
    model = call.query.get("model")
    wanted = {k[9:-1]: v for k, v in call.query.items() if k.startswith("metadata[")}
    stored = [
        completion
        for completion in call.account.completions.values()
        if model in (None, completion["model"])
        and wanted.items() <= (completion.get("metadata") or {}).items()
    ]
    return ApiAnswer(body=page(stored, call.query, default_order="asc"))


def retrieve(world: World, call: Call) -> ApiAnswer:
    """Answer GET /v1/chat/completions/{id}."""
    completion = _find(call)
    return ApiAnswer(body=completion, id=completion["id"])


def update(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/chat/completions/{id}: new metadata."""
    completion = _find(call)
    if "metadata" not in call.body:
        raise missing("metadata")
    check_types(call.body)
    completion["metadata"] = call.body["metadata"]
    return ApiAnswer(body=completion, id=completion["id"])


def delete(world: World, call: Call) -> ApiAnswer:
    """Answer DELETE /v1/chat/completions/{id}."""
    completion_id = _find(call)["id"]
    del call.account.completions[completion_id]
    body = {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}
    return ApiAnswer(body=body, id=completion_id)


def list_messages(world: World, call: Call) -> ApiAnswer:
    """Answer GET /v1/chat/completions/{id}/messages."""
    completion_id = _find(call)["id"]
    messages = call.account.completion_messages[completion_id]
    return ApiAnswer(body=page(messages, call.query, default_order="asc"), id=completion_id)
