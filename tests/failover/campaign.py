"""One campaign: a cluster, two gateways, clients, and one fault of the primary after another."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import gateway_before
from tests.failover.clients import ANSWERED, Record, talking
from tests.failover.cluster import Cluster, running_cluster
from tests.failover.doctor import ask_doctor
from tests.failover.faults import Fault
from tests.failover.judge import Verdict, judge
from tests.failover.model_calls import ModelCalls
from tests.failover.probe import Probe, probing

TURNS_BETWEEN = 100
"""Acknowledged turns before each fault, so that there is something to lose."""
BACK_SECONDS = 120.0
"""How long an outage may last at most, the hang of a node included."""
PROBE_ERROR_SECONDS = 0.2
"""How much later than a gateway the probe may see that the database is back."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One fault, and how long it was felt."""

    fault: str
    database_seconds: float
    """From the fault until another node accepted commits."""
    turns_seconds: tuple[float, ...]
    """From then until the first answered turn, by gateway."""
    log_lines: tuple[int, ...]
    """Written until all was in order again, by gateway."""
    refused: dict[str, int]
    """What clients got instead of answers."""
    silent_seconds: float
    """The longest time that a request had no byte from its gateway."""

    def __str__(self) -> str:
        turns = ", ".join(f"{seconds:.1f}" for seconds in self.turns_seconds)
        return (
            f"{self.fault}: database back after {self.database_seconds:.1f} s, turns {turns} s "
            f"later, log lines {self.log_lines}, silent at most {self.silent_seconds:.1f} s, "
            f"not answered: {self.refused}"
        )


@dataclass(slots=True, kw_only=True)
class Report:
    """What a campaign has shown."""

    outages: list[Outage] = field(default_factory=list)
    record: Record
    verdict: Verdict
    repeated_calls: int
    """Calls of the model beyond one for each turn."""
    findings: list[str]
    """Codes of what doctor found at the end."""

    @property
    def outcomes(self) -> Counter[str]:
        """What attempts came to."""
        return Counter(attempt.outcome for attempt in self.record.attempts)

    def __str__(self) -> str:
        verdict = self.verdict
        return (
            f"{len(self.outages)} faults, {self.record.answered} acknowledged turns, "
            f"{len(verdict.lost)} lost, {len(verdict.doubled)} doubled, "
            f"{len(verdict.unequal)} unequal, {len(verdict.out_of_order)} out of order, "
            f"{len(verdict.shown_otherwise)} shown otherwise, "
            f"{self.repeated_calls} model calls repeated, outcomes {dict(self.outcomes)}, "
            f"doctor {self.findings}"
        )


async def run_campaign(
    faults: Sequence[Fault], folder: Path, *, is_synchronous: bool, say: Say
) -> Report:
    """Run the faults while clients talk, then judge every session and ask doctor."""
    async with AsyncExitStack() as stack:
        simulator = stack.enter_context(ProviderSimulator(ModelCalls.SCENARIO))
        cluster = await stack.enter_async_context(running_cluster(is_synchronous=is_synchronous))
        say("the cluster runs")
        probe = await stack.enter_async_context(probing(cluster))
        gateways = [
            stack.enter_context(_gateway(simulator, url, folder / str(number)))
            for number, url in enumerate((cluster.url, cluster.proxy_url))
        ]
        calls = await stack.enter_async_context(ModelCalls(simulator))
        outages = []
        async with talking([gateway.url for gateway in gateways]) as record:
            for number, fault in enumerate(faults, 1):
                outage = await _suffer(fault, cluster, probe, gateways, record)
                outages.append(outage)
                say(f"{number} of {len(faults)}: {outage}")
            await record.wait_for_more(TURNS_BETWEEN)
        verdict = await asyncio.to_thread(judge, gateways[0].url, record.turns)
        report = Report(
            outages=outages,
            record=record,
            verdict=verdict,
            repeated_calls=await calls.repeated(),
            findings=await asyncio.to_thread(ask_doctor, cluster.url),
        )
        say(str(report))
        return report


@contextmanager
def _gateway(simulator: ProviderSimulator, url: str, folder: Path) -> Iterator[GatewayProcess]:
    """Run a gateway; its log is in the folder afterwards."""
    folder.mkdir()
    # Over the Chat API the model is shown the whole history each time, and says how long it was.
    with gateway_before(simulator, url, folder, upstream='api = "chat"') as gateway:
        try:
            yield gateway
        finally:
            (folder / "gateway.log").write_text("".join(gateway.output))


async def _suffer(
    fault: Fault,
    cluster: Cluster,
    probe: Probe,
    gateways: Sequence[GatewayProcess],
    record: Record,
) -> Outage:
    """Do one fault to the primary, and wait until everything is in order again."""
    await record.wait_for_more(TURNS_BETWEEN)
    primary = await cluster.leader()
    lines = [len(gateway.output) for gateway in gateways]
    attempts = len(record.attempts)
    began = time.monotonic()
    heal = await fault(cluster, primary)
    try:
        async with asyncio.timeout(BACK_SECONDS):
            database = await probe.back_since(began, before=primary)
            turns = [
                await record.first_answer(number, after=database - PROBE_ERROR_SECONDS)
                for number in range(len(gateways))
            ]
            await heal()
    except TimeoutError:
        raise AssertionError(
            f"not in order {BACK_SECONDS} s after {fault.__name__} of {primary.name}; "
            f"last attempts: {record.attempts[-10:]}\n{cluster.logs()}"
        ) from None
    await cluster.wait_until_whole()
    seen = record.attempts[attempts:]
    return Outage(
        fault=fault.__name__,
        database_seconds=database - began,
        turns_seconds=tuple(max(0.0, at - database) for at in turns),
        log_lines=tuple(
            len(gateway.output) - before for gateway, before in zip(gateways, lines, strict=True)
        ),
        refused=dict(Counter(one.outcome for one in seen if one.outcome != ANSWERED)),
        silent_seconds=max(one.silent_seconds for one in seen),
    )
