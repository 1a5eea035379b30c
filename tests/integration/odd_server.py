"""An upstream with scripted replies, to simulate servers that are not quite compatible."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from holdfast.providers.settings import UpstreamSettings

Json = dict[str, Any]
Reply = Json | list[Json] | web.Response
"""A whole answer, the events or chunks of a stream, or any other response."""
Say = Callable[[str, Json], Reply]
"""Returns the reply to a request's path and body."""


class OddServer:
    """The server's address, and the requests that it received."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Json] = []

    def upstream(self, **more: Any) -> UpstreamSettings:
        """Return the server as an upstream."""
        told = {"url": f"{self.url}/v1", "key": "sk-odd", "api": "responses"}
        return UpstreamSettings(**{**told, **more})


def _written(reply: Reply) -> web.Response:
    if isinstance(reply, web.Response):
        return reply
    if isinstance(reply, dict):
        return web.json_response(reply)
    told = "".join(f"data: {json.dumps(one)}\n\n" for one in reply) + "data: [DONE]\n\n"
    return web.Response(body=told.encode(), content_type="text/event-stream")


@asynccontextmanager
async def odd_server(say: Say) -> AsyncIterator[OddServer]:
    """Run a server for the length of a block."""

    async def answer(request: web.Request) -> web.Response:
        raw = await request.read()
        body: Json = json.loads(raw) if raw else {}
        server.asked.append(body)
        return _written(say(request.path.removeprefix("/v1"), body))

    application = web.Application(client_max_size=2**26)
    application.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = OddServer(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield server
    finally:
        await runner.cleanup()


def whole(*items: Json, **more: Any) -> Json:
    """Return a whole response."""
    return {"id": "resp_1", "object": "response", "status": "completed", "output": list(items),
            "usage": {"input_tokens": 1, "output_tokens": 1}, **more}  # fmt: skip


def saying(text: str) -> Json:
    """Return a message."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
            "content": [part]}  # fmt: skip
