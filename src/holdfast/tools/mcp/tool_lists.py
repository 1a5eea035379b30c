"""Remove malformed tools from a list, because the client library would reject the whole list."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from mcp_types.methods import validate_server_result

_VERSION = "2025-11-25"
"""A version of the protocol; all of them describe a tool in the same way."""
MAX_NAME = 128
NO_NAME = "(no name)"


@asynccontextmanager
async def checked_lists(
    transport: AbstractAsyncContextManager[Any], note: Callable[[str], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """Open a transport whose lists have only well-formed tools; `note` gets the other names."""
    async with transport as (read, write):
        yield _CheckedStream(read, note), write


class _CheckedStream:
    """The messages of a server; see `mcp.client.ReadStream`."""

    def __init__(self, stream: Any, note: Callable[[str], None]) -> None:
        self._stream = stream
        self._note = note

    @property
    def last_context(self) -> Any:
        """The context of the last message's sender, if the transport has one."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """Return the next message."""
        return self._checked(await self._stream.receive())

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> "_CheckedStream":
        return self

    async def __anext__(self) -> Any:
        return self._checked(await self._stream.__anext__())

    async def __aenter__(self) -> "_CheckedStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def _checked(self, item: Any) -> Any:
        message = item.message if isinstance(item, SessionMessage) else None
        result = message.result if isinstance(message, JSONRPCResponse) else None
        tools = result.get("tools") if isinstance(result, dict) else None
        if isinstance(result, dict) and isinstance(tools, list):
            result["tools"] = [tool for tool in tools if self._is_well_formed(tool)]
        return item

    def _is_well_formed(self, tool: Any) -> bool:
        try:
            validate_server_result("tools/list", _VERSION, {"tools": [tool]})
        except ValueError:
            name = tool.get("name") if isinstance(tool, dict) else None
            self._note(name[:MAX_NAME] if isinstance(name, str) and name else NO_NAME)
            return False
        return True
