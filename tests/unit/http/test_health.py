"""Readiness tests a write; liveness needs no store."""

import asyncio
import time
from typing import Any

import pytest

from holdfast.core.errors import HoldfastError, RunFenced, StoreUnavailable
from holdfast.core.transaction.commands import Accept, Renew
from holdfast.http.api import health
from holdfast.ports.store import Store
from tests.in_process import open_gateway


class ReadOnlyDisk:
    """A store that can be read; writes fail while there is an `error`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.error: HoldfastError | None = None
        self.renewals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Any) -> Any:
        """Write, if there is room."""
        self.renewals += isinstance(command, Renew)
        if self.error is not None:
            raise self.error
        return await self._store.submit(command)


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("the disk is full"),
        # Another process declared this worker dead: what is accepted now would be taken from it.
        RunFenced("the lease is over"),
    ],
    ids=["disk full", "lease lost"],
)
async def test_a_worker_that_cannot_write_is_alive_but_not_ready(
    error: HoldfastError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
    disks: list[ReadOnlyDisk] = []

    def wrap(store: Store) -> Any:
        disks.append(ReadOnlyDisk(store))
        return disks[0]

    async with open_gateway(wrap=wrap) as gateway:
        assert (await gateway.client.get("/readyz")).status_code == 200
        disks[0].error = error
        full = await gateway.client.get("/readyz")
        assert full.status_code == 503
        assert full.json()["error"]["code"] == "store_unavailable"
        assert full.headers["retry-after"] == "1"
        assert (await gateway.client.get("/healthz")).status_code == 200
        assert (await gateway.client.get("/v1/sessions")).status_code == 200
        disks[0].error = None
        assert (await gateway.client.get("/readyz")).status_code == 200


class SmallWritesOnly(ReadOnlyDisk):
    """A store on a disk with room for a lease, and for no turn while there is an `error`."""

    async def submit(self, command: Any) -> Any:
        """Write, if there is room."""
        if self.error is not None and isinstance(command, Accept):
            raise self.error
        return await self._store.submit(command)


async def test_a_gateway_that_refuses_turns_is_not_ready_although_its_lease_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
    disks: list[SmallWritesOnly] = []

    def wrap(store: Store) -> Any:
        disks.append(SmallWritesOnly(store))
        return disks[0]

    async with open_gateway(wrap=wrap) as gateway:
        disks[0].error = StoreUnavailable("the disk is full")
        assert (await gateway.client.get("/readyz")).status_code == 200
        refused = await gateway.client.post("/v1/responses", json={"model": "m", "input": "x"})
        assert refused.status_code == 503
        full = await gateway.client.get("/readyz")
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        disks[0].error = None
        assert (await gateway.respond("x")).status_code == 200
        assert (await gateway.client.get("/readyz")).status_code == 200


async def test_a_refused_turn_counts_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may send the turn that would show that the store takes writes again."""
    monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
    async with open_gateway() as gateway:
        gateway.engine.refused_at = time.monotonic() - health.REFUSED_SECONDS + 60
        assert (await gateway.client.get("/readyz")).status_code == 503
        gateway.engine.refused_at = time.monotonic() - health.REFUSED_SECONDS
        assert (await gateway.client.get("/readyz")).status_code == 200


async def test_readiness_checks_in_the_same_second_share_one_write(monkeypatch: Any) -> None:
    monkeypatch.setattr(health, "FRESH_SECONDS", 3600.0)
    disks: list[ReadOnlyDisk] = []

    def wrap(store: Store) -> Any:
        disks.append(ReadOnlyDisk(store))
        return disks[0]

    async with open_gateway(wrap=wrap) as gateway:
        before = disks[0].renewals
        for _ in range(5):
            assert (await gateway.client.get("/readyz")).status_code == 200
        assert disks[0].renewals == before + 1


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_load_balancer_may_ask_for_the_head_alone(path: str) -> None:
    async with open_gateway() as gateway:
        whole = await gateway.client.get(path)
        reader, writer = await asyncio.open_connection(*gateway.server.address)
        # A second request on the connection: the first answer must end with its head.
        for last in (b"", b"Connection: close\r\n"):
            writer.write(b"HEAD %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (path.encode(), last))
        head, again, rest = (await reader.read()).split(b"\r\n\r\n")
        writer.close()
    for answer in (head, again):
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\ncontent-length: %d" % len(whole.content) in answer.lower()
    assert rest == b""
