"""Requests per second of the provider simulator, which must not be the bottleneck of a test.

The simulator runs in one process; another one loads it over raw keep-alive sockets, so that no
client library is measured. Run it as `python -m benchmarks.simulator`.
"""

import asyncio
import json
import multiprocessing
import time
from typing import Any

from holdfast.testing.simulator.process import ProviderSimulator

CONNECTIONS = 32
SECONDS = 3.0
HISTORY = [
    {"role": "user" if n % 2 == 0 else "assistant", "content": f"message number {n}"}
    for n in range(21)
]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "responses, JSON": ("/v1/responses", {"model": "gpt-4.1", "input": "hello"}),
    "responses, SSE": ("/v1/responses", {"model": "gpt-4.1", "input": "hello", "stream": True}),
    "responses, 21 items": ("/v1/responses", {"model": "gpt-4.1", "input": HISTORY}),
    "chat, JSON": ("/v1/chat/completions", {"model": "gpt-4.1", "messages": HISTORY[:1]}),
}


def _request(path: str, body: dict[str, Any]) -> bytes:
    raw = json.dumps(body | {"store": False}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer k\r\n"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    if b"transfer-encoding: chunked" in head:
        await reader.readuntil(b"\r\n0\r\n\r\n")
        return
    length = int(head.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
    await reader.readexactly(length)


async def _client(port: int, request: bytes, until: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = 0
    while time.perf_counter() < until:
        writer.write(request)
        await _read_answer(reader)
        count += 1
    writer.close()
    await writer.wait_closed()
    return count


async def _load(port: int, request: bytes) -> float:
    began = time.perf_counter()
    until = began + SECONDS
    counts = await asyncio.gather(*(_client(port, request, until) for _ in range(CONNECTIONS)))
    return sum(counts) / (time.perf_counter() - began)


def _load_process(port: int, request: bytes, results: "multiprocessing.Queue[float]") -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results.put(runner.run(_load(port, request)))


def main() -> None:
    """Print the requests per second of each case."""
    context = multiprocessing.get_context("spawn")
    for name, (path, body) in CASES.items():
        with ProviderSimulator({"record_limit": 1000}) as simulator:
            port = int(simulator.url.rsplit(":", 1)[1])
            results: multiprocessing.Queue[float] = context.Queue()
            process = context.Process(
                target=_load_process, args=(port, _request(path, body), results)
            )
            process.start()
            rate = results.get()
            process.join()
        print(f"simulator: {name:22} {rate:8.0f} requests/s")


if __name__ == "__main__":
    main()
