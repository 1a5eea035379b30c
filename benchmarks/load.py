"""Load on a server: from wrk if it is installed, so that Python is not the bottleneck."""

import asyncio
import re
import secrets
import shutil
import subprocess
import time
from math import ceil
from pathlib import Path

import msgspec

from benchmarks.http_client import PATHS, Connection, turn_body
from benchmarks.servers.processes import Server
from benchmarks.spin import Spin

WARM_UP_SHARE = 0.34
QUESTION = "What is the weather like today, and what will it be like tomorrow?"
KNOWN_KEYS = 2048
HOT_TURNS = 64
"""Turns on one hot key before the next one is used, so that the history does not dominate."""
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}

_SCRIPT = """
local n = 0
request = function()
  n = n + 1
  wrk.headers["{key_header}"] = "{prefix}" .. {number}
  wrk.headers["Content-Type"] = "application/json"
  {authorization}
  return wrk.format("POST", "{path}", nil, '{body_begin}' .. n .. '{body_end}')
end
"""
_LUA_NUMBERS = {
    "known": f"(n % {KNOWN_KEYS})",
    "first": "n",
    "hot": f"math.floor(n / {HOT_TURNS})",
}


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a load, and how many clients send them concurrently."""

    api: str = "responses"
    is_stream: bool = False
    clients: int = 32
    keys: str = "known"
    """`known`: many existing sessions; `first`: a new key each; `hot`: one key for all clients."""
    prefix: str = ""
    seconds: float = 3.0
    requests: int = 0
    """Stop after this many requests instead of after `seconds`.

    Slow answers that are still open at the end of a fixed time would cost CPU and not be counted.
    """
    authorization: str = ""
    key_header: str = "X-Session-Key"
    model: str = "stub"

    @property
    def path(self) -> str:
        """The path of every request."""
        return PATHS[self.api]

    @property
    def body(self) -> bytes:
        """The body of every request."""
        more = {"stream": True} if self.is_stream else {}
        return msgspec.json.encode(turn_body(self.api, QUESTION, model=self.model, **more))

    def key(self, number: int) -> str:
        """Return the session key of a request."""
        numbers = {"known": number % KNOWN_KEYS, "first": number, "hot": number // HOT_TURNS}
        return f"{self.prefix}{numbers[self.keys]}"

    def headers(self, number: int) -> dict[str, str]:
        """Return the headers of a request."""
        headers = {self.key_header: self.key(number)}
        return headers | ({"authorization": self.authorization} if self.authorization else {})


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput, latency and cost of a load."""

    requests: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    failures: int
    cpu_us: float
    """CPU time of the server per request, scaled by the spin loop."""
    raw_cpu_us: float
    """CPU time of the server per request as measured."""
    rss_mb: float


def prepare(server: Server, load: Load, count: int = KNOWN_KEYS) -> None:
    """Run one turn in each of the sessions of a `known` load."""
    asyncio.run(_prepare(server.port, load, count))


async def _prepare(port: int, load: Load, count: int) -> None:
    whole = msgspec.structs.replace(load, is_stream=False)
    numbers = iter(range(count))

    async def work() -> None:
        connection = await Connection.open(port)
        try:
            for number in numbers:
                await connection.request("POST", whole.path, whole.body, whole.headers(number))
        finally:
            await connection.close()

    await asyncio.gather(*(work() for _ in range(min(16, count))))


def measure(server: Server, load: Load, folder: Path) -> LoadResult:
    """Load a server for a while; return its throughput, latency and cost."""
    can_use_wrk = not load.requests and load.seconds >= 1 and shutil.which("wrk") is not None
    run = _run_wrk if can_use_wrk else _run_own

    def fresh(share: float) -> Load:
        # A new prefix makes every first contact a new session, and every hot key an empty one.
        prefix = load.prefix if load.keys == "known" else f"{load.prefix}{secrets.token_hex(4)}-"
        return msgspec.structs.replace(
            load, seconds=load.seconds * share, requests=ceil(load.requests * share), prefix=prefix
        )

    run(server, fresh(WARM_UP_SHARE), folder)
    # Turns of clients that disconnected are still executed: wait for them.
    server.wait_until_idle()
    spin = Spin()
    before = server.cpu_seconds()
    done, per_second, p50, p99, failures = run(server, fresh(1.0), folder)
    cpu = server.cpu_seconds() - before
    factor = spin.factor()
    server.wait_until_idle()
    return LoadResult(
        requests=done,
        requests_per_second=per_second,
        p50_ms=p50,
        p99_ms=p99,
        failures=failures,
        cpu_us=cpu / max(done, 1) * 1e6 * factor,
        raw_cpu_us=cpu / max(done, 1) * 1e6,
        rss_mb=server.rss_mb(),
    )


_Counted = tuple[int, float, float, float, int]


def _run_wrk(server: Server, load: Load, folder: Path) -> _Counted:
    script = folder / "load.lua"
    authorization = ""
    if load.authorization:
        authorization = f'wrk.headers["Authorization"] = "{load.authorization}"'
    # Every client sends another text: the same text at the same time on one key is compared with
    # the log, because it may come from a client that stopped an answer.
    begin, end = load.body.decode().split(QUESTION)
    script.write_text(
        _SCRIPT.format(
            prefix=load.prefix, key_header=load.key_header, number=_LUA_NUMBERS[load.keys],
            path=load.path, body_begin=begin + QUESTION, body_end=end,
            authorization=authorization,
        )
    )  # fmt: skip
    done = subprocess.run(
        [
            "wrk", "-t1", f"-c{load.clients}", f"-d{max(round(load.seconds), 1)}s",
            "--timeout", "20s", "--latency", "-s", str(script), server.url,
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return _read_wrk(done.stdout)


def _read_wrk(text: str) -> _Counted:
    count = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    rejected = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    errors = re.search(
        r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text
    )
    failures = int(rejected[1]) if rejected else 0
    failures += sum(int(number) for number in errors.groups()) if errors else 0
    return (
        int(count[1]) if count else 0,
        float(rate[1]) if rate else 0.0,
        _latency(text, "50%"),
        _latency(text, "99%"),
        failures,
    )


def _latency(text: str, which: str) -> float:
    found = re.search(rf"^\s+{which}\s+([\d.]+)(us|ms|s|m)\s*$", text, re.MULTILINE)
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def _run_own(server: Server, load: Load, _: Path) -> _Counted:
    return asyncio.run(_own_load(server.port, load))


async def _own_load(port: int, load: Load) -> _Counted:
    times: list[float] = []
    failures = 0
    began = time.perf_counter()
    until = began + load.seconds
    numbers = iter(range(load.requests or 10**9))

    async def client() -> None:
        nonlocal failures
        connection = await Connection.open(port)
        try:
            for number in numbers:
                at = time.perf_counter()
                if not load.requests and at >= until:
                    return
                headers = load.headers(number)
                status = (await connection.request("POST", load.path, load.body, headers)).status
                times.append((time.perf_counter() - at) * 1000)
                failures += status != 200
        finally:
            await connection.close()

    await asyncio.gather(*(client() for _ in range(load.clients)))
    seconds = time.perf_counter() - began
    times.sort()
    return (
        len(times), len(times) / seconds, times[len(times) // 2], times[int(len(times) * 0.99)],
        failures,
    )  # fmt: skip
