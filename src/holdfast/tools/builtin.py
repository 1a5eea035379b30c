"""The built-in tools, with which a model can read its own sessions. All of them only read."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from holdfast.core.compaction.token_estimate import estimate_tokens
from holdfast.core.errors import InvalidInput
from holdfast.core.healing.policy import read_heals
from holdfast.core.model.gateway_items import GATEWAY_KINDS, client_item
from holdfast.core.model.items import StoredItem, item_value
from holdfast.core.openai.chat import text_of
from holdfast.core.projection.project import project
from holdfast.core.tools.tool_choice import BUILTIN_LABEL
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.store import ItemQuery, SessionView
from holdfast.ports.tools import Tool, ToolCaller, ToolResult
from holdfast.tools.scope import Scope, SessionScope

Arguments = dict[str, object]
Windows = Callable[[str], int | None]
"""Returns the context window of a model in tokens, or None if unknown."""

MAX_TEXT = 4000
"""Characters of one item that `sessions_history` returns."""
RECENT_TURNS = 20
"""How many turns are searched for the last heal."""


class MemorySearch(Protocol):
    """Searches the text of sessions. The caller's scope is applied by the search itself."""

    async def search(self, caller: ToolCaller, arguments: Arguments) -> dict[str, Any]:
        """Return the best matches, with ids for `get`."""
        ...

    async def get(self, caller: ToolCaller, arguments: Arguments) -> dict[str, Any]:
        """Return an item and its neighbours."""
        ...


def _schema(properties: dict[str, Any], required: Sequence[str] = ()) -> msgspec.Raw:
    value = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return msgspec.Raw(msgspec.json.encode(value))


def _integer_schema(description: str, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": maximum, "description": description}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


DESCRIPTIONS: dict[str, tuple[str, msgspec.Raw]] = {
    "session_status": (
        "Return the state of this conversation: context, queue, generation, last repair, usage.",
        _schema({"session_id": _text("Another session that may be seen; default: this one.")}),
    ),
    "sessions_list": (
        "List the sessions of this conversation: the current one and its earlier generations.",
        _schema({"limit": _integer_schema("How many, the latest first; default 20.", 100)}),
    ),
    "sessions_history": (
        "Return messages of this conversation or of one of its earlier generations.",
        _schema(
            {
                "session_id": _text("The session, as sessions_list names it; default: this one."),
                "limit": _integer_schema("How many items, the latest last; default 20.", 100),
                "before": _integer_schema("Return only items before this sequence number.", 2**53),
            }
        ),
    ),
    "memory_search": (
        "Search everything that was said in this conversation, earlier generations included.",
        _schema(
            {
                "query": _text("Words to search for."),
                "limit": _integer_schema("How many matches; default 10.", 50),
                "role": {"type": "string", "enum": ["user", "assistant"]},
                "include_hidden": {
                    "type": "boolean",
                    "description": "Also search what was edited or regenerated since.",
                },
            },
            ["query"],
        ),
    ),
    "memory_get": (
        "Return an item that memory_search found, with the items around it.",
        _schema(
            {
                "session_id": _text("The session of the match."),
                "sequence": _integer_schema("The sequence number of the match.", 2**53),
                "around": _integer_schema("How many items before and after it; default 3.", 20),
            },
            ["session_id", "sequence"],
        ),
    ),
}


class BuiltinTools:
    """The built-in tools of one gateway."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        scope: Scope = "key",
        windows: Windows | None = None,
        search: MemorySearch | None = None,
    ) -> None:
        self._gateway = gateway
        self._read = gateway.read
        self._scope = SessionScope(gateway.read, scope)
        self._windows: Windows = windows or (lambda _: None)
        self._run: dict[str, Callable[[ToolCaller, Arguments], Awaitable[dict[str, Any]]]] = {
            "session_status": self._status,
            "sessions_list": self._list,
            "sessions_history": self._history,
        }
        if search is not None:
            self._run["memory_search"] = search.search
            self._run["memory_get"] = search.get

    @property
    def names(self) -> Sequence[str]:
        """The names of the tools that this gateway has."""
        return list(self._run)

    def tool(self, name: str) -> Tool:
        """Return a tool as the model sees it. All of them only read, so they are safe."""
        description, parameters = DESCRIPTIONS[name]
        digest = blake2b(description.encode() + bytes(parameters), digest_size=8).hexdigest()
        return Tool(
            function=name,
            description=description,
            parameters=parameters,
            server_label=BUILTIN_LABEL,
            name=name,
            is_repeatable=True,
            digest=digest,
        )

    async def call(self, caller: ToolCaller, name: str, arguments: Arguments) -> ToolResult:
        """Run a tool."""
        try:
            value = await self._run[name](await self._scope.acting(caller), arguments)
        except _BadArgument as exc:
            return ToolResult(error=str(exc))
        except InvalidInput as exc:
            return ToolResult(error=exc.message)
        return ToolResult(output=msgspec.json.encode(value).decode())

    # ── the tools ───────────────────────────────────────────────────────────────────────────

    async def _status(self, caller: ToolCaller, arguments: Arguments) -> dict[str, Any]:
        view = await self._find(caller, arguments)
        session = view.session
        context = project(await self._read.context(session))
        window = self._windows(caller.model)
        used = estimate_tokens(context, {})
        return {
            **_summary(view),
            "model": caller.model,
            "context": {
                "tokens": used,
                "window": window,
                "share": round(used / window, 3) if window else None,
            },
            "usage": {
                "input_tokens": session.input_tokens,
                "cached_tokens": session.cached_tokens,
                "output_tokens": session.output_tokens,
                "reasoning_tokens": session.reasoning_tokens,
            },
            "last_heal": await self._last_heal(view),
        }

    async def _last_heal(self, view: SessionView) -> dict[str, Any] | None:
        """Return how the last provider failure in the recent turns was handled."""
        turns = await self._read.turns(view.session.id, after=0, limit=RECENT_TURNS, order="desc")
        for turn in turns:
            for run in reversed(await self._read.runs(turn.turn.id)):
                heals = read_heals(run.heals)
                if heals:
                    last = heals[-1]
                    return {
                        "turn_id": turn.turn.id,
                        "failure": last.failure_class,
                        "action": last.action,
                        "code": last.code,
                        "at": _time(run.started_at),
                    }
        return None

    async def _list(self, caller: ToolCaller, arguments: Arguments) -> dict[str, Any]:
        limit = _number(arguments, "limit", 20, 100)
        views = await self._scope.all(caller, limit)
        return {
            "sessions": [
                {**_summary(view), "is_this": view.session.id == caller.session.id}
                for view in views
            ]
        }

    async def _history(self, caller: ToolCaller, arguments: Arguments) -> dict[str, Any]:
        view = await self._find(caller, arguments)
        limit = _number(arguments, "limit", 20, 100)
        before = _number(arguments, "before", 0, 2**53)
        query = ItemQuery(after=before or None, limit=limit, order="desc")
        items = await self._read.items(view.session, query)
        return {
            "session_id": view.session.id,
            "generation": view.session.generation,
            "items": [line for item in reversed(items) if (line := _line(item)) is not None],
            "has_more": bool(items) and items[-1].seq > 1 and len(items) == limit,
        }

    async def _find(self, caller: ToolCaller, arguments: Arguments) -> SessionView:
        name = arguments.get("session_id")
        if name is not None and not isinstance(name, str):
            raise _BadArgument("session_id must be text")
        view = await self._scope.find(caller, name)
        if view is None:
            raise _BadArgument(f"there is no session {name}")
        return view


class _BadArgument(Exception):
    """Invalid arguments; the message goes to the model."""


def _number(arguments: Arguments, name: str, default: int, maximum: int) -> int:
    value = arguments.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _BadArgument(f"{name} must be a positive whole number")
    return min(value, maximum)


def _summary(view: SessionView) -> dict[str, Any]:
    session = view.session
    return {
        "session_id": session.id,
        "key": session.key,
        "generation": session.generation,
        "status": view.status,
        "queued_turns": view.queued_turns,
        "turns": session.turn_count,
        "items": session.item_count,
        "created_at": _time(session.created_at),
        "last_user_activity_at": _time(session.last_user_activity_at),
    }


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _line(item: StoredItem) -> dict[str, Any] | None:
    """Return an item in short form; None if another item stands for it."""
    body: bytes | None = item.body
    if item.kind in GATEWAY_KINDS:
        body = client_item(item.body)
    if body is None:
        return None
    value = item_value(body)
    line: dict[str, Any] = {"sequence": item.seq, "type": value.get("type") or item.kind}
    if item.kind == "message":
        line["role"] = value.get("role")
        text = text_of(value.get("content"))
    else:
        line["name"] = value.get("name")
        parts = (value.get("arguments"), value.get("output"), value.get("error"))
        text = "\n".join(part for part in parts if isinstance(part, str))
    line["text"] = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " [cut]"
    return line
