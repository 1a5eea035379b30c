"""Replicas are replaced one by one under load, and no client notices."""

import itertools
import re
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.acceptance.gateway_process import GatewayProcess, free_port
from tests.clients.environments import apt_program
from tests.store_urls import sqlite_url

DEPLOY = Path(__file__).parents[2] / "deploy"
CLIENTS = 4
TIMEOUT = 60
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


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=TIMEOUT).status_code == 200
    except httpx.HTTPError:
        return False


class Nginx:
    """The nginx of `deploy/nginx.conf` in front of replicas, with ports and paths of its own."""

    def __init__(self, program: str, urls: list[str], folder: Path) -> None:
        self._port = free_port()
        self._config = folder / "nginx.conf"
        servers = "".join(rf"server {url.removeprefix('http://')}\1;" for url in urls)
        example = (DEPLOY / "nginx.conf").read_text()
        example = re.sub(r"server gateway:8377(.*);", servers, example)
        example = re.sub(r"listen 8377;", f"listen 127.0.0.1:{self._port};", example)
        paths = "".join(
            f"{name}_temp_path {folder / name};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        self._config.write_text(
            f"daemon off; pid {folder / 'pid'}; error_log {folder / 'error.log'} info;\n"
            f"events {{}}\nhttp {{ access_log off; {paths}\n{example}\n}}\n"
        )
        self._command = [program, "-e", str(folder / "error.log"), "-c", str(self._config)]
        self.errors = folder / "error.log"

    def __enter__(self) -> "Nginx":
        self._process = subprocess.Popen(self._command)
        while not is_ready(f"http://127.0.0.1:{self._port}"):
            assert self._process.poll() is None, self.errors.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT)

    def post(self, path: str, body: object, headers: dict[str, str]) -> httpx.Response:
        url = f"http://127.0.0.1:{self._port}{path}"
        return httpx.post(url, json=body, headers=headers, timeout=TIMEOUT)


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
