"""Failovers of PostgreSQL lose what replication loses, and nothing else."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clients.environments import locked
from tests.failover.campaign import Report, Say, run_campaign
from tests.failover.faults import hang, kill_behind, kill_node, kill_postgres, switch_over

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("FAILOVER_ROUNDS", "2"))
"""How often the faults happen."""
SYNCHRONOUS = (kill_postgres, kill_node, switch_over, hang, kill_postgres)
ASYNCHRONOUS = (kill_postgres, switch_over)
BEHIND = (kill_behind,)

MAX_SILENT_SECONDS = 20.0
MAX_LOG_LINES = 20


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Say:
    """Write a line at once, also from a worker of pytest-xdist, whose standard output is gone."""

    def write(line: str) -> None:
        with capsys.disabled():
            print(f"{request.node.name}: {line}", file=sys.stderr, flush=True)  # noqa: T201

    return write


@pytest.fixture(autouse=True)
async def alone() -> AsyncIterator[None]:
    """Let one campaign run at a time: each has the processes of a whole cluster."""
    with locked("failover"):
        yield


def _assert_consistent(report: Report) -> None:
    verdict = report.verdict
    assert verdict.doubled == [], verdict
    assert verdict.out_of_order == []
    assert all(turn.is_answered for turn in report.record.turns)


async def test_synchronous_replication_loses_nothing(tmp_path: Path, say: Say) -> None:
    report = await run_campaign(SYNCHRONOUS * ROUNDS, tmp_path, is_synchronous=True, say=say)
    _assert_consistent(report)
    assert report.verdict.lost == [], report.verdict
    assert report.verdict.unequal == []
    assert report.verdict.shown_otherwise == []
    refused = set(report.outcomes) - {"200"}
    assert all(one.startswith(("503 ", "stream ended by ")) for one in refused), refused
    assert report.findings == []
    for outage in report.outages:
        assert outage.silent_seconds <= MAX_SILENT_SECONDS, outage
        assert max(outage.log_lines) <= MAX_LOG_LINES, outage


async def test_doctor_names_asynchronous_standbys_and_nothing_else(
    tmp_path: Path, say: Say
) -> None:
    report = await run_campaign(ASYNCHRONOUS * ROUNDS, tmp_path, is_synchronous=False, say=say)
    _assert_consistent(report)
    assert len(report.findings) == 1, report.findings
    assert not any(outcome.startswith("404") for outcome in report.outcomes)


async def test_what_an_asynchronous_standby_lacks_is_no_404(tmp_path: Path, say: Say) -> None:
    report = await run_campaign(BEHIND * ROUNDS, tmp_path, is_synchronous=False, say=say)
    _assert_consistent(report)
    assert report.verdict.lost, "the standbys lacked nothing, so this has tested nothing"
    assert not any(outcome.startswith("404") for outcome in report.outcomes)
