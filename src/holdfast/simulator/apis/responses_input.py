"""Read the input of a Responses call, resolve its references, and validate it strictly."""

from dataclasses import dataclass
from typing import Any

from holdfast.simulator.apis.fields import (
    check_called,
    check_text_or_parts,
    check_types,
    kind_of,
    text_of,
    wrong_type,
)
from holdfast.simulator.apis.reply import ContextSummary
from holdfast.simulator.delivery.errors import catalogue_problem, invalid, missing
from holdfast.simulator.faults.effects import IgnorePrevious
from holdfast.simulator.state.call import Call
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.memory import ProviderConversation, StoredResponse
from holdfast.simulator.state.sealing import unseal
from holdfast.simulator.state.tokens import count_items, count_text
from holdfast.simulator.state.world import World

MAX_ID_LENGTH = 64
OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
}
OUTPUTS = frozenset(OUTPUT_OF.values())
ROLES = ("assistant", "system", "developer", "user")
OUTPUT_PARTS = ("output_text", "refusal")
TEXT_PARTS = ("input_text", "output_text", "refusal")
INPUT_PARTS = ("input_text", "input_image", "input_file", "input_audio")
_ID_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_CHAINABLE = ("completed", "incomplete")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseInput:
    """The input of a model: stored items and new ones."""

    prior: list[Json]
    items: list[Json]
    parent: StoredResponse | None
    conversation: ProviderConversation | None
    input_tokens: int
    prior_tokens: int

    @property
    def context(self) -> list[Json]:
        """All items of the input, oldest first."""
        return self.prior + self.items


def read_response_input(world: World, call: Call) -> ResponseInput:
    """Return the input of `call`, or raise the real server's error."""
    body = call.body
    check_types(body)
    _require_model(world, call)
    if body.get("previous_response_id") and body.get("conversation"):
        raise invalid(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Ensure you "
            "are only providing one of: 'previous_response_id' or 'conversation'.",
            None,
            "mutually_exclusive_parameters",
        )
    parent = _find_parent(world, call)
    conversation = find_conversation(world, call, body.get("conversation"))
    items = as_items(body.get("input"))
    if not items and parent is None and conversation is None and "prompt" not in body:
        if "input" not in body:
            raise missing("input")
        raise invalid("Invalid 'input': expected a non-empty value.", "input", "invalid_value")
    prior = _prior(parent, conversation)
    items = check_items(world, call, prior, items)
    return _fit(
        world,
        call,
        ResponseInput(
            prior=prior,
            items=items,
            parent=parent,
            conversation=conversation,
            input_tokens=0,
            prior_tokens=count_items(prior),
        ),
    )


def _require_model(world: World, call: Call) -> None:
    if not call.model:
        raise missing("model")
    require_known_model(world, call.model)


def require_known_model(world: World, model: str) -> None:
    """Raise OpenAI's 404 unless `model` exists."""
    if world.scenario.models and model not in world.scenario.models:
        problem = invalid(
            f"The model `{model}` does not exist or you do not have access to it.",
            None,
            "model_not_found",
        )
        problem.status = 404
        raise problem


def _find_parent(world: World, call: Call) -> StoredResponse | None:
    wanted = call.body.get("previous_response_id")
    if not wanted or world.profile.ignores_previous or call.effect(IgnorePrevious):
        return None
    parent = world.find_response(call, wanted)
    if parent is None or parent.response["status"] not in _CHAINABLE:
        raise catalogue_problem("R02", id=wanted)
    return parent


def find_conversation(world: World, call: Call, named: Any) -> ProviderConversation | None:
    """Return the conversation of `named` (an id or an object with one), or raise R17."""
    if not named:
        return None
    wanted = named.get("id") if isinstance(named, dict) else named
    found = call.account.conversations.get(wanted) if isinstance(wanted, str) else None
    if found is None or world.forgetting.has_forgotten(
        owner_id=found.id, created_at=found.created_at, now=call.now
    ):
        raise catalogue_problem("R17", id=wanted)
    return found


def _prior(parent: StoredResponse | None, conversation: ProviderConversation | None) -> list[Json]:
    if parent is not None:
        return parent.context()
    return list(conversation.items) if conversation is not None else []


def as_items(given: Any) -> list[Json]:
    """Return the `input` of a call as a list of items."""
    if given is None:
        return []
    if isinstance(given, str):
        return [message("user", given)]
    if not isinstance(given, list):
        raise invalid(
            "Invalid type for 'input': expected one of an array of objects or string, but got "
            f"{kind_of(given)} instead.",
            "input",
            "invalid_type",
        )
    return [_as_item(item, position) for position, item in enumerate(given)]


def message(role: str, text: str) -> Json:
    """Return a message item with `text`."""
    part = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": part, "text": text}]}


def _as_item(item: Any, position: int) -> Json:
    if not isinstance(item, dict):
        raise invalid(
            f"Invalid type for 'input[{position}]': expected an object, but got {kind_of(item)} "
            "instead.",
            f"input[{position}]",
            "invalid_type",
        )
    if "type" in item:
        return item
    if "role" in item:
        return {"type": "message", **item}
    raise missing(f"input[{position}].type")


def check_items(world: World, call: Call, prior: list[Json], items: list[Json]) -> list[Json]:
    """Return `items` with references resolved; raise the real server's error for invalid ones."""
    _check_fields(items)
    _check_unique(prior, items)
    resolved = [_resolve(world, call, item) for item in items]
    _check_reasoning(resolved)
    _check_pairs(prior + resolved)
    return resolved


def _check_fields(items: list[Json]) -> None:
    for position, item in enumerate(items):
        for name in ("call_id", "id"):
            value = item.get(name)
            if isinstance(value, str) and len(value) > MAX_ID_LENGTH:
                raise catalogue_problem("R09", field=f"input[{position}].{name}", length=len(value))
        kind = item["type"]
        if kind == "message" and item.get("role") not in ROLES:
            raise invalid(
                f"Invalid value: '{item.get('role')}'. Supported values are: 'assistant', "
                "'system', 'developer', and 'user'.",
                f"input[{position}].role",
                "invalid_value",
            )
        if kind == "message":
            _check_content(item, position)
        elif kind in ("function_call", "custom_tool_call"):
            check_called(
                item, "arguments" if kind == "function_call" else "input", f"input[{position}]"
            )
        elif kind in ("function_call_output", "custom_tool_call_output"):
            check_text_or_parts(item.get("output"), f"input[{position}].output")
        prefix = _ID_PREFIXES.get(kind)
        own_id = item.get("id")
        if prefix and isinstance(own_id, str) and not own_id.startswith(prefix):
            raise invalid(
                f"Invalid 'input[{position}].id': '{own_id}'. Expected an ID that begins with "
                f"'{prefix}'.",
                f"input[{position}].id",
                "invalid_value",
            )
        if (kind in OUTPUT_OF or kind in OUTPUTS) and not item.get("call_id"):
            raise missing(f"input[{position}].call_id")


def _check_content(item: Json, position: int) -> None:
    where = f"input[{position}].content"
    check_text_or_parts(item.get("content"), where)
    is_made = item.get("role") == "assistant"
    for place, part in enumerate(item["content"] if isinstance(item["content"], list) else ()):
        kind = part.get("type")
        allowed = OUTPUT_PARTS if is_made else INPUT_PARTS
        if kind not in allowed:
            listed = ", ".join(f"'{one}'" for one in allowed[:-1])
            raise invalid(
                f"Invalid value: '{kind}'. Supported values are: {listed}, and '{allowed[-1]}'.",
                f"{where}[{place}]",
                "invalid_value",
            )
        field = "refusal" if kind == "refusal" else "text"
        if kind in TEXT_PARTS and not isinstance(part.get(field), str):
            raise wrong_type(f"{where}[{place}].{field}", "a string", part.get(field))


def _check_unique(prior: list[Json], items: list[Json]) -> None:
    named = {item["id"] for item in prior if item.get("id")}
    for item in items:
        item_id = item.get("id")
        if not item_id:
            continue
        if item_id in named:
            raise catalogue_problem("R06", id=item_id)
        named.add(item_id)


def _resolve(world: World, call: Call, item: Json) -> Json:
    kind = item["type"]
    if kind == "item_reference":
        stored = world.find_item(call, item.get("id"))
        if stored is None:
            raise catalogue_problem("R01", id=item.get("id"))
        return stored.item
    if kind not in ("reasoning", "compaction"):
        return item
    blob = item.get("encrypted_content")
    if blob is not None:
        if unseal(call.owner, blob) is None:
            raise catalogue_problem("R07", id=item.get("id", ""))
        return item
    if world.find_item(call, item.get("id")) is None:
        raise catalogue_problem("R01", id=item.get("id"))
    return item


def _check_reasoning(items: list[Json]) -> None:
    """Raise unless each reasoning item is followed by output of the model."""
    for position, item in enumerate(items):
        if item["type"] != "reasoning":
            continue
        after = items[position + 1] if position + 1 < len(items) else None
        if after is None or not _is_model_output(after):
            raise catalogue_problem("R03", id=item.get("id", ""))


def _is_model_output(item: Json) -> bool:
    if item["type"] == "message":
        return bool(item.get("role") == "assistant")
    return item["type"] not in OUTPUTS


def _check_pairs(context: list[Json]) -> None:
    calls: set[Any] = set()
    open_calls: dict[Any, None] = {}
    for item in context:
        kind = item.get("type")
        if kind in OUTPUT_OF:
            calls.add(item.get("call_id"))
            open_calls[item.get("call_id")] = None
        elif kind in OUTPUTS:
            if item.get("call_id") not in calls:
                raise catalogue_problem("R05", id=item.get("call_id"))
            open_calls.pop(item.get("call_id"), None)
    if open_calls:
        raise catalogue_problem("R04", id=next(iter(open_calls)))


def _fit(world: World, call: Call, request: ResponseInput) -> ResponseInput:
    """Count the tokens; truncate the oldest items if allowed, else raise R10."""
    instructions = count_text(text_of(call.body.get("instructions")))
    limit = world.context_tokens(call.model)
    prior, items = request.prior, request.items
    used = instructions + request.prior_tokens + count_items(items)
    if used > limit and call.body.get("truncation") == "auto":
        context = prior + items
        while len(context) > 1 and used > limit:
            used -= count_items(context[:1])
            context = context[1:]
        prior, items = context[: -len(items) or None], context[-len(items) :]
    elif used > limit:
        raise catalogue_problem("R10")
    return ResponseInput(
        prior=prior,
        items=items,
        parent=request.parent,
        conversation=request.conversation,
        input_tokens=used,
        prior_tokens=request.prior_tokens,
    )


def summarize(call: Call, context: list[Json]) -> ContextSummary:
    """Return a summary of `context`."""
    count, last, ends_with_output = 0, "", False
    for item in context:
        kind = item.get("type")
        if kind == "message":
            if item.get("role") in ("user", "assistant"):
                count += 1
            last, ends_with_output = text_of(item.get("content")), False
        elif kind in OUTPUTS:
            last, ends_with_output = text_of(item.get("output")), True
        elif kind == "compaction":
            count += int(unseal(call.owner, item.get("encrypted_content")) or 0)
    return ContextSummary(messages=count, last_text=last, ends_with_output=ends_with_output)
