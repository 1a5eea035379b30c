"""The `tool_choice` of a request whose tools the gateway runs, as upstreams are shown it.

Upstreams know the gateway's tools as functions only. A choice that forces a call holds for the
first call of a turn; a choice that only allows some of the tools holds for all of them.
"""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

ALLOWED = "allowed_tools"
_GATEWAY_TYPES = ("mcp", "holdfast")


class NamedFunction(Protocol):
    """A tool of the gateway as upstreams know it."""

    @property
    def function(self) -> str:
        """Its name for upstreams."""
        ...

    @property
    def server_label(self) -> str:
        """The server that has it."""
        ...

    @property
    def name(self) -> str:
        """Its name at that server."""
        ...


class ToolChoice:
    """Translates the choices of one request."""

    def __init__(
        self,
        functions: Sequence[NamedFunction],
        labels: Collection[str],
        *,
        builtin_label: str,
        is_chat: bool,
        has_others: bool,
    ) -> None:
        self._functions = functions
        self._labels = labels
        """The servers of the gateway that the request uses; any other is the upstream's."""
        self._builtin_label = builtin_label
        self._is_chat = is_chat
        self._has_others = has_others
        """Whether the request has tools of the client or of the upstream as well."""

    def translate(self, choice: Any, *, is_first: bool) -> Any:
        """Return the choice for a model call of the turn: its first, or a later one."""
        if isinstance(choice, str):
            return choice if is_first or choice != "required" else "auto"
        if not isinstance(choice, dict):
            return choice
        if choice.get("type") == ALLOWED:
            return self._allowed(choice, is_first=is_first)
        if not is_first:
            return "auto"
        return self._forced(choice) if self._is_ours(choice) else choice

    def _is_ours(self, tool: Any) -> bool:
        if not isinstance(tool, dict) or tool.get("type") not in _GATEWAY_TYPES:
            return False
        return tool.get("server_label", self._builtin_label) in self._labels

    def _find(self, tool: dict[str, Any]) -> list[Any]:
        """Return the functions that a tool of the gateway stands for: one, or a whole server."""
        label, name = tool.get("server_label", self._builtin_label), tool.get("name")
        return [
            self._reference(each.function)
            for each in self._functions
            if each.server_label == label and name in (None, each.name)
        ]

    def _reference(self, function: str) -> dict[str, Any]:
        named = {"name": function}
        return (
            {"type": "function", "function": named}
            if self._is_chat
            else {"type": "function", **named}
        )

    def _forced(self, choice: dict[str, Any]) -> Any:
        found = self._find(choice)
        if not found:
            return "auto"  # its server is not there: the model can only say so
        if len(found) == 1:
            return found[0]
        if len(found) == len(self._functions) and not self._has_others:
            return "required"
        return self._limited("required", found)

    def _allowed(self, choice: dict[str, Any], *, is_first: bool) -> Any:
        inner = choice.get(ALLOWED) if self._is_chat else choice
        listed = inner.get("tools") if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or not isinstance(listed, list):
            return choice  # the provider says what is wrong
        tools: list[Any] = []
        for tool in listed:
            tools += self._find(tool) if self._is_ours(tool) else [tool]
        if listed and not tools:
            return "none"
        mode = inner.get("mode")
        return self._limited("auto" if mode == "required" and not is_first else mode, tools)

    def _limited(self, mode: Any, tools: list[Any]) -> dict[str, Any]:
        inner = {"tools": tools} if mode is None else {"mode": mode, "tools": tools}
        return {"type": ALLOWED, ALLOWED: inner} if self._is_chat else {"type": ALLOWED, **inner}
