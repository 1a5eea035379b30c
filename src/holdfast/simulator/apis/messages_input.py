"""Read and strictly validate the messages of an Anthropic call."""

import base64
from itertools import pairwise
from typing import Any

from holdfast.simulator.apis.fields import text_of
from holdfast.simulator.apis.reply import ContextSummary, OfferedTool
from holdfast.simulator.delivery.errors import Problem, anthropic_error, catalogue_problem
from holdfast.simulator.state.call import Call
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.sealing import read_signature
from holdfast.simulator.state.tokens import count_items, count_text, count_value
from holdfast.simulator.state.world import World

CONTEXT_TOKENS = 200_000
_SYSTEM_BETA = "mid-conversation-system"
_IMAGE_BEGINNINGS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


class _Reading:
    """One call's messages, and the errors that carry its request id."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.request_id = call.ids.new("req_011C", size=10)

    def wrong(self, message: str) -> Problem:
        body = anthropic_error(message, "invalid_request_error", self.request_id)
        return Problem(400, body)

    def listed(self, number: str, **values: object) -> Problem:
        return catalogue_problem(number, request_id=self.request_id, **values)


def read_messages(world: World, call: Call, *, needs_max_tokens: bool = True) -> list[Json]:
    """Return the messages with their content in blocks, or raise the real server's error."""
    reading = _Reading(call)
    body = call.body
    for name in ("model", "messages", *(["max_tokens"] if needs_max_tokens else [])):
        if body.get(name) is None:
            raise reading.wrong(f"{name}: Field required")
    _check_types(reading)
    if world.scenario.models and call.model not in world.scenario.models:
        body = anthropic_error(f"model: {call.model}", "not_found_error", reading.request_id)
        raise Problem(404, body)
    given = body["messages"]
    if not isinstance(given, list) or not given:
        raise reading.wrong("messages: at least one message is required")
    messages = [_in_blocks(reading, message, index) for index, message in enumerate(given)]
    if messages[0]["role"] != "user":
        raise reading.wrong('messages: first message must use the "user" role')
    if world.profile.strict_alternation:
        _check_alternation(reading, messages)
    _check_tools(reading, messages)
    _check_thinking(reading, messages)
    _check_images(reading, messages)
    _check_size(world, reading, messages)
    return messages


def _check_types(reading: _Reading) -> None:
    model, limit = reading.call.body["model"], reading.call.body.get("max_tokens")
    if not isinstance(model, str):
        raise reading.wrong("model: Input should be a valid string")
    if limit is not None and type(limit) is not int:
        raise reading.wrong("max_tokens: Input should be a valid integer")
    if limit is not None and limit < 1:
        raise reading.wrong("max_tokens: Input should be greater than or equal to 1")


def _roles(call: Call) -> tuple[str, ...]:
    """Return the allowed roles; a beta header allows system messages in mid-conversation."""
    has_beta = _SYSTEM_BETA in call.headers.get("anthropic-beta", "")
    return ("user", "assistant", "system") if has_beta else ("user", "assistant")


def _in_blocks(reading: _Reading, message: Any, index: int) -> Json:
    if not isinstance(message, dict) or message.get("role") not in _roles(reading.call):
        raise reading.wrong(f"messages.{index}.role: Input should be 'user' or 'assistant'")
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise reading.wrong(f"messages.{index}.content: Input should be a valid list")
    for block in content:
        if block.get("type") == "text" and not block.get("text"):
            raise reading.wrong("messages: text content blocks must be non-empty")
    return {"role": message["role"], "content": content}


def _check_alternation(reading: _Reading, messages: list[Json]) -> None:
    for before, after in pairwise(_spoken(messages)):
        if before["role"] == after["role"]:
            raise reading.wrong(
                'messages: roles must alternate between "user" and "assistant", but found '
                f'multiple "{after["role"]}" roles in a row'
            )


def _spoken(messages: list[Json]) -> list[Json]:
    return [message for message in messages if message["role"] != "system"]


def _of_kind(message: Json, kind: str) -> list[tuple[int, Json]]:
    return [(part, b) for part, b in enumerate(message["content"]) if b.get("type") == kind]


def _check_tools(reading: _Reading, messages: list[Json]) -> None:
    """Raise unless tool_use and tool_result blocks are paired in adjacent messages."""
    named: set[Any] = set()
    pending: list[Any] = []
    pending_at = 0
    for index, message in enumerate(messages):
        if message["role"] == "system":
            continue
        results = _of_kind(message, "tool_result")
        for part, block in results:
            if block.get("tool_use_id") not in pending:
                raise reading.listed("A02", index=index, part=part, id=block.get("tool_use_id"))
        answered = {block.get("tool_use_id") for _, block in results}
        _require_answers(reading, pending_at, [each for each in pending if each not in answered])
        pending, pending_at = [], index
        for part, block in _of_kind(message, "tool_use"):
            if block.get("id") in named:
                raise reading.listed("A03", index=index, part=part)
            named.add(block.get("id"))
            pending.append(block.get("id"))
    _require_answers(reading, pending_at, pending)


def _require_answers(reading: _Reading, index: int, missing: list[Any]) -> None:
    if missing:
        raise reading.listed("A01", index=index, id=", ".join(map(str, missing)))


def _check_thinking(reading: _Reading, messages: list[Json]) -> None:
    owner = reading.call.owner
    spoken = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for index, message in enumerate(messages):
        for part, block in _of_kind(message, "thinking"):
            verdict = read_signature(owner, block.get("signature"), str(block.get("thinking")))
            if verdict == "foreign":
                raise reading.listed("A04", index=index, part=part)
            if verdict == "altered" and index == spoken[-1]:
                raise reading.listed("A05", index=index, part=part)


def _check_images(reading: _Reading, messages: list[Json]) -> None:
    for message in messages:
        for block in _images(message["content"]):
            source = block.get("source")
            if not isinstance(source, dict) or source.get("type") != "base64":
                continue
            if not _is_image(source.get("media_type"), source.get("data")):
                raise reading.listed("A08")


def _images(content: Any) -> list[Json]:
    """Return the image blocks, including those inside tool results."""
    found: list[Json] = []
    for block in content if isinstance(content, list) else []:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "image":
            found.append(block)
        elif block.get("type") == "tool_result":
            found += _images(block.get("content"))
    return found


def _is_image(media_type: Any, data: Any) -> bool:
    try:
        raw = base64.b64decode(data, validate=True)
    except (TypeError, ValueError):
        return False
    return raw.startswith(_IMAGE_BEGINNINGS.get(str(media_type), (b"\0never",)))


def tokens_of(call: Call, messages: list[Json]) -> int:
    """Return the input tokens of a call."""
    system = count_text(text_of(call.body.get("system")))
    return count_items(messages) + system + count_value(call.body.get("tools"))


def _check_size(world: World, reading: _Reading, messages: list[Json]) -> None:
    call = reading.call
    used, limit = tokens_of(call, messages), world.context_tokens(call.model, CONTEXT_TOKENS)
    if used > limit:
        raise reading.listed("A06", used=used, limit=limit)
    wanted = call.body.get("max_tokens")
    if isinstance(wanted, int) and used + wanted > limit:
        raise reading.listed("A07", used=used, requested=wanted, limit=limit)


def read_tools(given: Any) -> list[OfferedTool]:
    """Return the caller's own tools; built-in tools are ignored."""
    tools = given if isinstance(given, list) else []
    return [
        OfferedTool(name=tool["name"], schema=tool["input_schema"])
        for tool in tools
        if isinstance(tool, dict) and "name" in tool and "input_schema" in tool
    ]


def summarize(messages: list[Json]) -> ContextSummary:
    """Return a summary of `messages`."""
    spoken = _spoken(messages)
    last = spoken[-1]["content"][-1] if spoken[-1]["content"] else {}
    return ContextSummary(
        messages=sum(bool(_of_kind(message, "text")) for message in spoken),
        last_text=text_of(last),
        ends_with_output=last.get("type") == "tool_result",
    )
