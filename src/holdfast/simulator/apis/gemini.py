"""A little of the Gemini API: enough to say a word, call a tool, and refuse a foreign signature."""

import json
from typing import Any

from holdfast.simulator.apis.fields import text_of
from holdfast.simulator.apis.reply import Reply, Seen, Tool, compose
from holdfast.simulator.delivery.errors import Problem, gemini_error, listed_problem
from holdfast.simulator.state.call import Answer, Call, Event
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.sealing import seal, unseal
from holdfast.simulator.state.tokens import count_items, count_text
from holdfast.simulator.state.world import World


def generate(world: World, call: Call) -> Answer:
    """Answer POST /v1beta/models/{model}:generateContent and :streamGenerateContent."""
    action = call.parameters["model_action"].partition(":")[2]
    if action not in ("generateContent", "streamGenerateContent"):
        raise Problem(404, gemini_error(404, f"unknown method {action!r}", "NOT_FOUND"))
    contents = call.body.get("contents")
    if not isinstance(contents, list) or not contents:
        message = "* GenerateContentRequest.contents: contents is not specified"
        raise Problem(400, gemini_error(400, message, "INVALID_ARGUMENT"))
    _check_signatures(call, contents)
    reply = compose(_see(contents), _tools(call.body.get("tools")), None, call.script)
    body = _response(call, reply, count_items(contents))
    events = None
    if action == "streamGenerateContent":
        events = [Event(None, body, is_terminal=True)]
    return Answer(body=body, events=events, id=body["responseId"])


def _parts(content: Any) -> list[Json]:
    parts = content.get("parts") if isinstance(content, dict) else None
    return [part for part in parts or [] if isinstance(part, dict)]


def _check_signatures(call: Call, contents: list[Any]) -> None:
    for content in contents:
        for part in _parts(content):
            signature = part.get("thoughtSignature", part.get("thought_signature"))
            if signature is not None and unseal(call.owner, signature) is None:
                raise listed_problem("G01")


def _see(contents: list[Any]) -> Seen:
    parts = _parts(contents[-1])
    last = parts[-1] if parts else {}
    output = last.get("functionResponse")
    text = json.dumps(output.get("response")) if isinstance(output, dict) else text_of(last)
    count = sum(any("text" in part for part in _parts(content)) for content in contents)
    return Seen(messages=count, last_text=text, ends_with_output=output is not None)


def _tools(given: Any) -> list[Tool]:
    declared = [
        declaration
        for group in (given if isinstance(given, list) else [])
        if isinstance(group, dict)
        for declaration in group.get("functionDeclarations") or []
        if isinstance(declaration, dict)
    ]
    return [
        Tool(name=str(each.get("name")), schema=each.get("parameters") or {}) for each in declared
    ]


def _response(call: Call, reply: Reply, used: int) -> Json:
    signature = seal(call.owner, reply.reasoning or "")
    parts: list[Json] = [{"text": reply.text}] if reply.text or not reply.calls else []
    parts += [
        {"functionCall": {"name": made.name, "args": json.loads(made.arguments)}}
        for made in reply.calls
    ]
    parts[0]["thoughtSignature"] = signature
    said = count_text(reply.text) + sum(count_text(each.arguments) for each in reply.calls)
    content = {"parts": parts, "role": "model"}
    return {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": used,
            "candidatesTokenCount": said,
            "totalTokenCount": used + said,
        },
        "modelVersion": call.model,
        "responseId": call.ids.take("", size=11),
    }
