"""`holdfast serve` imports at start what serving needs, and the rest when it is asked for."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, sys
from holdfast.app import open_application
import holdfast.cli.commands.serve
from holdfast.settings import load

async def main(url):
    async with open_application(load(None, flags={"store": {"url": url}})):
        print(*sorted({"gzip", "zipfile", "zoneinfo", "tomllib", "difflib",
            "mimetypes", "cronsim", "uvicorn", "websockets", "click", "multiprocessing", "email",
            "shutil", "holdfast.console.files", "holdfast.doctor.store_checks",
            "holdfast.engine.embedded.api",
            "holdfast.stores.inspect"} & sys.modules.keys()))

asyncio.run(main(sys.argv[1]))
"""


def test_a_start_imports_nothing_that_only_some_requests_need(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, f"sqlite:///{tmp_path}/store.db"],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert found.stdout.split() == []
