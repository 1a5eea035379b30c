"""Replicas are replaced one by one under load, and no client notices."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.acceptance.gateway_process import GatewayProcess, free_port
from tests.acceptance.nginx import TIMEOUT, Nginx, is_ready
from tests.clients.environments import apt_program
from tests.store_urls import sqlite_url

CLIENTS = 4
PROBE_SECONDS = 0.05


class Balancer:
    """Sends requests to ready replicas, as a load balancer with readiness probes does.

    A request goes to the next replica only if no connection could be made, so that nothing is
    sent twice.
    """

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._ready = set(urls)
        self._order = itertools.count()
        self._stopped = threading.Event()
        self._prober = threading.Thread(target=self._probe, daemon=True)

    def __enter__(self) -> "Balancer":
        self._prober.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._prober.join()

    def _probe(self) -> None:
        while not self._stopped.wait(PROBE_SECONDS):
            self._ready = {url for url in self._urls if is_ready(url)}

    def post(self, path: str, body: object, headers: dict[str, str]) -> httpx.Response:
        start = next(self._order)
        urls = [self._urls[(start + n) % len(self._urls)] for n in range(len(self._urls))]
        urls.sort(key=lambda url: url not in self._ready)
        for url in urls[:-1]:
            try:
                return httpx.post(url + path, json=body, headers=headers, timeout=TIMEOUT)
            except httpx.ConnectError:
                continue
        return httpx.post(urls[-1] + path, json=body, headers=headers, timeout=TIMEOUT)


@pytest.fixture
def replicas(postgres_url: str) -> Iterator[list[GatewayProcess]]:
    """Two gateways on one PostgreSQL, each with a port of its own."""
    env = {"HOLDFAST_SERVER_DRAIN_SECONDS": "4", "HOLDFAST_LANES_LEASE_SECONDS": "5"}
    started = [GatewayProcess(postgres_url, "--port", str(free_port()), env=env) for _ in range(2)]
    for replica in started:
        replica.start()
    yield started
    for replica in started:
        replica.kill()


@pytest.mark.parametrize("has_probes", [True, False], ids=["probes", "nginx"])
def test_a_rolling_restart_of_two_replicas_fails_no_request(
    replicas: list[GatewayProcess], tmp_path: Path, has_probes: bool
) -> None:
    is_over = threading.Event()
    urls = [replica.url for replica in replicas]
    program = "" if has_probes else apt_program("nginx-light", "nginx")
    assert program is not None, "this test needs nginx: install it, or run as root"
    with Nginx(program, urls, tmp_path) if program else Balancer(urls) as balancer:

        def talk(client: int) -> list[int]:
            """Talk to one session until the restart is over; return the statuses."""
            statuses = []
            for number in itertools.count(1):
                messages = [{"role": "user", "content": f"message {number}"}]
                reply = balancer.post(
                    "/v1/chat/completions",
                    {"model": "holdfast-demo", "messages": messages},
                    {"X-Session-Key": f"client-{client}"},
                )
                statuses.append(reply.status_code)
                if is_over.is_set():
                    break
            return statuses

        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(talk, client) for client in range(CLIENTS)]
            try:
                for replica in replicas:
                    assert replica.stop() == 0
                    replica.start()
                    assert is_ready(replica.url)
            finally:
                is_over.set()
            statuses = [client.result(TIMEOUT) for client in clients]
    assert {status for client in statuses for status in client} == {200}
    for number, client in enumerate(statuses):
        listed = httpx.get(f"{replicas[0].url}/v1/sessions", params={"key": f"client-{number}"})
        [session] = listed.json()["data"]
        assert session["turn_count"] == len(client), "every answered request is one turn"


def test_a_draining_gateway_is_not_ready_and_still_answers(tmp_path: Path) -> None:
    env = {"HOLDFAST_SERVER_DRAIN_SECONDS": "60"}
    gateway = GatewayProcess(sqlite_url(tmp_path), env=env)
    gateway.start()
    try:
        assert is_ready(gateway.url)
        gateway.terminate()
        while is_ready(gateway.url):
            pass
        reply = httpx.get(f"{gateway.url}/readyz")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
        assert httpx.get(f"{gateway.url}/healthz").status_code == 200
        answer = httpx.post(
            f"{gateway.url}/v1/responses", json={"model": "holdfast-demo", "input": "hello"}
        )
        assert answer.status_code == 200
        # Who keeps connections opens the next one elsewhere.
        assert answer.headers["connection"] == "close"
        # A second signal ends the draining at once.
        assert gateway.stop() == 0
    finally:
        gateway.kill()
