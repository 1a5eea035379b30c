"""The shape of what a server made: what clients of its API may rely on, whoever served them."""

from typing import Any

from holdfast.core.projection.normalize import as_text

Json = dict[str, Any]


def shape(item: Json) -> bool:
    """Give an item the types that the API promises; return whether anything was otherwise."""
    match item.get("type"):
        case "message":
            found = _message(item)
        case "function_call":
            found = {"name": as_text(item.get("name")), "arguments": _text(item, "arguments", "{}")}
        case "custom_tool_call":
            found = {"name": as_text(item.get("name")), "input": _text(item, "input")}
        case "reasoning":
            found = {"summary": objects(item.get("summary"))}
        case _:
            return False
    is_odd = any(name not in item or item[name] != value for name, value in found.items())
    item.update(found)
    return is_odd


def objects(value: Any) -> list[Json]:
    """Return the objects in what should be a list of them."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(item: Json, name: str, otherwise: str = "") -> str:
    return as_text(item.get(name), otherwise)


def _message(item: Json) -> Json:
    role, content = item.get("role"), item.get("content")
    listed = content if isinstance(content, list) else [content]
    parts = [part for part in map(_part, listed) if part is not None]
    return {"role": role if isinstance(role, str) and role else "assistant", "content": parts}


def _part(part: Any) -> Json | None:
    if not isinstance(part, dict):
        text = as_text(part)
        return {"type": "output_text", "text": text, "annotations": []} if text else None
    kind = part.get("type")
    if kind == "refusal":
        return {**part, "refusal": as_text(part.get("refusal"))}
    if kind == "output_text" or (not isinstance(kind, str) and "text" in part):
        has_odd = not isinstance(part.get("annotations", []), list)
        annotations: Json = {"annotations": []} if has_odd else {}
        return {**part, "type": "output_text", "text": as_text(part.get("text")), **annotations}
    return part if isinstance(kind, str) else None
