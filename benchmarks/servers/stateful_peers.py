"""Peers that also keep sessions: OGX (Responses with storage) and OpenClaw (keyed Chat)."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from benchmarks.servers.peers import CACHE, INSTALL_SECONDS, python_of
from benchmarks.servers.processes import Server, free_port, running

OPENCLAW_VERSION = "2026.9.6"
_NODE_VERSION = "24"
_TOKEN = "benchmark-5c0e72"


class StatefulPeer(msgspec.Struct, frozen=True):
    """A peer and how its requests differ from ours."""

    name: str
    api: str
    start: Callable[[Path, Server], AbstractContextManager[Server]]
    authorization: str = ""
    key_header: str = "X-Session-Key"
    model: str = "stub"
    has_keys: bool = True
    """Whether a request can continue a session by its key alone."""


def installed() -> list[StatefulPeer]:
    """Return the peers that are installed or can be installed now."""
    found = []
    if python_of("ogx"):
        found.append(StatefulPeer("OGX", "responses", _ogx, model="stub/stub", has_keys=False))
    if _openclaw_folder() is not None:
        found.append(
            StatefulPeer(
                "OpenClaw", "chat", _openclaw, authorization=f"Bearer {_TOKEN}",
                key_header="x-openclaw-session-key", model="openclaw",
            )
        )  # fmt: skip
    return found


_OGX = """
version: 2
distro_name: benchmark
apis: [inference, responses, tool_runtime, files, file_processors, vector_io]
providers:
  inference:
  - provider_id: stub
    provider_type: remote::vllm
    config: {{base_url: "{upstream}/v1", api_token: none}}
  responses:
  - provider_id: builtin
    provider_type: inline::builtin
    config:
      persistence:
        responses: {{table_name: responses, backend: sql_default}}
  tool_runtime:
  - {{provider_id: file-search, provider_type: "inline::file-search"}}
  files:
  - provider_id: builtin-files
    provider_type: inline::localfs
    config:
      storage_dir: "{folder}/files"
      metadata_store: {{table_name: files_metadata, backend: sql_default}}
  file_processors:
  - {{provider_id: auto, provider_type: "inline::auto"}}
  vector_io:
  - provider_id: sqlite-vec
    provider_type: inline::sqlite-vec
    config:
      db_path: "{folder}/vec.db"
      persistence: {{namespace: vector_io, backend: kv_default}}
storage:
  backends:
    kv_default: {{type: kv_sqlite, db_path: "{folder}/ogx-kv.db"}}
    sql_default: {{type: sql_sqlite, db_path: "{folder}/ogx.db"}}
  stores:
    metadata: {{namespace: registry, backend: kv_default}}
    inference: {{table_name: inference_store, backend: sql_default}}
    conversations: {{table_name: openai_conversations, backend: sql_default}}
    prompts: {{table_name: prompts, backend: sql_default}}
    connectors: {{table_name: connectors, backend: sql_default}}
registered_resources:
  models:
  - {{model_id: stub, provider_id: stub, provider_model_id: stub, model_type: llm}}
server: {{host: 127.0.0.1, port: {port}}}
"""


@contextlib.contextmanager
def _ogx(folder: Path, upstream: Server) -> Iterator[Server]:
    python = python_of("ogx")
    assert python is not None
    port = free_port()
    config = folder / f"ogx-{port}.yaml"
    config.write_text(_OGX.format(upstream=upstream.url, folder=folder, port=port))
    command = [
        str(python.parent / "ogx"), "run", str(config), "--port", str(port), "--insecure",
    ]  # fmt: skip
    env = {"HOME": str(folder), "OGX_LOGGING": "all=error"} | _tokenizer_cache()
    with running(command, port, folder, ready="/v1/health", env=env) as server:
        yield server


def _tokenizer_cache() -> dict[str, str]:
    """Return the environment for OGX to find its tokenizer offline: LiteLLM ships the file."""
    litellm = CACHE / "venvs" / "litellm"
    found = next(litellm.glob("lib/*/site-packages/litellm/litellm_core_utils/tokenizers"), None)
    return {"TIKTOKEN_CACHE_DIR": str(found)} if found is not None else {}


def _openclaw_folder() -> Path | None:
    """Return the folder with OpenClaw and its Node; None if it cannot be installed."""
    folder = CACHE / "openclaw"
    if (folder / "ready").exists():
        return folder
    if shutil.which("npm") is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}')
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
    path = f"{folder}/node_modules/.bin"
    try:
        for package in (f"node@{_NODE_VERSION}", f"openclaw@{OPENCLAW_VERSION}"):
            # OpenClaw's installer checks the version of the Node that runs it.
            subprocess.run(
                ["env", f"PATH={path}:{_system_path()}", *install, package],
                cwd=folder, check=True, timeout=INSTALL_SECONDS, capture_output=True,
            )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as exc:
        print(f"  OpenClaw is absent: {type(exc).__name__}")
        return None
    (folder / "ready").touch()
    return folder


def _system_path() -> str:
    return os.environ.get("PATH", "")


def _openclaw_config(folder: Path, port: int, upstream: str) -> str:
    model = {
        "id": "stub", "name": "stub", "reasoning": False, "input": ["text"],
        "contextWindow": 1_000_000, "maxTokens": 4096,
    }  # fmt: skip
    provider = {
        "baseUrl": f"{upstream}/v1", "apiKey": "none", "api": "openai-completions",
        "models": [model],
    }  # fmt: skip
    return json.dumps(
        {
            "gateway": {
                "mode": "local", "port": port, "bind": "loopback",
                "auth": {"mode": "token", "token": _TOKEN},
                "http": {"endpoints": {"chatCompletions": {"enabled": True}}},
            },
            "models": {"mode": "merge", "providers": {"stub": provider}},
            "agents": {
                "defaults": {"model": {"primary": "stub/stub"}, "workspace": f"{folder}/work"}
            },
        }
    )  # fmt: skip


@contextlib.contextmanager
def _openclaw(folder: Path, upstream: Server) -> Iterator[Server]:
    home = _openclaw_folder()
    assert home is not None
    port = free_port()
    config = folder / f"openclaw-{port}.json"
    config.write_text(_openclaw_config(folder, port, upstream.url))
    binaries = home / "node_modules" / ".bin"
    env = {
        "HOME": str(folder), "OPENCLAW_STATE_DIR": f"{folder}/state",
        "OPENCLAW_CONFIG_PATH": str(config), "PATH": f"{binaries}:{_system_path()}",
    }  # fmt: skip
    command = [str(binaries / "openclaw"), "gateway", "run", "--port", str(port)]
    with running(command, port, folder, ready="/v1/models", env=env) as server:
        yield server
