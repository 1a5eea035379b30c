"""Repeats that wait for a turn whose replica is killed: one resumes it, all get its answer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import answer_text, gateway_before

TIMEOUT = 60
REPEATS: dict[str, list[dict[str, str]]] = {
    "idempotency key": [{"Idempotency-Key": "once"}] * 3,
    "SDK retry": [{}, {"x-stainless-retry-count": "1"}],
}


@pytest.fixture(name="simulator", scope="module")
def _simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator(seed=5) as simulator:
        yield simulator


def _post(gateway: GatewayProcess, headers: dict[str, str], **more: Any) -> httpx.Response:
    body = {"model": "gpt-4.1", "input": "carry me on", **more}
    headers = {"X-Session-Key": "k", **headers}
    return httpx.post(f"{gateway.url}/v1/responses", json=body, headers=headers, timeout=TIMEOUT)


def _count_repeats(gateway: GatewayProcess) -> float:
    """Return how many requests a gateway has recognised as repeats."""
    metrics = httpx.get(f"{gateway.url}/metrics", timeout=TIMEOUT).text.splitlines()
    found = [line for line in metrics if 'admission="repeated"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.mark.parametrize(
    ("kind", "is_stream"), [("idempotency key", False), ("SDK retry", True)], ids=REPEATS
)
def test_repeats_that_wait_for_a_killed_replicas_turn_resume_it_once(
    simulator: ProviderSimulator, store_url: str, tmp_path: Path, kind: str, is_stream: bool
) -> None:
    simulator.reset()
    first, *repeats = REPEATS[kind]
    with (
        gateway_before(simulator, store_url, tmp_path) as one,
        gateway_before(simulator, store_url, tmp_path) as other,
        simulator.hold(when={"text": "carry me on"}) as barrier,
        ThreadPoolExecutor(3) as pool,
    ):
        cut = pool.submit(_post, one, first, stream=is_stream)
        barrier.wait_held(1)
        waiting = [pool.submit(_post, other, each, stream=is_stream) for each in repeats]
        while _count_repeats(other) < len(repeats):
            assert not any(each.done() for each in waiting)
        one.kill()
        barrier.wait_held(1, wait_seconds=TIMEOUT)
        barrier.remove()
        answers = [each.result(TIMEOUT) for each in waiting]
        with pytest.raises(httpx.TransportError):
            cut.result(TIMEOUT).raise_for_status()
    assert [answer.status_code for answer in answers] == [200] * len(repeats)
    assert len({answer.headers["x-turn-id"] for answer in answers}) == 1
    for answer in answers:
        if is_stream:
            assert "event: response.completed" in answer.text
        else:
            assert answer_text(answer) == "Messages seen: 1. Last text: carry me on"
