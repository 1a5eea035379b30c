"""Clients of the gateways: keyed turns with idempotency keys, each repeated until answered."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

CLIENTS = 24
TURNS_OF_A_SESSION = 30
PAUSES = (0.1, 0.5)
REPEAT_SECONDS = 0.5
GIVE_UP_SECONDS = 120.0
"""Far longer than any answer may take: the campaign measures how long it took."""
MODEL = "gpt-4.1"
ANSWERED = "200"


@dataclass(slots=True, kw_only=True)
class Turn:
    """A turn that was sent, and its answer once there is one."""

    key: str
    text: str
    is_streamed: bool
    turn_id: str = ""
    answer: str = ""

    @property
    def is_answered(self) -> bool:
        """Whether the gateway has acknowledged it."""
        return self.turn_id != ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One request, as its client saw it."""

    text: str
    """Which turn it was for."""
    gateway: int
    began: float
    ended: float
    outcome: str
    """`200`, or a status and the code of its error, or how a stream or connection ended."""
    silent_seconds: float
    """The longest time without a byte from the gateway."""


@dataclass(slots=True)
class Record:
    """Everything that the clients have seen."""

    turns: list[Turn] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    answered: int = 0
    """How many turns are acknowledged."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def add(self, attempt: Attempt) -> None:
        """Keep what an attempt came to."""
        self.attempts.append(attempt)
        self.answered += attempt.outcome == ANSWERED
        async with self._changed:
            self._changed.notify_all()

    async def first_answer(self, gateway: int, *, after: float) -> float:
        """Wait until a gateway has answered a turn; return when."""
        looked_at = 0
        while True:
            new, looked_at = self.attempts[looked_at:], len(self.attempts)
            for attempt in new:
                is_answer = attempt.outcome == ANSWERED and attempt.gateway == gateway
                if is_answer and attempt.ended > after:
                    return attempt.ended
            async with self._changed:
                await self._changed.wait()

    async def wait_for_more(self, count: int) -> None:
        """Wait until so many more turns are acknowledged."""
        wanted = self.answered + count
        async with self._changed:
            await self._changed.wait_for(lambda: self.answered >= wanted)


class _Failed(Exception):
    """An attempt without an answer."""


class Client:
    """One client: its turns are one after another, in one session after another.

    Every second client stays at one gateway; the others change it with each request, repeats
    included.
    """

    def __init__(self, number: int, urls: list[str], record: Record, http: httpx.AsyncClient):
        self._number = number
        self._urls = urls
        self._record = record
        self._http = http
        self._random = random.Random(number)
        self._sent = 0
        self._silent = 0.0
        self._heard = 0.0

    async def talk(self, is_over: asyncio.Event) -> None:
        """Send turns until it is over, each until it is answered."""
        for number in itertools.count():
            if is_over.is_set():
                return
            turn = Turn(
                key=f"client-{self._number}-{number // TURNS_OF_A_SESSION}",
                text=f"c{self._number}t{number}",
                is_streamed=self._random.random() < 0.25,
            )
            self._record.turns.append(turn)
            await self._repeat(turn)
            await asyncio.sleep(self._random.uniform(*PAUSES))

    async def _repeat(self, turn: Turn) -> None:
        """Send the turn until it is answered."""
        is_answered = await self._try(turn)
        while not is_answered:
            await asyncio.sleep(REPEAT_SECONDS)
            is_answered = await self._try(turn)

    async def _try(self, turn: Turn) -> bool:
        """Send the turn once; return whether it was answered."""
        self._sent += 1
        changes = self._number // 2 % 2
        gateway = (self._number + self._sent * changes) % len(self._urls)
        began = time.monotonic()
        self._silent, self._heard = 0.0, began
        try:
            turn_id, answer = await self._send(self._urls[gateway], turn)
            turn.turn_id, turn.answer = turn_id, answer
            outcome = ANSWERED
        except _Failed as exc:
            outcome = str(exc)
        except httpx.HTTPError as exc:
            outcome = type(exc).__name__
        self._note_byte()
        await self._record.add(
            Attempt(
                text=turn.text,
                gateway=gateway,
                began=began,
                ended=time.monotonic(),
                outcome=outcome,
                silent_seconds=self._silent,
            )
        )
        return turn.is_answered

    async def _send(self, url: str, turn: Turn) -> tuple[str, str]:
        """Return the id of the turn and the text of the answer."""
        body = {"model": MODEL, "input": turn.text, "stream": turn.is_streamed}
        headers = {"X-Session-Key": turn.key, "Idempotency-Key": turn.text}
        async with self._http.stream(
            "POST", f"{url}/v1/responses", json=body, headers=headers
        ) as reply:
            self._note_byte()
            lines = [line async for line in self._lines(reply)]
        if reply.status_code != 200:
            raise _Failed(f"{reply.status_code} {_code(lines)}")
        response = _last_of(lines) if turn.is_streamed else json.loads("\n".join(lines))
        return reply.headers["x-turn-id"], _text(response)

    async def _lines(self, reply: httpx.Response) -> AsyncIterator[str]:
        async for line in reply.aiter_lines():
            self._note_byte()
            yield line

    def _note_byte(self) -> None:
        now = time.monotonic()
        self._silent = max(self._silent, now - self._heard)
        self._heard = now


def _code(lines: list[str]) -> str:
    """Return the code of an error's body."""
    try:
        return str(json.loads("\n".join(lines))["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "without a code"


def _last_of(lines: list[str]) -> dict[str, Any]:
    """Return the response that a stream completed."""
    events = [
        json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")
    ]
    if not events:
        raise _Failed("stream without an event")
    last: dict[str, Any] = events[-1]
    if last["type"] == "response.completed":
        response: dict[str, Any] = last["response"]
        return response
    error = last.get("error") or last.get("response", {}).get("error") or last
    raise _Failed(f"stream ended by {last['type']} {error.get('code')}")


def _text(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


@asynccontextmanager
async def talking(urls: list[str]) -> AsyncIterator[Record]:
    """Let all clients talk for the length of a block; at its end every turn is answered."""
    record, is_over = Record(), asyncio.Event()
    limits = httpx.Limits(max_connections=2 * CLIENTS, max_keepalive_connections=2 * CLIENTS)
    async with httpx.AsyncClient(timeout=GIVE_UP_SECONDS, limits=limits) as http:
        clients = [
            asyncio.create_task(Client(number, urls, record, http).talk(is_over))
            for number in range(CLIENTS)
        ]
        try:
            yield record
            is_over.set()
            await asyncio.wait_for(asyncio.gather(*clients), GIVE_UP_SECONDS)
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
