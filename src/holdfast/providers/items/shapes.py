"""Convert items of a server to the types that clients of the Responses API rely on."""

from typing import Any

from holdfast.core.projection.normalize import as_text

Json = dict[str, Any]


def normalize(item: Json) -> bool:
    """Convert an item to the API's types in place; return whether anything changed."""
    match item.get("type"):
        case "message":
            fields = _message(item)
        case "function_call":
            arguments = as_text(item.get("arguments"), "{}")
            fields = {"name": as_text(item.get("name")), "arguments": arguments, **_status(item)}
        case "custom_tool_call":
            fields = {"name": as_text(item.get("name")), "input": as_text(item.get("input"), "")}
        case "reasoning":
            fields = {"summary": objects(item.get("summary"))}
        case _:
            return False
    is_changed = not fields.items() <= item.items()
    item.update(fields)
    if item["type"] == "reasoning":
        return _drop_nulls(item, "content", "encrypted_content") or is_changed
    return is_changed


def _status(item: Json) -> Json:
    status = item.get("status")
    return {"status": status if isinstance(status, str) and status else "completed"}


def _drop_nulls(item: Json, *names: str) -> bool:
    """Remove null fields, which clients' schemas do not allow; return whether there were any."""
    empty = [name for name in names if name in item and item[name] is None]
    for name in empty:
        del item[name]
    return bool(empty)


def as_object(value: Any) -> Json:
    """Return an object; an empty one in place of any other value."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[Json]:
    """Return the objects of a list; other values are skipped."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _message(item: Json) -> Json:
    role, content = item.get("role"), item.get("content")
    listed = content if isinstance(content, list) else [content]
    parts = [part for part in map(_part, listed) if part is not None]
    role = role if isinstance(role, str) and role else "assistant"
    return {"role": role, "content": parts, **_status(item)}


def _part(part: Any) -> Json | None:
    if not isinstance(part, dict):
        text = as_text(part)
        return {"type": "output_text", "text": text, "annotations": []} if text else None
    kind = part.get("type")
    if kind == "refusal":
        return {**part, "refusal": as_text(part.get("refusal"))}
    if kind == "output_text" or (not isinstance(kind, str) and "text" in part):
        is_valid = isinstance(part.get("annotations"), list)
        annotations: Json = {} if is_valid else {"annotations": []}
        return {**part, "type": "output_text", "text": as_text(part.get("text")), **annotations}
    return part if isinstance(kind, str) else None
