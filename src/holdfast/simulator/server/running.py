"""Run the simulator as a separate process until a signal ends it."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from holdfast.simulator.server.server import SimulatorServer
from holdfast.simulator.state.scenario import Scenario


def run(
    scenario: Scenario,
    *,
    host: str,
    port: int,
    record: Path | None,
    announce: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; `announce` gets the address once it accepts requests."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(scenario, host, port, record, announce))


async def _serve(
    scenario: Scenario,
    host: str,
    port: int,
    record: Path | None,
    announce: Callable[[str], None],
) -> None:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    with ExitStack() as stack:
        server = SimulatorServer(scenario, host=host, port=port)
        if record is not None:
            server.world.record.file = stack.enter_context(record.open("ab"))
        await server.start()
        try:
            announce(server.url)
            await ending.wait()
        finally:
            await server.stop()
