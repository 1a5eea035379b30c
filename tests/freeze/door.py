"""Hold conversations with a real gateway, and tell every answer and every byte sent upstream.

A conversation is data: steps that send a request, or wait for something, and what the upstream
answers meanwhile. Most are combinations: `conversations/shapes.json` has the shapes of requests
and answers, which are crossed with client APIs, upstream APIs, streams, and keys. The others are
written out, in the files beside it.
"""

import asyncio
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from tests.freeze.door_adapter import Platform, open_door
from tests.freeze.python_api import see_stories
from tests.freeze.upstream import ScriptedUpstream, script_of
from tests.freeze.values import Data

CONVERSATIONS = Path(__file__).parent / "conversations"
CONFIGS = CONVERSATIONS / "configs.json"
SHAPES = "shapes"
PYTHON = "python_api"
SECONDS = 60.0
MCP_SERVER = Path(__file__).parents[1] / "tools" / "odd_mcp_server.py"
Step = Mapping[str, Data]
_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{24,44}(?![0-9a-f])")
_TIME = re.compile(
    r'(\\?"[a-z_]*(?:created|_at|_until|duration_ms|latency_ms)\\?"): ?'
    r"[0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?"
)
_CODE = re.compile(r'(code\\?": ?\\?")([2-9A-Z]{4})(?=\\?")')
"""The code by which an approval request is answered in a chat."""
_CALL = re.compile(r'(\\?"(?:tool_call_id|call_id|id)\\?": ?\\?")([0-9a-z]{9})(?=\\?")')
"""The id of a call as some upstreams want it: nine characters, made from the call's own id."""
_DATE = re.compile(r"20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-9:]{8}(?:\.[0-9]+)?(?:Z|\+00:00)")
_encode = msgspec.json.Encoder().encode


# ── conversations ───────────────────────────────────────────────────────────────────────────


class Conversation(msgspec.Struct, frozen=True):
    """A named list of steps, and the configuration of the gateway."""

    name: str
    config: str
    steps: list[dict[str, Data]]


def parts() -> list[str]:
    """Return the parts of the gate: files of conversations, and the combinations by client API."""
    files = [path.stem for path in CONVERSATIONS.glob("*.json")]
    written = [name for name in files if name not in (SHAPES, CONFIGS.stem)]
    crossed = itertools.product(CLIENTS, UPSTREAMS)
    return sorted([*written, PYTHON, *(f"{SHAPES}_{one}_over_{other}" for one, other in crossed)])


def read_part(name: str) -> list[Conversation]:
    """Return the conversations of a part."""
    if name.startswith(f"{SHAPES}_"):
        client, _, upstream = name.removeprefix(f"{SHAPES}_").partition("_over_")
        return list(_combinations(client, upstream))
    text = (CONVERSATIONS / f"{name}.json").read_bytes()
    return msgspec.json.decode(text, type=list[Conversation])


CLIENTS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
UPSTREAMS = ("chat", "responses")


def _combinations(client: str, upstream: str) -> Iterator[Conversation]:
    """Yield each shape, whole and streamed, with a key and without one."""
    shapes = json.loads((CONVERSATIONS / f"{SHAPES}.json").read_bytes())
    ways = itertools.product((False, True), (True, False))
    for (is_stream, has_key), shape in itertools.product(ways, shapes):
        if client not in shape or (not has_key and shape.get("is_keyed")):
            continue
        words = [shape["name"], f"over {upstream}"]
        words += ["streamed"] * is_stream + ["without a key"] * (not has_key)
        steps = [_turn(client, turn, is_stream, has_key) for turn in shape[client]]
        yield Conversation(", ".join(words), upstream, steps)


def _turn(client: str, turn: Step, is_stream: bool, has_key: bool) -> dict[str, Data]:
    body = {"model": "m-1", **turn["body"], **({"stream": True} if is_stream else {})}
    headers = {**({"X-Session-Key": "k"} if has_key else {}), **turn.get("headers", {})}
    step = {"post": CLIENTS[client], "headers": headers, "body": body}
    return {**step, "upstream": turn.get("upstream"), "keep": turn.get("keep", {})}


# ── playing ─────────────────────────────────────────────────────────────────────────────────


async def see_part(name: str) -> list[str]:
    """Return what is to be seen of the conversations of a part."""
    if name == PYTHON:
        return await see_stories(Masks().masked)
    configs = json.loads(CONFIGS.read_bytes())
    seen: list[str] = []
    for conversation in read_part(name):
        with tempfile.TemporaryDirectory() as folder:
            player = _Player(conversation, Path(folder), "\n".join(configs[conversation.config]))
            try:
                async with asyncio.timeout(SECONDS):
                    seen += await player.play()
            except TimeoutError:
                raise AssertionError(f"{conversation.name}: {player.step} hangs") from None
    return seen


class _Player:
    """One conversation with one gateway."""

    def __init__(self, conversation: Conversation, folder: Path, config: str) -> None:
        self._conversation = conversation
        self._folder = folder
        self._config = config
        self._upstream = ScriptedUpstream()
        self._masks = Masks()
        self._lines = [_line({"conversation": conversation.name})]
        self._kept: dict[str, str] = {}
        self._open: dict[str, Request] = {}
        self._sockets: dict[str, ClientConnection] = {}
        self._port = 0
        self._platform: Platform | None = None
        self.step: Step = {}

    async def play(self) -> list[str]:
        """Return what was to be seen."""
        await self._upstream.start()
        with Platform(is_used="{telegram}" in self._config) as platform:
            self._platform = platform
            config = self._folder / "holdfast.toml"
            values = {
                "{upstream}": self._upstream.url, "{telegram}": platform.url,
                "{mcp_server}": str(MCP_SERVER), "{python}": sys.executable,
                "{folder}": str(self._folder),
            }  # fmt: skip
            config.write_text(_filled(self._config, values))
            async with open_door(config) as port:
                self._port = port
                for step in self._conversation.steps:
                    self.step = step
                    await self._play(_filled(step, {f"{{{k}}}": v for k, v in self._kept.items()}))
                for socket in self._sockets.values():
                    await socket.close()
            self._tell_upstream()
        await self._upstream.stop()
        return self._lines

    async def _play(self, step: Step) -> None:
        if step.get("upstream") is not None:
            self._upstream.script = script_of(step["upstream"])
        method = next((each for each in ("post", "get", "delete") if each in step), None)
        if method is not None:
            await self._send(step, method)
        elif "finish" in step:
            self._tell(f"finished {step['finish']}", await self._open.pop(step["finish"]).read())
        elif "watch" in step:
            request = Request(self._port, f"GET {step['watch']}", step.get("headers", {}), b"")
            await request.send()
            self._tell(f"watch {step['watch']}", await request.watch(step["upto"]))
        elif "leave" in step:
            await self._open.pop(step["leave"]).leave(step["after"])
        elif "socket" in step:
            await self._talk(step)
        elif "say" in step:
            assert self._platform is not None
            told = await asyncio.to_thread(self._platform.say, step["say"], step["hear"])
            self._lines.append(self._masks.masked(_line({f"said {step['say']}": told})))
        else:
            await self._wait(step)

    async def _wait(self, step: Step) -> None:
        """Wait for something, or let the upstream answer that was held."""
        if "until requests" in step:
            await self._upstream.until_requests(step["until requests"])
        elif "until left" in step:
            await self._upstream.until_left(step["until left"])
        elif "until" in step:
            await self._until(step["until"], step["has"])
        else:
            assert "release" in step, f"unknown step: {step}"
            self._upstream.release()

    async def _send(self, step: Step, method: str) -> None:
        body = b"" if "body" not in step else _body(step["body"])
        headers = {"content-type": "application/json"} if body else {}
        headers |= step.get("headers", {})
        request = Request(self._port, f"{method.upper()} {step[method]}", headers, body)
        await request.send()
        if "open" in step:
            self._open[step["open"]] = request
            return
        answer = await request.read()
        for name, place in step.get("keep", {}).items():
            self._kept[name] = answer.find(place)
        self._tell(f"{method} {step[method]}", answer)

    async def _until(self, path: str, text: str) -> None:
        """Ask until an answer has a text; what came before is not told."""
        while True:
            request = Request(self._port, f"GET {path}", {}, b"")
            await request.send()
            if text.encode() in (await request.read()).body:
                return
            await asyncio.sleep(0.005)

    async def _talk(self, step: Step) -> None:
        """Send a frame over a WebSocket, and tell the frames up to the one that ends the answer."""
        name = step["socket"]
        if name not in self._sockets:
            url = f"ws://127.0.0.1:{self._port}/v1/responses"
            headers = step.get("headers", {})
            self._sockets[name] = await connect(url, additional_headers=headers, proxy=None)
        socket = self._sockets[name]
        await socket.send(json.dumps(step["frame"]))
        frames: list[Data] = []
        while not frames or frames[-1].get("type") not in step["ends"]:
            frames.append(json.loads(await socket.recv()))
        for frame in frames:
            self._lines.append(self._masks.masked(_line({f"frame of {name}": frame})))

    # ── telling ─────────────────────────────────────────────────────────────────────────────

    def _tell(self, what: str, answer: "Answer") -> None:
        told = {"status": answer.status, "headers": answer.headers, "body": answer.told_body()}
        self._lines.append(self._masks.masked(_line({what: told})))

    def _tell_upstream(self) -> None:
        """Tell every request that the upstream got, in the order in which they came."""
        for head, body in self._upstream.requests:
            told = {"head": head.decode().strip().split("\r\n"), "body": told_bytes(body)}
            self._lines.append(self._masks.masked(_line({"upstream": told})))


def _filled(value: Data, values: Mapping[str, str]) -> Data:
    """Return a value with placeholders replaced in each text."""
    if isinstance(value, str):
        for name, each in values.items():
            value = value.replace(name, each)
        return value
    if isinstance(value, dict):
        return {name: _filled(each, values) for name, each in value.items()}
    return [_filled(each, values) for each in value] if isinstance(value, list) else value


def _body(value: Data) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _line(value: Data) -> str:
    return _encode(value).decode()


def _starred(found: re.Match[str]) -> str:
    """Return a field without its time; within a text it stays a part of that text."""
    return f"{found[1]}:*" if found[1].startswith("\\") else f'{found[1]}:"*"'


class Masks:
    """Replaces what is made at random or by a clock: ids by their number, times by an asterisk."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def masked(self, text: str) -> str:
        """Return a line with ids, times and ports masked."""
        text = _TIME.sub(_starred, text)
        text = _CODE.sub(r"\1*", text)
        text = _DATE.sub("*", text)
        text = re.sub(r"127\.0\.0\.1:[0-9]+", "127.0.0.1:*", text)
        text = re.sub(r'"date: [^"]*"', '"date: *"', text, flags=re.IGNORECASE)
        text = _CALL.sub(lambda found: found[1] + self._number(found[2]), text)
        return _ID.sub(lambda found: self._number(found[0]), text)

    def _number(self, made: str) -> str:
        return f"#{self._numbers.setdefault(made, len(self._numbers) + 1)}"


def told_bytes(body: bytes) -> Data:
    """Return bytes as data: as JSON if that is exactly what they are, else as text."""
    try:
        value = json.loads(body)
    except ValueError:
        return {"text": body.decode("utf-8", "backslashreplace")}
    for form, separators in (("json", (",", ":")), ("spaced json", (", ", ": "))):
        if json.dumps(value, separators=separators, ensure_ascii=False).encode() == body:
            return {form: value}
    return {"text": body.decode()}


# ── requests ────────────────────────────────────────────────────────────────────────────────


class Answer:
    """An answer as it was received; the chunks of a stream are joined."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.status, *fields = head.decode().strip().split("\r\n")
        self.body = body
        exact = f"content-length: {len(body)}"
        self.headers = ["content-length: exact" if each == exact else each for each in fields]

    def find(self, place: str) -> str:
        """Return a header, the value at a path in the JSON body, or the nth match (`~n:regex`)."""
        if place.startswith("~"):
            number, _, pattern = place[1:].partition(":")
            found: list[str] = re.findall(pattern, self.body.decode())
            return list(dict.fromkeys(found))[int(number)]
        for each in self.headers:
            if each.startswith(f"{place}: "):
                return each.removeprefix(f"{place}: ")
        value: Any = json.loads(self.body)
        for key in place.split("."):
            value = value[int(key)] if key.isdigit() else value[key]
        return str(value)

    def told_body(self) -> Data:
        """Return the body as data; of a stream its events."""
        if not any(each.startswith("content-type: text/event-stream") for each in self.headers):
            return told_bytes(self.body)
        return [_event(each) for each in self.body.decode().split("\n\n")]


def _event(text: str) -> Data:
    """Return an event as data from which its text can be told exactly."""
    name, separator, data = text.rpartition("data: ")
    if not separator or name not in ("", f"{name.strip()}\n"):
        return text
    told = told_bytes(data.encode())
    return text if "text" in told or "spaced json" in told else [name.strip(), told["json"]]


class Request:
    """A request on a connection of its own."""

    def __init__(self, port: int, line: str, headers: Mapping[str, str], body: bytes) -> None:
        fields = {"host": "localhost", **headers, "content-length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._bytes = f"{line} HTTP/1.1\r\n{lines}\r\n".encode() + body
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def send(self) -> None:
        """Connect and send it."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(self._bytes)
        await self._writer.drain()

    async def read(self) -> Answer:
        """Return the whole answer."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            body = await self._read_chunks()
        else:
            length = re.search(rb"content-length: ([0-9]+)", lower)
            body = await self._reader.readexactly(int(length[1]) if length else 0)
        self._writer.close()
        return Answer(head, body)

    async def _read_chunks(self) -> bytes:
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readline()
        return body

    async def watch(self, upto: str) -> Answer:
        """Return the events of a stream without an end, up to the one that has a text."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        body = b""
        while upto.encode() not in body:
            size = int(await self._reader.readline(), 16)
            body += await self._reader.readexactly(size)
            await self._reader.readline()
        self._writer.close()
        end = body.index(b"\n\n", body.index(upto.encode()))
        return Answer(head, body[:end])

    async def leave(self, after: str) -> None:
        """Read until a text has come, and close the connection."""
        seen = b""
        while after.encode() not in seen:
            seen += await self._reader.read(65536)
        self._writer.close()
        await self._writer.wait_closed()
