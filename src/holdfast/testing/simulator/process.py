"""The provider simulator in a thread of the test's own process, on a free loopback port."""

import asyncio
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from holdfast.simulator.server.server import SimulatorServer
from holdfast.simulator.state.scenario import Scenario, read_scenario
from holdfast.testing.simulator.control import SimulatorControl

_START_SECONDS = 20.0
KEY = "sk-simulated"


class ProviderSimulator(SimulatorControl):
    """A running simulator and its control.

    `scenario` is the content of a scenario file, as a mapping; `seed`, `profile` and `faults` are
    shortcuts for its fields. Real HTTP: point any client at `base_url` with any key.
    """

    key = KEY
    """A key to call with; any other is another account."""

    def __init__(
        self,
        scenario: dict[str, Any] | None = None,
        *,
        seed: int | None = None,
        profile: str | None = None,
        faults: Sequence[str | dict[str, Any]] = (),
    ) -> None:
        written = dict(scenario or {})
        if seed is not None:
            written["seed"] = seed
        if profile is not None:
            written["profile"] = profile
        written["fault"] = [*written.get("fault", []), *faults]
        self._scenario = read_scenario(written)
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        """The address for OpenAI clients, with /v1."""
        return f"{self.url}/v1"

    def start(self) -> "ProviderSimulator":
        """Run until `stop`; return once connections are accepted."""
        running = _Running(self._scenario)
        self._running = running
        self._thread = threading.Thread(target=running.run, name="provider-simulator", daemon=True)
        self._thread.start()
        if not running.is_ready.wait(_START_SECONDS) or running.error is not None:
            raise RuntimeError(f"the simulator did not start: {running.error}")
        super().__init__(running.url)
        return self

    def stop(self) -> None:
        """Stop; wait until its thread has ended and its sockets are closed."""
        if self._thread is None:
            return
        self.close()
        self._running.stop()
        self._thread.join()
        self._thread = None

    def __enter__(self) -> "ProviderSimulator":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class _Running:
    """The part that runs in the thread."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.is_ready = threading.Event()
        self.error: Exception | None = None
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None

    def run(self) -> None:
        """Serve until `stop` is called."""
        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except OSError as exc:
            self.error = exc
        finally:
            self.is_ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        server = SimulatorServer(self._scenario)
        await server.start()
        try:
            self.url = server.url
            self.is_ready.set()
            await self._ending.wait()
        finally:
            await server.stop()

    def stop(self) -> None:
        """Stop the thread."""
        if self._loop is not None and self._ending is not None:
            self._loop.call_soon_threadsafe(self._ending.set)
