"""Settings that a conversation carries in its items: each holds until a later one replaces it."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

KIND = "configuration_update"
_MARK = b'"configuration_update"'


def configured(
    fields: Mapping[str, msgspec.Raw], items: Iterable[bytes]
) -> Mapping[str, msgspec.Raw]:
    """Return a request's fields with what the items last said of reasoning and text, for servers
    that have no such items."""
    said: dict[str, dict[str, Any]] = {}
    for body in items:
        if _MARK not in body:
            continue
        item = msgspec.json.decode(body)
        if item.get("type") != KIND:
            continue
        for name in ("reasoning", "text"):
            if isinstance(item.get(name), dict):
                said.setdefault(name, {}).update(item[name])
    if not said:
        return fields
    changed = {name: {**_object(fields.get(name)), **value} for name, value in said.items()}
    encoded = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in changed.items()}
    return {**fields, **encoded}


def _object(raw: msgspec.Raw | None) -> dict[str, Any]:
    value = msgspec.json.decode(raw) if raw is not None else None
    return value if isinstance(value, dict) else {}
