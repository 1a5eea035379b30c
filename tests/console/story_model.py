"""A Responses server with canned answers, which loses state, breaks off or waits on request."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
WAIT_SECONDS = 110.0
"""Just below a test's time limit: a stream that continues by itself would hide a slow test."""


class StoryModel:
    """The behaviour of the server; tests change it while it runs."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        """Answers by the text of the last message; others are echoed."""
        self.failures: dict[str, str] = {}
        """Errors by the text of the last message."""
        self.requests: list[Json] = []
        self.known: dict[str, int] = {}
        """Responses that the server stores, and the tokens of their histories."""
        self.gate = threading.Event()
        """While it is cleared, a stream pauses after its first words."""
        self.gate.set()
        self.has_begun = threading.Event()
        """Set when a stream has sent its first words."""
        self.url = ""

    def forget(self) -> None:
        """Delete every stored response."""
        self.known.clear()

    def answer(self, body: Json) -> str:
        """Return the answer to a request."""
        asked = _last_text(body)
        return self.answers.get(asked, f"You said: {asked}")


def _last_text(body: Json) -> str:
    given = body.get("input")
    items = given if isinstance(given, list) else [{"role": "user", "content": given}]
    for item in reversed(items):
        if item.get("role") == "user":
            content = item.get("content")
            if isinstance(content, str):
                return content
            return " ".join(part.get("text", "") for part in content).strip()
    return ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: StoryModel

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def do_GET(self) -> None:
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": "story"}
            for name in ("gpt-4.1", "gpt-4.1-mini")
        ]
        self._reply(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.model.requests.append(body)
        parent = body.get("previous_response_id")
        if parent is not None and parent not in self.model.known:
            message = f"Previous response with id '{parent}' not found."
            error = {
                "message": message, "type": "invalid_request_error",
                "param": "previous_response_id", "code": "previous_response_not_found",
            }  # fmt: skip
            self._reply(400, {"error": error})
            return
        if failure := self.model.failures.get(_last_text(body)):
            error = {"message": failure, "type": "invalid_request_error", "code": "bad_poem"}
            self._reply(400, {"error": error})
            return
        name = f"resp_{uuid.uuid4().hex}"
        before = self.model.known.get(parent, 0) if parent is not None else 0
        response = _response(name, body, self.model.answer(body), before)
        self.model.known[name] = response["usage"]["total_tokens"]
        if body.get("stream"):
            self._stream(response)
        else:
            self._reply(200, response)

    def _reply(self, status: int, value: Json) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, response: Json) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in _events(response, self.model):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()


def _response(name: str, body: Json, text: str, before: int) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {
        "id": f"msg_{name[5:]}", "type": "message", "role": "assistant", "status": "completed",
        "content": [part],
    }  # fmt: skip
    sent = before + len(json.dumps(body.get("input", ""))) // 4
    usage = {"input_tokens": sent, "output_tokens": len(text) // 4 + 1}
    details = {"input_tokens_details": {"cached_tokens": sent // 2}}
    more = {"output_tokens_details": {"reasoning_tokens": 0}}
    total = {"total_tokens": sum(usage.values())}
    return {
        "id": name, "object": "response", "created_at": int(time.time()), "status": "completed",
        "model": body["model"], "output": [item], "usage": {**usage, **details, **more, **total},
    }  # fmt: skip


def _events(response: Json, model: StoryModel) -> Iterator[Json]:
    item = response["output"][0]
    text = item["content"][0]["text"]
    position = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {
            "type": "response.content_part.added",
            **position,
            "part": {**item["content"][0], "text": ""},
        },
    ]
    words = text.split(" ")
    deltas = [word + " " for word in words[:-1]] + words[-1:]
    events += [{"type": "response.output_text.delta", **position, "delta": one} for one in deltas]
    events += [
        {"type": "response.output_text.done", **position, "text": text},
        {"type": "response.content_part.done", **position, "part": item["content"][0]},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    for number, event in enumerate(events):
        if number == 5:
            model.has_begun.set()
            model.gate.wait(WAIT_SECONDS)
        yield {**event, "sequence_number": number}


@contextmanager
def running_model() -> Iterator[StoryModel]:
    """Serve a model for the length of a block."""
    model = StoryModel()
    handler = type("Handler", (_Handler,), {"model": model})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    model.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield model
    finally:
        model.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
