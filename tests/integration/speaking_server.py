"""An upstream that has some of OpenAI's paths, and answers in many ways for those it lacks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from holdfast.providers.settings import UpstreamSettings

Json = dict[str, Any]
Missing = Callable[[str], web.StreamResponse]
"""Returns the reply for a path that the server does not have."""
RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"


def html(_: str) -> web.Response:
    """Answer as a web server does."""
    return web.Response(status=404, text="<html>Not Found</html>", content_type="text/html")


def detail(_: str) -> web.Response:
    """Answer as FastAPI does."""
    return web.json_response({"detail": "Not Found"}, status=404)


def method_not_allowed(_: str) -> web.Response:
    """Answer as a server that has the path for other methods."""
    return web.Response(status=405, text="Method Not Allowed")


def detail_with_200(_: str) -> web.Response:
    """Answer as a proxy that loses the status."""
    return web.json_response({"detail": "Not Found"})


def error_for_everything(_: str) -> web.Response:
    """Answer as llama.cpp does for whatever it does not have."""
    return web.json_response({"error": {"code": 404, "message": "File Not Found"}}, status=404)


def error_with_200(path: str) -> web.Response:
    """Answer as LM Studio does."""
    return web.json_response({"error": f"Unexpected endpoint or method. (POST {path})"})


def complaint(_: str) -> web.Response:
    """Answer as a server that has one status for all mistakes."""
    return web.json_response({"error": {"message": "Unknown path"}}, status=400)


class SpeakingServer:
    """The server's address, and what it was asked."""

    def __init__(self, port: int, has: Collection[str], missing: Missing) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.has = has
        self.missing = missing
        self.hangs_on_nothing: Collection[str] = ()
        """Paths that never answer an empty request."""
        self.status_for_nothing = 400
        self.probes: list[str] = []
        self.calls: list[tuple[str, Json]] = []
        self.embeddings: list[str] = []
        """Paths that were asked for embeddings."""
        self._runner: web.AppRunner | None = None
        self._port = port

    def upstream(self, base: str = "/v1", **more: Any) -> UpstreamSettings:
        """Return the server as an upstream whose API is not told."""
        return UpstreamSettings(**{"url": f"{self.url}{base}", "key": "sk-ours", **more})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.method == "GET":
            return web.json_response({"data": [{"id": "gpt-5.4", "object": "model"}]})
        body = json.loads(await request.read())
        if request.path.endswith("/embeddings"):
            self.embeddings.append(request.path)
            return web.json_response({"object": "list", "data": []})
        if not body:
            self.probes.append(request.path)
            if request.path in self.hangs_on_nothing:
                await asyncio.Event().wait()
            if request.path not in self.has:
                return self.missing(request.path)
            problem = {"error": {"message": "you must provide a model", "type": "invalid"}}
            return web.json_response(problem, status=self.status_for_nothing)
        if request.path not in self.has:
            return self.missing(request.path)
        self.calls.append((request.path, body))
        return web.json_response(_said(request.path, body))

    async def start(self) -> None:
        """Listen, on the port that was chosen before."""
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", self.answer)
        # A client that hangs on purpose is not waited for.
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()


def _said(path: str, body: Json) -> Json:
    usage = {"input_tokens": 1, "output_tokens": 1, "prompt_tokens": 1, "completion_tokens": 1}
    if path.endswith("/chat/completions"):
        choices = [
            {"index": index, "message": {"role": "assistant", "content": "by chat"},
             "finish_reason": "stop"}
            for index in range(body.get("n") or 1)
        ]  # fmt: skip
        return {"id": "c1", "object": "chat.completion", "choices": choices, "usage": usage}
    part = {"type": "output_text", "text": "by responses", "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
               "content": [part]}  # fmt: skip
    return {"id": f"resp_{body.get('previous_response_id', 1)}", "object": "response",
            "status": "completed", "output": [message], "usage": usage}  # fmt: skip


def free_port() -> int:
    """Return a port that nothing listens on."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@asynccontextmanager
async def speaking(*has: str, missing: Missing = html) -> AsyncIterator[SpeakingServer]:
    """Run a server that has some paths, for the length of a block."""
    server = SpeakingServer(free_port(), has, missing)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
