"""A typed client of the simulator's control API, for tests in this process or another.

Every call blocks. In a coroutine, use the methods that end in `_async`: they keep the event loop
free for the test's own work.
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
    """The simulator refused a request, or an expected call did not arrive."""

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
    """An object, or the text of a body that is not a JSON object."""
    faults: list[str]
    """The kinds of the faults that were applied."""
    status: int | None
    """None before the answer begins, or if the connection was dropped."""
    answer_id: str | None
    fault: str | None
    """The catalogue id (`R02`, …) of the answer."""
    events_sent: int | None


class SimulatorControl:
    """A client of the control API of the simulator at `url` (without /v1)."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.hostname is None or parts.port is None:
            raise ValueError(f"expected http://host:port, got {url!r}")
        self._address = (parts.hostname, parts.port)
        self._kept_open: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection, which stays open while the simulator does not listen."""
        if self._kept_open is not None:
            self._kept_open.close()
            self._kept_open = None

    def add_fault(
        self,
        kind: str,
        *,
        when: dict[str, Any] | None = None,
        times: int | None = None,
        **parameters: Any,
    ) -> str:
        """Activate a fault and return the id of its rule."""
        fault = {"kind": kind, "when": when or {}, "times": times, **parameters}
        return str(self._ask("POST", "/faults", fault)["id"])

    def remove_fault(self, rule_id: str) -> None:
        """Remove one fault."""
        self._ask("DELETE", f"/faults/{quote(rule_id)}")

    def clear_faults(self) -> None:
        """Remove all faults, including those of the scenario."""
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
        """Hold the calls that match from now on; leaving its `with` block releases all."""
        spec = {"when": when or {}, "at": at, "event": event, "times": times}
        return BarrierControl(self, str(self._ask("POST", "/barriers", spec)["id"]))

    def release_all(self) -> None:
        """Remove all barriers and release every hanging call."""
        self._ask("POST", "/release", {})

    def forget(self, id: str | None = None, *, account: str | None = None) -> int:  # noqa: A002
        """Delete one id, the state of one account, or everything."""
        return int(self._ask("POST", "/forget", {"id": id, "account": account})["forgotten"])

    def advance_clock(self, seconds: int) -> None:
        """Advance the clock of the simulator."""
        self._ask("POST", "/clock", {"advance_seconds": seconds})

    def reset(self) -> None:
        """Return to the scenario that the simulator was started with."""
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
        """Delete the record; numbering continues."""
        self._ask("DELETE", "/record")

    def state(self) -> dict[str, Any]:
        """Return the state of the simulator: accounts, faults, barriers."""
        return self._ask("GET", "")

    def refuse_connections(self, count: int) -> None:
        """Reset the next `count` connections; idle ones are closed now."""
        self._ask("POST", "/connections", {"connections": count}, stays_open=True)

    def shut(self, seconds: float | None = None) -> None:
        """Stop listening, so that connecting is refused, for `seconds` or until `open`."""
        self._ask("POST", "/listening", {"open": False, "seconds": seconds}, stays_open=True)

    def open(self) -> None:
        """Listen again after `shut`."""
        self._ask("POST", "/listening", {"open": True}, stays_open=True)

    def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        stays_open: bool = False,
        **wait: float,
    ) -> dict[str, Any]:
        status, raw = self._exchange(method, path, body, stays_open=stays_open, **wait)
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
        stays_open: bool = False,
        wait_seconds: float = 0.0,
    ) -> tuple[int, bytes]:
        connection = self._connection(stays_open, wait_seconds + _MARGIN_SECONDS)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, f"/_sim{path}", payload)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            if not stays_open:
                connection.close()

    def _connection(self, stays_open: bool, seconds: float) -> http.client.HTTPConnection:
        if not stays_open:
            return http.client.HTTPConnection(*self._address, timeout=seconds)
        if self._kept_open is None:
            self._kept_open = http.client.HTTPConnection(*self._address, timeout=_MARGIN_SECONDS)
        return self._kept_open


class BarrierControl:
    """One barrier: list, await and release its calls."""

    def __init__(self, control: SimulatorControl, barrier_id: str) -> None:
        self._control = control
        self._path = f"/barriers/{quote(barrier_id, safe='')}"
        self.id = barrier_id

    @property
    def held(self) -> int:
        """How many calls wait here now."""
        return int(self._control._ask("GET", self._path)["held"])

    def wait_held(self, count: int = 1, *, wait_seconds: float = 60.0) -> None:
        """Wait until `count` calls are held here; raise `SimulatorError` on timeout."""
        query = urlencode({"held": count, "wait_seconds": wait_seconds})
        self._control._ask("GET", f"{self._path}?{query}", wait_seconds=wait_seconds)

    async def wait_held_async(self, count: int = 1, *, wait_seconds: float = 60.0) -> None:
        """Do the same without blocking the event loop."""
        await asyncio.to_thread(self.wait_held, count, wait_seconds=wait_seconds)

    def release(self, count: int | None = None) -> int:
        """Release the first `count` held calls (None: all) and return how many."""
        answer = self._control._ask("POST", f"{self._path}/release", {"count": count})
        return int(answer["released"])

    async def release_async(self, count: int | None = None) -> int:
        """Do the same without blocking the event loop."""
        return await asyncio.to_thread(self.release, count)

    def remove(self) -> None:
        """Remove the barrier and release its calls."""
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
