"""Upstreams over TLS: certificates are verified, connections are reused."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.core.errors import ProviderFailure
from holdfast.providers.http.client import HttpRequest, PooledClient
from tests.unit.providers.http.raw_server import CollectingSink, chunked


def certificate(folder: Path) -> Path:
    """Write a key and a self-signed certificate for 127.0.0.1; return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "holdfast tests")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@asynccontextmanager
async def tls_server(pem: Path) -> AsyncIterator[tuple[str, list[int]]]:
    """Serve a short stream to every request; count the requests of each connection."""
    counts: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts.append(0)
        place = len(counts) - 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                counts[place] += 1
                writer.write(chunked(b"one", b"two"))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with listener:
        yield f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1", counts


async def _get(client: PooledClient, url: str) -> bytes:
    async with client.exchange(HttpRequest(method="GET", url=url)) as answer:
        sink = CollectingSink()
        await answer.copy_to(sink)
        return b"".join(sink.pieces)


async def test_requests_to_a_trusted_server_share_a_connection(tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    client = PooledClient(tls=ssl.create_default_context(cafile=str(pem)))
    async with tls_server(pem) as (url, counts):
        try:
            assert [await _get(client, url) for _ in range(2)] == [b"onetwo"] * 2
        finally:
            await client.close()
        assert counts == [2]


async def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    client = PooledClient()
    async with tls_server(certificate(tmp_path)) as (url, counts):
        try:
            with pytest.raises(ProviderFailure) as caught:
                await _get(client, url)
        finally:
            await client.close()
        assert caught.value.provider_code == "upstream_unreachable"
        assert not any(counts)
