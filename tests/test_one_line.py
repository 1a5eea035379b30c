"""One line without a checkout, from the wheel: `uvx holdfast serve`, `pipx run holdfast serve`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.wheel import build_wheel

BIN = Path(sys.executable).parent
RUNNERS = [
    pytest.param(("uvx", "--from"), id="uvx"),
    pytest.param(("pipx", "run", "--spec"), id="pipx", marks=pytest.mark.soak),
]
ADDRESS = re.compile(r"holdfast listening on (http://127\.0\.0\.1:\d+)")


def _own_home(folder: Path) -> dict[str, str]:
    """Return an environment with empty caches and no gateway settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "OPENAI_"))}
    places = {
        "HOME": "home", "XDG_DATA_HOME": "data", "XDG_CACHE_HOME": "cache", "PIPX_HOME": "pipx",
        "UV_CACHE_DIR": "uv", "UV_TOOL_DIR": "tools", "PIP_CACHE_DIR": "pip",
    }  # fmt: skip
    own = {name: str(folder / place) for name, place in places.items()}
    return {**kept, **own, "UV_PYTHON": sys.executable, "NO_COLOR": "1"}


@contextmanager
def _started(command: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Start a gateway by a runner; yield the address that it prints, and stop its processes."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        printed = []
        for line in process.stdout:
            printed.append(line)
            if match := ADDRESS.search(line):
                yield match[1]
                break
        else:
            raise AssertionError("".join(printed))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def _request(address: str, method: str, path: str, body: object = None) -> tuple[int, str, str]:
    """Return the status, the location and the text of a response."""
    connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
    headers = {"accept": "text/html", "content-type": "application/json", "x-session-key": "me"}
    try:
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        return response.status, response.getheader("location", ""), response.read().decode()
    finally:
        connection.close()


@pytest.mark.timeout(300)  # seconds of work, on a machine that may be busy
@pytest.mark.parametrize("runner", RUNNERS)
def test_one_line_starts_a_gateway_that_answers_and_leads_a_browser_to_the_console(
    runner: tuple[str, ...], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    build = tmp_path / "build"
    build.mkdir()
    wheel = build_wheel(build)
    command = [str(BIN / runner[0]), *runner[1:], str(wheel), "holdfast", "serve", "--port", "0"]
    began = time.monotonic()
    with _started(command, _own_home(tmp_path)) as address:
        message = {"role": "user", "content": "Am I here?"}
        chat = {"model": "holdfast-demo", "messages": [message]}
        status, _, text = _request(address, "POST", "/v1/chat/completions", chat)
        record_property("seconds_to_first_answer", round(time.monotonic() - began, 1))
        assert status == 200
        assert "Am I here?" in json.loads(text)["choices"][0]["message"]["content"]
        status, location, _ = _request(address, "GET", "/")
        assert (status, location.removeprefix(address)) == (302, "/console")
        status, _, page = _request(address, "GET", "/console")
        assert status == 200
        assert "<title>" in page
