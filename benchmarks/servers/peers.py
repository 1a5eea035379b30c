"""Other systems: where they are installed and how they are started.

Each has its own environment under `.bench/`, created on demand; nginx and wrk come from the
system's packages. A system that cannot be installed is missing from the tables, with a note.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.servers.processes import ROOT, Server, free_port, running
from benchmarks.servers.stub import TEXT, completion, response

CACHE = ROOT / ".bench"
REQUIREMENTS = {
    "litellm": ("litellm[proxy]",),
    "plain": ("starlette", "httpx", "aiosqlite", "uvicorn[standard]"),
    "langgraph": (
        "langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres",
        "psycopg[binary]",
    ),
    "ogx": ("ogx", "chardet", "sqlite-vec", "aiosqlite", "numpy", "pypdf", "sqlalchemy[asyncio]"),
    "adk": ("google-adk", "sqlalchemy", "aiosqlite", "asyncpg", "greenlet"),
}  # fmt: skip
INTERPRETERS = {"ogx": ("python3.12", "python3.13")}
"""Interpreters that a peer needs instead of ours."""
INSTALL_SECONDS = 600
LITELLM_KEY = "sk-benchmark-4f1d9a7c"


def python_of(peer: str) -> Path | None:
    """Return the interpreter of a peer's environment; None if it cannot be installed."""
    python = CACHE / "venvs" / peer / "bin" / "python"
    ready = CACHE / "venvs" / f"{peer}.ready"
    if ready.exists():
        return python
    try:
        subprocess.run([_interpreter(peer), "-m", "venv", str(python.parent.parent)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             *REQUIREMENTS[peer]],
            check=True, timeout=INSTALL_SECONDS,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as exc:
        print(f"  {peer} is absent: {type(exc).__name__}")
        return None
    ready.touch()
    return python


def _interpreter(peer: str) -> str:
    names = INTERPRETERS.get(peer)
    if names is None:
        return sys.executable
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise FileNotFoundError(f"{peer} needs one of {', '.join(names)}")
    return found


def versions() -> dict[str, str]:
    """Return the versions of the installed peers."""
    packages = {
        "litellm": "litellm", "langgraph": "langgraph", "adk": "google-adk", "ogx": "ogx",
    }  # fmt: skip
    return {
        package: version_of(peer, package)
        if (CACHE / "venvs" / f"{peer}.ready").exists()
        else "absent"
        for peer, package in packages.items()
    }


def version_of(peer: str, package: str) -> str:
    """Return the version of a package in a peer's environment."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    python = CACHE / "venvs" / peer / "bin" / "python"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "absent"


def tool(name: str) -> str | None:
    """Return a system tool; install it if permitted; None if it cannot be installed."""
    if shutil.which(name) is None and shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "install", "-y", "-q", name], check=False, capture_output=True)
    return shutil.which(name)


def tool_version(name: str) -> str:
    """Return the version that a tool reports."""
    if shutil.which(name) is None:
        return "absent"
    done = subprocess.run([name, "-v"], capture_output=True, text=True, check=False)
    return (done.stderr + done.stdout).strip().splitlines()[0].removeprefix("nginx version: ")


_NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx-{port}.pid; error_log {folder}/nginx-{port}.err;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000; client_body_buffer_size 4m;
  client_max_body_size 100m; client_body_temp_path {folder}/body-{port};
  proxy_temp_path {folder}/proxy-{port}; fastcgi_temp_path {folder}/fastcgi-{port};
  uwsgi_temp_path {folder}/uwsgi-{port}; scgi_temp_path {folder}/scgi-{port};
  {more}
}}
"""
_ANSWER = """
  default_type application/json;
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location /v1/responses {{ return 200 '{response}'; }}
    location / {{ return 200 '{completion}'; }} }}
"""
_PROXY = """
  upstream backend {{ server 127.0.0.1:{backend}; keepalive 512; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://backend; proxy_http_version 1.1; proxy_buffering {buffering};
      proxy_set_header Connection ""; }} }}
"""


@contextlib.contextmanager
def _nginx(folder: Path, port: int, more: str) -> Iterator[Server]:
    config = folder / f"nginx-{port}.conf"
    config.write_text(_NGINX.format(folder=folder, port=port, more=more))
    with running(["nginx", "-c", str(config)], port, folder) as server:
        yield server


@contextlib.contextmanager
def nginx_upstream(folder: Path) -> Iterator[Server]:
    """Run nginx as an upstream of whole answers, faster than anything in front of it."""
    port = free_port()
    more = _ANSWER.format(
        port=port,
        response=response("$request_id", TEXT),
        completion=completion("$request_id"),
    )
    with _nginx(folder, port, more) as server:
        yield server


@contextlib.contextmanager
def nginx_proxy(folder: Path, upstream: Server, *, is_stream: bool) -> Iterator[Server]:
    """Run nginx in front of an upstream."""
    port = free_port()
    buffering = "off" if is_stream else "on"
    more = _PROXY.format(port=port, backend=upstream.port, buffering=buffering)
    with _nginx(folder, port, more) as server:
        yield server


@contextlib.contextmanager
def litellm(folder: Path, upstream: Server) -> Iterator[Server]:
    """Run LiteLLM's proxy in front of an upstream, with its defaults and without a database."""
    python = python_of("litellm")
    assert python is not None
    port = free_port()
    config = folder / f"litellm-{port}.yaml"
    config.write_text(
        "model_list:\n  - model_name: stub\n    litellm_params:\n      model: openai/stub\n"
        f"      api_base: {upstream.url}/v1\n      api_key: none\n"
        f"general_settings:\n  master_key: {LITELLM_KEY}\n"
    )
    command = [
        str(python.parent / "litellm"), "--config", str(config), "--port", str(port),
        "--host", "127.0.0.1", "--num_workers", "1", "--telemetry", "False",
    ]  # fmt: skip
    with running(command, port, folder, ready="/health/liveliness") as server:
        yield server


@contextlib.contextmanager
def plain(folder: Path, upstream: Server) -> Iterator[Server]:
    """Run the minimal gateway on Starlette, httpx and aiosqlite."""
    python = python_of("plain")
    assert python is not None
    port = free_port()
    script = Path(__file__).with_name("plain_gateway.py")
    command = [str(python), str(script), str(port), upstream.url, str(folder / f"plain-{port}.db")]
    with running(command, port, folder) as server:
        yield server
