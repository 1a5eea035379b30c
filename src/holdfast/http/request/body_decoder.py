"""Decode the bodies of turns without stalling the event loop."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from holdfast.core import errors as core_errors
from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.lru import SizedLru
from holdfast.core.model.items import NewItem
from holdfast.engine.logging import log
from holdfast.http.request.body import Fields, check_content_type, check_readable, parse_fields
from holdfast.http.request.decode_worker import KINDS, REPLY, REQUEST, DecodeError
from holdfast.http.request.decoding import (
    BodyKind,
    DecodedBody,
    DecodedEntry,
    decode_entry,
    join_entries,
    pop_entries,
    pop_text,
)
from holdfast.http.server.errors import TooManyItems
from holdfast.http.server.memory_budget import ServerBusy
from holdfast.http.server.types import Request

WORKER_BYTES = 4 * 1024 * 1024
"""Bodies above this size are decoded in the worker process."""
WORKER_OBJECTS = 5_000
"""Smaller bodies with more opening brackets than this are decoded there too."""
SMALL_BYTES = 64 * 1024
STEP_BYTES = 256 * 1024
"""Item bytes that are decoded before other tasks may run."""
ITEM_BYTES = 512
"""The least that an item counts towards a step."""
KNOWN_ITEM_BYTES = 32
"""What an item counts that was decoded before."""
CACHED_BYTES = 8 * 1024 * 1024
"""About how much memory the decoded entries of each API take; 0 keeps none.

Clients that send their whole history each time send the same entries again. With 20 earlier turns
this saves 90 of 605 µs of CPU per Chat request, and 220 of 776 µs per list of Responses items.
"""
CACHED_BODY_BYTES = 1024 * 1024
"""A larger body neither uses nor fills the cache: it would leave no room for others."""
CACHED_ENTRY_BYTES = 8 * 1024
"""The longest entry that is kept."""
CACHE_OVERHEAD = 384
"""About how much memory an entry or an item takes beside its text."""
DECODE_SECONDS = 60.0
IDLE_SECONDS = 60.0


class TurnBody(msgspec.Struct):
    """The body of a turn: its fields without the items, and the items."""

    fields: Fields
    items: list[NewItem]
    instructions: str | None = None
    has_items: bool = True


class BodyDecoder:
    """Decode bodies inline in bounded steps, or in a worker process if they are large."""

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._worker = DecodeWorker()
        self._known: dict[BodyKind, SizedLru[bytes, DecodedEntry]] = {
            kind: SizedLru(CACHED_BYTES) for kind in ("responses", "chat")
        }
        """What entries were decoded to, by their JSON."""

    async def responses(self, request: Request) -> tuple[Fields, list[NewItem]]:
        """Return the fields and input items of a Responses request."""
        check_content_type(request)
        body = await self._decode("responses", await request.body(), self._max_items)
        return body.fields, body.items

    async def frame(self, content: bytes) -> tuple[Fields, list[NewItem]]:
        """Return the fields and input items of a Responses request in a WebSocket frame."""
        body = await self._decode("responses", content, self._max_items)
        return body.fields, body.items

    async def items(self, request: Request, limit: int) -> tuple[Fields, list[NewItem]]:
        """Return the fields and `items` of a request that appends items."""
        check_content_type(request)
        body = await self._decode("items", await request.body(), limit)
        return body.fields, body.items

    async def chat(self, request: Request) -> tuple[Fields, str | None, list[NewItem]]:
        """Return the fields, instructions and items of a Chat request."""
        check_content_type(request)
        body = await self._decode("chat", await request.body(), self._max_items)
        if not body.has_items:
            raise InvalidInput("messages: at least one message is needed")
        return body.fields, body.instructions, body.items

    async def close(self) -> None:
        """Stop the worker process."""
        await self._worker.stop()

    async def _decode(self, kind: BodyKind, body: bytes, limit: int) -> TurnBody:
        if len(body) > SMALL_BYTES and _is_large(body):
            turn_body = _turn_body(await self._worker.decode(kind, body, limit))
            await asyncio.sleep(0)
            return turn_body
        fields = parse_fields(body)
        text = pop_text(kind, fields)
        if text is not None:
            check_readable(fields)
            return TurnBody(fields, list(text.items), text.instructions)
        entries = pop_entries(kind, fields, limit)
        check_readable(fields)
        cache = self._known.get(kind) if len(body) <= CACHED_BODY_BYTES else None
        decoded = await self._decode_entries(kind, entries, cache)
        instructions, items = join_entries(kind, decoded)
        return TurnBody(fields, items, instructions, bool(entries))

    async def _decode_entries(
        self,
        kind: BodyKind,
        entries: Sequence[msgspec.Raw],
        cache: SizedLru[bytes, DecodedEntry] | None,
    ) -> list[DecodedEntry]:
        """Decode entries that are not known; let other tasks run after every `STEP_BYTES`."""
        size = 0
        decoded: list[DecodedEntry] = []
        for index, entry in enumerate(entries):
            raw = bytes(entry)
            found = cache.get(raw) if cache is not None else None
            if found is not None:
                size += KNOWN_ITEM_BYTES
            else:
                found = decode_entry(kind, raw, index)
                size += max(len(raw), ITEM_BYTES)
                if cache is not None and len(raw) <= CACHED_ENTRY_BYTES:
                    cache.put(raw, found, _size(raw, found))
            decoded.append(found)
            if size > STEP_BYTES:
                size = 0
                await asyncio.sleep(0)
        return decoded


def _size(raw: bytes, entry: DecodedEntry) -> int:
    """Return about how much memory a known entry takes."""
    texts = [entry.instructions]
    size = len(raw) + CACHE_OVERHEAD
    for item in entry.items:
        size += len(item.body) + CACHE_OVERHEAD
        texts += (item.kind, item.item_id, item.call_id)
    # A text with one character outside of the basic plane takes four bytes for each.
    return size + sum(len(text) * (1 if text.isascii() else 4) for text in texts if text)


def _turn_body(decoded: DecodedBody) -> TurnBody:
    fields = {name: msgspec.Raw(raw) for name, raw in decoded.fields.items()}
    return TurnBody(fields, decoded.items, decoded.instructions, decoded.has_items)


def _is_large(body: bytes) -> bool:
    return len(body) > WORKER_BYTES or body.count(b"{") + body.count(b"[") > WORKER_OBJECTS


class DecodeWorker:
    """A process that decodes one body at a time; started on demand, stopped when idle."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Future[None]] = set()

    async def decode(self, kind: BodyKind, body: bytes, max_items: int) -> DecodedBody:
        """Decode a body in the worker process."""
        async with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            is_done = False
            try:
                async with asyncio.timeout(DECODE_SECONDS):
                    is_error, payload = await self._exchange(kind, body, max_items)
                is_done = True
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as exc:
                log.error("request.decoder_failed", reason=type(exc).__name__)
                raise ServerBusy("the request body could not be decoded in time") from exc
            finally:
                if is_done:
                    loop = asyncio.get_running_loop()
                    self._idle = loop.call_later(IDLE_SECONDS, self._kill)
                else:
                    # A partial exchange is left in the pipe: the next body needs a new process.
                    self._kill()
        # Let other tasks run: copying 30 MB from the pipe and decoding them are separate steps.
        await asyncio.sleep(0)
        if is_error:
            raise _error(msgspec.msgpack.decode(payload, type=DecodeError))
        return msgspec.msgpack.decode(payload, type=DecodedBody)

    async def _exchange(self, kind: BodyKind, body: bytes, max_items: int) -> tuple[bool, bytes]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await _start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(REQUEST.pack(KINDS.index(kind), max_items, len(body)))
        view = memoryview(body)
        for start in range(0, len(body), STEP_BYTES):
            # In steps: the transport copies what the pipe does not accept at once.
            process.stdin.write(view[start : start + STEP_BYTES])
            await process.stdin.drain()
        is_error, size = REPLY.unpack(await process.stdout.readexactly(REPLY.size))
        return bool(is_error), await process.stdout.readexactly(size)

    def _kill(self) -> None:
        """Kill the process; the next body gets a new one, even before this one has ended."""
        process, self._process = self._process, None
        if process is not None:
            task = asyncio.ensure_future(_end(process))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def stop(self) -> None:
        """End the process and wait for it."""
        if self._idle is not None:
            self._idle.cancel()
        self._kill()
        await asyncio.gather(*self._ending)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.communicate()


async def _start() -> asyncio.subprocess.Process:
    # A session of its own: a Ctrl-C in the terminal must only reach the server. No environment: the
    # worker needs none, and the server's may contain keys.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "holdfast.http.request.decode_worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        start_new_session=True,
    )


def _error(error: DecodeError) -> HoldfastError:
    if error.kind == TooManyItems.__name__:
        return TooManyItems(error.message)
    kind = getattr(core_errors, error.kind, InvalidInput)
    return kind(error.message, param=error.param)
