"""Calls to servers that others name: only to allowed addresses, and answers are bounded."""

import asyncio

import pytest

from holdfast.ports.http_client import HttpUnavailable
from holdfast.providers.http.guarded_client import GuardedClient, is_allowed
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.testing.platforms import WebhookReceiver

PUBLIC = ["8.8.8.8", "2606:4700:4700::1111"]
PRIVATE = ["127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "fd00::1", "::ffff:127.0.0.1"]
NEVER = [
    "169.254.169.254", "fe80::1%eth0", "0.0.0.0", "224.0.0.1", "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "240.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC + PRIVATE + NEVER)
def test_private_addresses_need_permission_and_link_local_ones_never_get_it(address: str) -> None:
    assert is_allowed(address, is_private_allowed=False) == (address in PUBLIC)
    assert is_allowed(address, is_private_allowed=True) == (address not in NEVER)


async def test_a_name_that_leads_to_a_private_address_is_not_connected_to() -> None:
    with WebhookReceiver() as receiver:
        url = receiver.url.replace("127.0.0.1", "localhost")
        caller = PlainHttpCaller(guard=GuardedClient(is_private_allowed=False))
        with pytest.raises(HttpUnavailable) as refused:
            await caller.call("POST", url, body=b"{}")
        await caller.close()
        assert not refused.value.is_sent
        assert receiver.attempts == []


async def test_of_an_endless_answer_only_the_beginning_is_read() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    caller = PlainHttpCaller(guard=GuardedClient(is_private_allowed=True))
    result = await caller.call("GET", f"http://127.0.0.1:{port}/", max_bytes=1000)
    await caller.close()
    server.close()
    await server.wait_closed()
    assert result.body == b"x" * 1000
