"""The `tool_choice` of a request whose tools the gateway runs, translated for upstreams.

Upstreams know the gateway's tools as functions only. A choice that forces a tool applies to the
first model call of a turn; a choice that only allows some tools applies to all of them.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

BUILTIN_LABEL = "holdfast"
"""The server label under which clients see built-in tools."""
ALLOWED = "allowed_tools"
_GATEWAY_TYPES = ("mcp", "holdfast")


class _Named(msgspec.Struct):
    name: str = ""


class _Choice(msgspec.Struct):
    """A choice of one tool, as Responses and Chat write it."""

    type: str = ""
    name: str = ""
    function: _Named | None = None
    custom: _Named | None = None


_read_choice = msgspec.json.Decoder(_Choice | str | None).decode


def forced_function(choice: msgspec.Raw | None) -> str | None:
    """Return the function that a `tool_choice` names, if it forces one of the client's.

    Such a request wants structured output: nobody will run the function.
    """
    if choice is None:
        return None
    try:
        value = _read_choice(choice)
    except msgspec.DecodeError:
        return None
    if not isinstance(value, _Choice) or value.type not in ("function", "custom"):
        return None
    inner = value.function if value.type == "function" else value.custom
    return (inner.name if inner is not None else value.name) or None


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the gateway as upstreams see it."""

    function: str
    description: str
    parameters: msgspec.Raw
    server_label: str = BUILTIN_LABEL
    name: str = ""


class ToolChoice:
    """Translates the choices of one request."""

    def __init__(
        self,
        functions: Sequence[FunctionTool],
        labels: Collection[str],
        *,
        is_chat: bool,
        has_others: bool,
    ) -> None:
        self._functions = functions
        self._labels = labels
        """The labels of the gateway's servers that the request uses; others belong to the
        upstream."""
        self._is_chat = is_chat
        self._has_others = has_others
        """Whether the request has tools of the client or of the upstream as well."""

    def translate(self, choice: Any, *, is_first: bool) -> Any:
        """Return the choice for the first or a later model call of the turn."""
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
        return tool.get("server_label", BUILTIN_LABEL) in self._labels

    def _find(self, tool: dict[str, Any]) -> list[Any]:
        """Return the functions for a tool of the gateway: one, or all of a server."""
        label, name = tool.get("server_label", BUILTIN_LABEL), tool.get("name")
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
        tool = self._find(choice)
        if not tool:
            return "auto"  # its server is unavailable
        if len(tool) == 1:
            return tool[0]
        if len(tool) == len(self._functions) and not self._has_others:
            return "required"
        return self._limited("required", tool)

    def _allowed(self, choice: dict[str, Any], *, is_first: bool) -> Any:
        inner = choice.get(ALLOWED) if self._is_chat else choice
        listed = inner.get("tools") if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or not isinstance(listed, list):
            return choice  # invalid: the provider reports the error
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
