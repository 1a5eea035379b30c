"""A typed client of the simulator's control API, for tests in this process or another.

Every call blocks. In a coroutine use the methods that end in `_async`, so that what the test
itself runs in the event loop can reach the simulator meanwhile.
"""

import asyncio
import http.client
import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

_MARGIN_SECONDS = 10.0


class SimulatorError(Exception):
    """The simulator did not accept an order, or what was awaited did not come."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A request as the simulator received it, and how it was answered."""

    number: int
    api: str
    operation: str
    method: str
    path: str
    query: dict[str, str]
    account: str
    model: str
    headers: dict[str, str]
    body: Any
    """An object, or the text of a body that is no JSON object."""
    faults: list[str]
    """The kinds of the faults that fell on it."""
    status: int | None
    """None while no answer has begun, and for ever when the connection was dropped."""
    answer_id: str | None
    fault: str | None
    """The listed fault (`R02`, …) that it was answered with."""
    events_sent: int | None


class SimulatorControl:
    """Orders to a running simulator at `url` (without /v1)."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.hostname is None or parts.port is None:
            raise ValueError(f"expected http://host:port, got {url!r}")
        self._address = (parts.hostname, parts.port)
        self._door: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection that was kept for opening the door again."""
        if self._door is not None:
            self._door.close()
            self._door = None

    def add_fault(
        self,
        kind: str,
        *,
        when: dict[str, Any] | None = None,
        times: int | None = None,
        **parameters: Any,
    ) -> str:
        """Put a fault in force and return the id of its rule."""
        fault = {"kind": kind, "when": when or {}, "times": times, **parameters}
        return str(self._ask("POST", "/faults", fault)["id"])

    def remove_fault(self, rule_id: str) -> None:
        """Take one fault away."""
        self._ask("DELETE", f"/faults/{quote(rule_id)}")

    def clear_faults(self) -> None:
        """Take all faults away, those of the scenario too."""
        self._ask("DELETE", "/faults")

    def add_answer(
        self,
        text: str | None = None,
        *,
        when: dict[str, Any] | None = None,
        times: int | None = None,
        **parameters: Any,
    ) -> None:
        """Script an answer: `text`, `words`, `tool_calls`, `reasoning`, `refusal`, …"""
        answer = {"text": text, "when": when or {}, "times": times, **parameters}
        self._ask("POST", "/answers", answer)

    def hold(
        self,
        *,
        when: dict[str, Any] | None = None,
        at: str = "running",
        event: int = 1,
        times: int | None = None,
    ) -> "BarrierControl":
        """Hold the calls that match from now on; leaving its `with` block lets all go."""
        spec = {"when": when or {}, "at": at, "event": event, "times": times}
        return BarrierControl(self, str(self._ask("POST", "/barriers", spec)["id"]))

    def release_all(self) -> None:
        """Take all barriers away and let every hanging call go on."""
        self._ask("POST", "/release", {})

    def forget(self, id: str | None = None, *, account: str | None = None) -> int:  # noqa: A002
        """Make the provider forget one id, one account's state, or everything, now."""
        return int(self._ask("POST", "/forget", {"id": id, "account": account})["forgotten"])

    def advance_clock(self, seconds: int) -> None:
        """Let time pass for the simulator."""
        self._ask("POST", "/clock", {"advance_seconds": seconds})

    def reset(self) -> None:
        """Begin anew with the scenario the simulator was started with."""
        self._ask("POST", "/reset", {})

    def requests(self, *, after: int = 0, **match: str) -> list[RecordedRequest]:
        """Return the recorded requests that match (`api=`, `model=`, `text=`, …), oldest first."""
        query = urlencode({"after": after, **match})
        answer = self._ask("GET", f"/record?{query}")
        return [RecordedRequest(**entry) for entry in answer["requests"]]

    def record_jsonl(self) -> str:
        """Return the whole record, one JSON object per line."""
        return self._exchange("GET", "/record.jsonl", None)[1].decode()

    def clear_record(self) -> None:
        """Empty the record; the numbers go on."""
        self._ask("DELETE", "/record")

    def state(self) -> dict[str, Any]:
        """Return what the simulator holds: accounts, faults, barriers."""
        return self._ask("GET", "")

    def refuse_connections(self, count: int) -> None:
        """Reset the next `count` connections; idle ones are closed now."""
        self._ask("POST", "/connections", {"connections": count}, through_door=True)

    def shut(self, seconds: float | None = None) -> None:
        """Stop listening, so that connecting is refused, for `seconds` or until `open`."""
        self._ask("POST", "/listening", {"open": False, "seconds": seconds}, through_door=True)

    def open(self) -> None:
        """Listen again after `shut`."""
        self._ask("POST", "/listening", {"open": True}, through_door=True)

    def _ask(
        self, method: str, path: str, body: Any = None, *, through_door: bool = False, **more: float
    ) -> dict[str, Any]:
        status, raw = self._exchange(method, path, body, through_door=through_door, **more)
        answer: dict[str, Any] = json.loads(raw)
        if status >= 400:
            raise SimulatorError(status, str(answer.get("error")))
        return answer

    def _exchange(
        self,
        method: str,
        path: str,
        body: Any,
        *,
        through_door: bool = False,
        wait_seconds: float = 0.0,
    ) -> tuple[int, bytes]:
        connection = self._connection(through_door, wait_seconds + _MARGIN_SECONDS)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, f"/_sim{path}", payload)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            if not through_door:
                connection.close()

    def _connection(self, through_door: bool, seconds: float) -> http.client.HTTPConnection:
        if not through_door:
            return http.client.HTTPConnection(*self._address, timeout=seconds)
        if self._door is None:
            self._door = http.client.HTTPConnection(*self._address, timeout=_MARGIN_SECONDS)
        return self._door


class BarrierControl:
    """One barrier: see what it holds, wait for more, let go."""

    def __init__(self, control: SimulatorControl, barrier_id: str) -> None:
        self._control = control
        self._path = f"/barriers/{quote(barrier_id, safe='')}"
        self.id = barrier_id

    @property
    def held(self) -> int:
        """How many calls wait here now."""
        return int(self._control._ask("GET", self._path)["held"])

    def wait_held(self, count: int = 1, *, wait_seconds: float = 10.0) -> None:
        """Return as soon as `count` calls wait here; raise `SimulatorError` when they do not."""
        query = urlencode({"held": count, "wait_seconds": wait_seconds})
        self._control._ask("GET", f"{self._path}?{query}", wait_seconds=wait_seconds)

    async def wait_held_async(self, count: int = 1, *, wait_seconds: float = 10.0) -> None:
        """Do the same without stopping the event loop."""
        await asyncio.to_thread(self.wait_held, count, wait_seconds=wait_seconds)

    def release(self, count: int | None = None) -> int:
        """Let the first `count` calls go (None: all that wait now) and return how many went."""
        answer = self._control._ask("POST", f"{self._path}/release", {"count": count})
        return int(answer["released"])

    async def release_async(self, count: int | None = None) -> int:
        """Do the same without stopping the event loop."""
        return await asyncio.to_thread(self.release, count)

    def remove(self) -> None:
        """Take the barrier away; what waits here goes on."""
        try:
            self._control._ask("DELETE", self._path)
        except SimulatorError as exc:
            if exc.status != 404:
                raise

    def __enter__(self) -> "BarrierControl":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()
