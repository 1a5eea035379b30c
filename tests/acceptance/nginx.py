"""A real nginx with the configuration of `deploy/nginx.conf`, for tests."""

import re
import subprocess
from pathlib import Path

import httpx

from tests.acceptance.gateway_process import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
TIMEOUT = 60
SERVED_BY = "X-Served-By"
"""A header of every answer: the address of the replica that gave it."""


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=TIMEOUT).status_code == 200
    except httpx.HTTPError:
        return False


class Nginx:
    """The nginx of `deploy/nginx.conf` in front of replicas, with ports and paths of its own."""

    def __init__(self, program: str, urls: list[str], folder: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._config = folder / "nginx.conf"
        servers = "".join(rf"server {url.removeprefix('http://')}\1;" for url in urls)
        example = (DEPLOY / "nginx.conf").read_text()
        example = re.sub(r"server gateway-1:8377(.*);", servers, example)
        example = re.sub(r"server gateway-2:8377.*;", "", example)
        example = re.sub(r"listen 8377;", f"listen 127.0.0.1:{self._port};", example)
        paths = "".join(
            f"{name}_temp_path {folder / name};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        self._config.write_text(
            f"daemon off; pid {folder / 'pid'}; error_log {folder / 'error.log'} info;\n"
            f"events {{}}\nhttp {{ access_log off; {paths}\n"
            f"add_header {SERVED_BY} $upstream_addr always;\n"
            f"{example}\n}}\n"
        )
        self._command = [program, "-e", str(folder / "error.log"), "-c", str(self._config)]
        self.errors = folder / "error.log"

    def __enter__(self) -> "Nginx":
        self._process = subprocess.Popen(self._command)
        while not is_ready(self.url):
            assert self._process.poll() is None, self.errors.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT)

    def post(self, path: str, body: object, headers: dict[str, str]) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers, timeout=TIMEOUT)
