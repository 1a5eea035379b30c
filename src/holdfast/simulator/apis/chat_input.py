"""Read and validate the messages of a Chat Completions call as strictly as the real server."""

from typing import Any

from holdfast.simulator.apis.fields import check_called, check_text_or_parts, check_types, text_of
from holdfast.simulator.apis.reply import ContextSummary
from holdfast.simulator.apis.responses_input import require_known_model
from holdfast.simulator.delivery.errors import (
    Problem,
    catalogue_problem,
    invalid,
    missing,
    openai_error,
)
from holdfast.simulator.state.call import Call
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.tokens import count_items
from holdfast.simulator.state.world import World

MAX_CALL_ID_LENGTH = 40
_ROLES = ("system", "assistant", "user", "function", "tool", "developer")


def read_messages(world: World, call: Call) -> list[Json]:
    """Return the messages of `call`, or raise the real server's error."""
    check_types(call.body)
    if not call.model:
        raise invalid("you must provide a model parameter", None)
    require_known_model(world, call.model)
    messages = call.body.get("messages")
    if messages is None:
        raise missing("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid(
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an "
            "empty array instead.",
            "messages",
            "empty_array",
        )
    for position, message in enumerate(messages):
        _check_message(message, position)
    _check_pairs(world, messages)
    if world.profile.strict_alternation:
        _check_alternation(messages)
    return messages


def _check_message(message: Any, position: int) -> None:
    if not isinstance(message, dict):
        raise invalid(
            f"Invalid type for 'messages[{position}]': expected an object.",
            f"messages[{position}]",
            "invalid_type",
        )
    role = message.get("role")
    if role not in _ROLES:
        raise invalid(
            f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', "
            "'function', 'tool', and 'developer'.",
            f"messages[{position}].role",
            "invalid_value",
        )
    content = message.get("content")
    if content is not None or not message.get("tool_calls"):
        check_text_or_parts(content, f"messages[{position}].content")
    for number, made in enumerate(message.get("tool_calls") or []):
        field = f"messages[{position}].tool_calls[{number}]"
        _check_length(made.get("id"), f"{field}.id")
        if "function" in made:
            check_called(made["function"], "arguments", f"{field}.function")
        elif "custom" in made:
            check_called(made["custom"], "input", f"{field}.custom")
    _check_length(message.get("tool_call_id"), f"messages[{position}].tool_call_id")


def _check_length(value: object, field: str) -> None:
    if isinstance(value, str) and len(value) > MAX_CALL_ID_LENGTH:
        raise catalogue_problem("C03", field=field, length=len(value))


def _check_pairs(world: World, messages: list[Json]) -> None:
    """Raise unless each call is answered by the messages directly after it, and by nothing else."""
    awaited: dict[str, None] = {}
    answerable: set[str] = set()
    for position, message in enumerate(messages):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in answerable:
                raise catalogue_problem("C02")
            awaited.pop(message["tool_call_id"], None)
            continue
        if awaited:
            raise _unanswered(world, awaited, position)
        made = message.get("tool_calls") or []
        answerable = {tool_call.get("id") for tool_call in made}
        awaited = dict.fromkeys(tool_call.get("id") for tool_call in made)
    if awaited:
        raise _unanswered(world, awaited, len(messages) - 1)


def _unanswered(world: World, awaited: dict[str, None], position: int) -> Problem:
    if world.profile.router_texts:
        return invalid(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. (insufficient tool messages following tool_calls message)",
            None,
            "invalid_request_error",
        )
    return catalogue_problem("C01", id=", ".join(awaited), index=position)


def _check_alternation(messages: list[Json]) -> None:
    """Raise for two messages of one role in a row, like the chat templates of local servers.

    Tool messages are exempt, as in templates that support them.
    """
    expected = "user"
    for message in messages:
        if message["role"] in ("system", "developer", "tool") or message.get("tool_calls"):
            continue
        if message["role"] != expected:
            text = "Conversation roles must alternate user/assistant/user/assistant/..."
            raise Problem(400, openai_error(text, type="BadRequestError", code="400"))
        expected = "assistant" if expected == "user" else "user"


def check_size(world: World, call: Call, messages: list[Json]) -> int:
    """Return the tokens of `messages`, or raise the profile's overflow error."""
    used, limit = count_items(messages), world.context_tokens(call.model)
    if used <= limit:
        return used
    raise overflow(world, used=used, limit=limit)


def overflow(world: World, *, used: int, limit: int) -> Problem:
    """Return the overflow error with the profile's message."""
    if world.profile.router_texts:
        return catalogue_problem("C07", limit=limit, requested=used)
    return invalid(
        f"This model's maximum context length is {limit} tokens. However, your messages resulted "
        f"in {used} tokens. Please reduce the length of the messages.",
        "messages",
        "context_length_exceeded",
    )


def summarize(messages: list[Json]) -> ContextSummary:
    """Return a summary of `messages`."""
    count = sum(
        message["role"] in ("user", "assistant") and bool(message.get("content"))
        for message in messages
    )
    last = messages[-1]
    return ContextSummary(
        messages=count,
        last_text=text_of(last.get("content")),
        ends_with_output=last["role"] == "tool",
    )
