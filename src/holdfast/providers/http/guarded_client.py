"""Connections to servers whose names others may control: only to allowed addresses.

The name is resolved here, and the connection goes to the address that was checked, so that DNS
rebinding has no effect.
"""

import asyncio
import ipaddress
import socket
import ssl

from holdfast.providers.errors import broken
from holdfast.providers.http.client import PooledClient, ServerAddress
from holdfast.providers.http.connection import UpstreamConnection

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
ADDRESS_REFUSED = "address_refused"
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_allowed(address: str, *, is_private_allowed: bool) -> bool:
    """Whether a server may have this address; link-local ones (cloud metadata) never may."""
    parsed: Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        # An IPv4-mapped address is checked as IPv4; other IPv6 addresses with an IPv4 one are
        # refused.
        if parsed.sixtofour is not None or parsed.teredo is not None or parsed in _NAT64:
            return False
        parsed = parsed.ipv4_mapped or parsed
    if parsed.is_loopback:
        return is_private_allowed
    if parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified or parsed.is_reserved:
        return False
    return parsed.is_global or is_private_allowed


class GuardedClient(PooledClient):
    """A client that connects only to allowed addresses, and without a proxy."""

    def __init__(self, *, is_private_allowed: bool) -> None:
        super().__init__()
        self._is_private_allowed = is_private_allowed

    async def _open(self, origin: ServerAddress) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        allowed = [
            address[0]
            for *_, address in addresses
            if is_allowed(str(address[0]), is_private_allowed=self._is_private_allowed)
        ]
        if not allowed:
            raise broken(f"{origin.host} has no address that may be connected to", ADDRESS_REFUSED)
        context = ssl.create_default_context() if origin.is_tls else None
        _, connection = await loop.create_connection(
            lambda: UpstreamConnection(loop),
            str(allowed[0]),
            origin.port,
            ssl=context,
            server_hostname=origin.host if origin.is_tls else None,
        )
        return connection
