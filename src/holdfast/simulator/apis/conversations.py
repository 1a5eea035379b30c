"""The Conversations API: conversations and their items."""

from typing import Any

from holdfast.simulator.apis.fields import check_types
from holdfast.simulator.apis.pages import page
from holdfast.simulator.apis.responses import with_ids
from holdfast.simulator.apis.responses_input import find_conversation
from holdfast.simulator.delivery.errors import catalogue_problem, invalid, missing, not_found
from holdfast.simulator.state.call import ApiAnswer, Call
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.memory import ProviderConversation
from holdfast.simulator.state.world import World

MAX_ITEMS = 20


def create(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/conversations."""
    check_types(call.body)
    items = _read_items(call, call.body.get("items") or [])
    conversation = ProviderConversation(
        id=call.ids.new("conv_"),
        created_at=call.now,
        metadata=call.body.get("metadata") or {},
        items=items,
    )

    def commit() -> None:
        call.account.conversations[conversation.id] = conversation
        call.account.keep_items(items, created_at=call.now, owner_id=conversation.id)

    return ApiAnswer(body=conversation.as_object(), commit=commit, id=conversation.id)


def _find(world: World, call: Call) -> ProviderConversation:
    conversation = find_conversation(world, call, call.parameters["id"])
    assert conversation is not None, "a path always names a conversation"
    return conversation


def retrieve(world: World, call: Call) -> ApiAnswer:
    """Answer GET /v1/conversations/{id}."""
    conversation = _find(world, call)
    return ApiAnswer(body=conversation.as_object(), id=conversation.id)


def update(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/conversations/{id}: new metadata."""
    conversation = _find(world, call)
    if "metadata" not in call.body:
        raise missing("metadata")
    check_types(call.body)
    conversation.metadata = call.body["metadata"] or {}
    return ApiAnswer(body=conversation.as_object(), id=conversation.id)


def delete(world: World, call: Call) -> ApiAnswer:
    """Answer DELETE /v1/conversations/{id}."""
    conversation = _find(world, call)
    call.account.forget_owner(conversation.id)
    body = {"id": conversation.id, "object": "conversation.deleted", "deleted": True}
    return ApiAnswer(body=body, id=conversation.id)


def create_items(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/conversations/{id}/items."""
    conversation = _find(world, call)
    if "items" not in call.body:
        raise missing("items")
    if conversation.locked_by is not None:
        raise catalogue_problem("R08")
    items = _read_items(call, call.body["items"])
    taken = {item["id"] for item in conversation.items}
    for item in items:
        if item["id"] in taken:
            raise catalogue_problem("R06", id=item["id"])

    def commit() -> None:
        conversation.items += items
        call.account.keep_items(items, created_at=call.now, owner_id=conversation.id)

    body = {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": False,
    }
    return ApiAnswer(body=body, commit=commit, id=conversation.id)


def list_items(world: World, call: Call) -> ApiAnswer:
    """Answer GET /v1/conversations/{id}/items."""
    conversation = _find(world, call)
    return ApiAnswer(body=page(conversation.items, call.query), id=conversation.id)


def _find_item(conversation: ProviderConversation, item_id: str) -> Json:
    for item in conversation.items:
        if item["id"] == item_id:
            return item
    raise not_found(f"Item with id '{item_id}' not found in conversation '{conversation.id}'.")


def retrieve_item(world: World, call: Call) -> ApiAnswer:
    """Answer GET /v1/conversations/{id}/items/{item_id}."""
    item = _find_item(_find(world, call), call.parameters["item_id"])
    return ApiAnswer(body=item, id=item["id"])


def delete_item(world: World, call: Call) -> ApiAnswer:
    """Answer DELETE /v1/conversations/{id}/items/{item_id}: the conversation."""
    conversation = _find(world, call)
    item = _find_item(conversation, call.parameters["item_id"])
    conversation.items.remove(item)
    call.account.items.pop(item["id"], None)
    return ApiAnswer(body=conversation.as_object(), id=conversation.id)


def _read_items(call: Call, given: Any) -> list[Json]:
    if not isinstance(given, list):
        raise invalid(
            "Invalid type for 'items': expected an array of objects.", "items", "invalid_type"
        )
    if len(given) > MAX_ITEMS:
        raise invalid(
            f"Invalid 'items': array too long. Expected an array with maximum length {MAX_ITEMS}, "
            f"but got an array with length {len(given)} instead.",
            "items",
            "array_above_max_length",
        )
    items = []
    for position, item in enumerate(given):
        if not isinstance(item, dict) or not ("type" in item or "role" in item):
            raise invalid(f"Invalid 'items[{position}]'.", f"items[{position}]", "invalid_value")
        items.append(_as_stored(item))
    return with_ids(items, call.ids.root)


def _as_stored(item: Json) -> Json:
    """Return an item as the API stores it: messages in parts, with a status."""
    if item.get("type", "message") != "message":
        return {"status": "completed", **item} if "call_id" in item else item
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        part: Json = {"type": kind, "text": content}
        if kind == "output_text":
            part |= {"annotations": [], "logprobs": []}
        content = [part]
    return {"type": "message", "status": "completed", **item, "content": content}
