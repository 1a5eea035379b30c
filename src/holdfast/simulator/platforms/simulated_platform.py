"""Common parts of all simulated platforms: life cycle, waiting for messages, faults of calls."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

from holdfast.simulator.platforms.server import (
    PlatformAnswer,
    PlatformCall,
    PlatformServer,
    SocketHandler,
)

WAIT_SECONDS = 60.0

Chat = TypeVar("Chat")

Fault = Callable[[str, dict[str, Any]], PlatformAnswer | None]
"""Gets the method and arguments of a call; returns the answer to give instead, or `None`."""


class SimulatedPlatform(ABC):
    """A server that a test starts, stops and waits for. Methods are thread-safe."""

    def __init__(self, port: int, on_socket: SocketHandler | None = None) -> None:
        self._server = PlatformServer(self._handle, on_socket)
        self._server.port = port
        self._lock = threading.Condition()
        """Guards the platform's state; notified after every change."""

    @property
    def url(self) -> str:
        """The address to configure."""
        return self._server.url

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        """Answer requests; after `down`, on the same port."""
        self._server.start()

    def down(self) -> None:
        """Stop answering."""
        self._server.stop()

    def wait(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait until a condition holds; it is checked after every change."""
        with self._lock:
            if not self._lock.wait_for(condition, seconds):
                raise AssertionError(f"not within {seconds} s; arrived: {self._arrived()}")

    @abstractmethod
    def _arrived(self) -> Sequence[object]:
        """Return what arrived so far, for the message of a failed wait."""

    @abstractmethod
    async def _handle(self, call: PlatformCall) -> PlatformAnswer:
        """Answer one request."""


class SimulatedChatPlatform(SimulatedPlatform, Generic[Chat]):
    """A platform whose API has methods; any of their calls can be made to fail."""

    def __init__(self, port: int, on_socket: SocketHandler | None = None) -> None:
        super().__init__(port, on_socket)
        self._faults: list[Fault] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """Every call, with its arguments."""

    @abstractmethod
    def texts(self, chat: Chat | None = None) -> list[str]:
        """Return the current texts of the sent messages, in one chat or in all."""

    @abstractmethod
    def _make_error(self, **fields: Any) -> PlatformAnswer:
        """Return an error in the platform's form."""

    def _arrived(self) -> Sequence[object]:
        return self.texts()

    def wait_for_text(
        self, text: str, chat: Chat | None = None, seconds: float = WAIT_SECONDS
    ) -> None:
        """Wait until a message contains a text."""
        self.wait(lambda: any(text in sent for sent in self.texts(chat)), seconds)

    def fail(self, fault: Fault) -> None:
        """Call `fault` for every call; the first answer that is not `None` is given."""
        self._faults.append(fault)

    def fail_next(self, method: str, times: int = 1, *, after: bool = False, **error: Any) -> None:
        """Make the next calls of a method fail.

        With fields of an error, that error is the answer. Without them the connection is cut before
        the call takes effect, or `after` it.
        """
        left = times

        def fault(called: str, _: dict[str, Any]) -> PlatformAnswer | None:
            nonlocal left
            if called != method or left <= 0:
                return None
            left -= 1
            if error:
                return self._make_error(**error)
            return PlatformAnswer(is_cut=True, takes_effect=after)

        self.fail(fault)

    def record_call(self, method: str, arguments: dict[str, Any]) -> PlatformAnswer | None:
        """Record a call and return the answer of the first fault that has one."""
        with self._lock:
            self.calls.append((method, arguments))
            answers = (fault(method, arguments) for fault in self._faults)
            answer = next((found for found in answers if found is not None), None)
            if answer is not None:
                # Without a fault, the notification after the call took effect is enough.
                self._lock.notify_all()
        return answer

    def run_call(
        self,
        method: str,
        arguments: dict[str, Any],
        perform: Callable[[str, dict[str, Any]], PlatformAnswer],
    ) -> PlatformAnswer:
        """Answer a call with `perform`, unless a fault prevents it or discards its answer."""
        fault = self.record_call(method, arguments)
        if fault is not None and not fault.takes_effect:
            return fault
        with self._lock:
            answer = perform(method, arguments)
            self._lock.notify_all()
        return fault or answer
