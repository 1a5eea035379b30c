"""Each platform's packages are imported only where a channel needs them."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from holdfast.channel_services import ChannelServices
from holdfast.channels.settings import ChannelSettings
from holdfast.settings import Settings
kind = sys.argv[1]
channels = () if kind == "none" else (ChannelSettings(name="c", kind=kind, account="+1"),)
ChannelServices(Settings(channels=channels))
heavy = [name for name in ("slack_sdk", "aiohttp", "markdown_it") if name in sys.modules]
if kind == "telegram":
    from holdfast.channels.rendering.styles import to_telegram as render
if kind == "signal":
    from holdfast.channels.signal.styles import to_signal as render
if kind in ("telegram", "signal"):
    render("**text**")
print(heavy, [name for name in ("slack_sdk", "aiohttp", "markdown_it") if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("kind", "loaded"),
    [("none", []), ("telegram", ["markdown_it"]), ("signal", ["markdown_it"]), ("slack", [])],
)
def test_a_library_is_imported_only_by_the_channel_that_uses_it(
    kind: str, loaded: list[str]
) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind], capture_output=True, text=True, check=True
    )
    # Opening a channel imports nothing; its first message imports its own packages alone.
    assert found.stdout.strip() == f"[] {loaded}"
