"""Describe a store's sessions as text: identity, visible items and hidden items."""

import json
from typing import Any

import holdfast
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.ports.store import ItemQuery, SessionQuery


async def picture(url: str) -> str:
    """Return every session of a store, by key and generation."""
    lines: list[str] = []
    async with holdfast.open(url) as hf:
        read = hf.gateway.read
        found = await read.sessions(DEFAULT_TENANT, SessionQuery(generations=True, limit=1000))
        for view in sorted(found, key=lambda v: (v.session.key or "", v.session.generation)):
            session = view.session
            lines.append(f"{session.key} #{session.generation} {view.status}")
            listed = await read.listing(session, ItemQuery(view="log"))
            for one in listed:
                mark = "~" if one.hidden_by is not None else " "
                turn = one.item.turn_number
                lines.append(f"  {turn}{mark} {told(json.loads(one.item.body))}")
    return "\n".join(lines) + "\n"


def told(item: dict[str, Any]) -> str:
    """Return an item on one line, with all its relevant fields."""
    kind = item.get("type") or "message"
    if kind == "message":
        content = item["content"]
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        said = " ".join(str(part.get("text") or part.get("image_url")) for part in parts)
        return f"{item['role']}: {' '.join(said.split())}"
    shown = {k: v for k, v in sorted(item.items()) if k not in ("type", "status")}
    return f"{kind} {json.dumps(shown)}"
