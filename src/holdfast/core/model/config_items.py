"""Settings that items of a conversation carry; each applies until a later one replaces it."""

from collections.abc import Mapping
from typing import Any

import msgspec

KIND = "configuration_update"
Settings = Mapping[str, Mapping[str, Any]]
"""The fields that items have set, by the request field that they belong to."""


def updated_settings(settings: Settings, item: Mapping[str, Any]) -> Settings:
    """Return settings after a `configuration_update` item."""
    changed = {
        name: {**settings.get(name, {}), **item[name]}
        for name in ("reasoning", "text")
        if isinstance(item.get(name), dict)
    }
    return {**settings, **changed}


def with_settings(
    fields: Mapping[str, msgspec.Raw], settings: Settings
) -> Mapping[str, msgspec.Raw]:
    """Return a request's fields with the settings of its items, for servers without such items."""
    if not settings:
        return fields
    changed = {name: {**_object(fields.get(name)), **value} for name, value in settings.items()}
    encoded = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in changed.items()}
    return {**fields, **encoded}


def _object(raw: msgspec.Raw | None) -> dict[str, Any]:
    value = msgspec.json.decode(raw) if raw is not None else None
    return value if isinstance(value, dict) else {}
