"""Authentication never fails open: keys are read before anybody is admitted."""

import asyncio
from typing import Any, cast

import pytest

from holdfast.core.decisions.api_keys import NotAuthenticated, hash_key
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import Tenant
from holdfast.core.transaction.changes import ApiKeyRow
from holdfast.http.request.auth import Authenticator, HttpConfig, RateLimiter
from holdfast.http.server.types import Request
from holdfast.ports.store import Reader


class KeyReader:
    """The keys of a store; reads wait for `gate` and fail while `is_down`."""

    def __init__(self, *keys: str) -> None:
        self.rows = [_row(key) for key in keys]
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_down = False
        self.reads = 0

    async def api_keys(self) -> list[ApiKeyRow]:
        """Return the rows."""
        self.reads += 1
        rows = list(self.rows)
        await self.gate.wait()
        if self.is_down:
            raise StoreUnavailable("the store is down")
        return rows


def _row(key: str) -> ApiKeyRow:
    return ApiKeyRow(
        id=f"key_{key}", tenant=Tenant("acme"), hash=hash_key(key), name="", is_admin=False,
        created_at=0.0, revoked_at=None,
    )  # fmt: skip


def _authenticator(reader: KeyReader) -> Authenticator:
    return Authenticator(cast(Reader, cast(Any, reader)), HttpConfig(), RateLimiter(0))


def _request(key: str | None = None, path: str = "/v1/sessions") -> Request:
    headers = [(b"host", b"127.0.0.1")]
    if key is not None:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    return Request("GET", path, b"", headers)


async def test_a_request_that_comes_while_the_keys_are_read_waits_for_them() -> None:
    reader = KeyReader("secret")
    reader.gate.clear()
    authenticator = _authenticator(reader)
    requests = [_request("secret"), _request(), _request("wrong")]
    waiting = [asyncio.create_task(authenticator.authenticate(one)) for one in requests]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    reader.gate.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        NotAuthenticated,
        NotAuthenticated,
    ]
    assert reader.reads == 1
    assert (requests[0].tenant, requests[0].is_admin) == ("acme", False)


async def test_a_client_that_disconnects_does_not_cancel_the_read_for_others() -> None:
    reader = KeyReader("secret")
    reader.gate.clear()
    authenticator = _authenticator(reader)
    first = asyncio.create_task(authenticator.authenticate(_request()))
    second = asyncio.create_task(authenticator.authenticate(_request("secret")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    reader.gate.set()
    await second


async def test_nobody_is_admitted_before_the_keys_were_read_once() -> None:
    reader = KeyReader()
    reader.is_down = True
    authenticator = _authenticator(reader)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await authenticator.authenticate(_request())
    await authenticator.authenticate(_request(path="/healthz"))
    reader.is_down = False
    await authenticator.authenticate(_request())


async def test_a_failed_refresh_keeps_the_last_known_keys() -> None:
    reader = KeyReader("secret")
    authenticator = _authenticator(reader)
    await authenticator.load()
    reader.is_down = True
    authenticator.invalidate()
    await authenticator.authenticate(_request("secret"))
    for key in (None, "wrong"):
        with pytest.raises(NotAuthenticated):
            await authenticator.authenticate(_request(key))


async def test_keys_that_change_while_they_are_read_are_read_again() -> None:
    reader = KeyReader("secret", "other")
    reader.gate.clear()
    authenticator = _authenticator(reader)
    reading = asyncio.create_task(authenticator.authenticate(_request("secret")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reader.rows = [_row("other")]
    authenticator.invalidate()
    reader.gate.set()
    with pytest.raises(NotAuthenticated):
        await reading
