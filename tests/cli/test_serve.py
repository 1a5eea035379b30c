"""`holdfast serve` in a terminal: what it prints can be tried as it is printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.gateway_process import free_port
from tests.cli.terminals import Terminal, in_own_process, in_process
from tests.store_urls import sqlite_url

ROOT = Path(__file__).parents[2]
OWN = str(Path(sys.executable).parent)


@pytest.mark.parametrize(
    "path", ["/usr/bin:/bin", f"{OWN}:/usr/bin:/bin"], ids=["outside", "inside"]
)
def test_the_examples_that_serve_prints_work(tmp_path: Path, path: str) -> None:
    with Terminal(
        "serve", "--port", "0", "--store", sqlite_url(tmp_path), columns=200, env={"PATH": path}
    ) as terminal:
        terminal.expect("holdfast listening on http://127.0.0.1:")
        terminal.expect("Ctrl-C stops the gateway")
        curl, chat, python = re.findall(
            r"^  (curl.*?|\S*holdfast chat.*?|\S*python -c.*?)\n\n", terminal.seen, re.M | re.S
        )
        assert chat.startswith("holdfast ") == (OWN in path)
        assert re.search(r"^Console: http://127\.0\.0\.1:\d+/console\r?$", terminal.seen, re.M)
        assert "You said: 'I am Ada'" in _run(curl, path)
        assert "the first was 'I am Ada'" in _run(f"echo hello again | {chat}", path)
        assert "I remember 2 earlier message(s); the first was 'I am Ada'" in _run(python, path)
        terminal.type("\x03")
        assert terminal.wait().code == 0


def test_the_examples_work_where_keys_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = sqlite_url(tmp_path)
    key = json.loads(in_process(capsys, "keys", "create", "--store", store, "--json").out)["key"]
    path = os.environ["PATH"]
    with Terminal("serve", "--port", "0", "--store", store, columns=200) as terminal:
        terminal.expect("Ctrl-C stops the gateway")
        assert "after `export HOLDFAST_API_KEY=…` with your API key" in terminal.seen
        assert key not in terminal.seen
        curl, chat, python = re.findall(
            r"^  (curl.*?|\S*holdfast chat.*?|\S*python -c.*?)\n\n", terminal.seen, re.M | re.S
        )
        assert "You said: 'I am Ada'" in _run(curl, path, HOLDFAST_API_KEY=key)
        heard = _run(f"echo hello again | {chat}", path, HOLDFAST_API_KEY=key)
        assert "the first was 'I am Ada'" in heard
        assert "the first was 'I am Ada'" in _run(python, path, HOLDFAST_API_KEY=key)
        terminal.type("\x03")
        assert terminal.wait().code == 0


def test_serve_can_be_stopped_as_soon_as_it_listens() -> None:
    with Terminal("serve", "--port", "0", "--store", "memory:", columns=200) as terminal:
        terminal.expect("holdfast listening on ")
        terminal.type("\x03")
        assert terminal.wait().code == 0
        assert "Traceback" not in terminal.seen


@pytest.mark.parametrize(
    ("models", "model", "hint"),
    [
        ('["qwen-*", "org/llama-3:8b"]', "org/llama-3:8b", "terminal:"),
        ('["*"]', "MODEL", "terminal (replace MODEL by a model of your upstream):"),
        ("""["it's"]""", "MODEL", "terminal (replace MODEL "),
    ],
    ids=["a name", "a pattern", "a name that a shell would break"],
)
def test_the_examples_use_a_configured_model(
    tmp_path: Path, models: str, model: str, hint: str
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[[upstream]]\nurl = "http://127.0.0.1:1/v1"\nmodels = {models}\n')
    asked = ("serve", "--port", "0", "--store", "memory:", "--config", str(config))
    with Terminal(*asked, columns=200) as terminal:
        terminal.expect("Ctrl-C stops the gateway")
        assert f"Try, in another {hint}" in terminal.seen
        assert f'"model":"{model}"' in terminal.seen
        assert f'model="{model}"' in terminal.seen
        assert "holdfast-demo" not in terminal.seen


def test_serve_warns_about_an_upstream_without_its_key(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(
        "".join(
            f'[[upstream]]\nname = "{name}"\nurl = "http://127.0.0.1:1/v1"\nkey_env = "{key}"\n'
            for name, key in (("bare", "BARE_KEY"), ("full", "FULL_KEY"))
        )
    )
    asked = ("serve", "--port", "0", "--store", "memory:", "--config", str(config))
    with Terminal(*asked, columns=200, env={"FULL_KEY": "sk-x"}) as terminal:
        terminal.expect("holdfast listening on")
        [warning, *_] = terminal.seen.splitlines()
    assert warning == (
        "holdfast: upstream bare is called without a key: "
        "the environment variable BARE_KEY is not set"
    )
    assert "FULL_KEY" not in terminal.seen


def _run(script: str, path: str, **env: str) -> str:
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PATH": path, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_serve_serves() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "serve"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].endswith("holdfast serve")


@pytest.mark.parametrize("port", ["abc", "70000", "-1", "", "1.5", "9" * 30])
def test_an_invalid_port_prints_the_valid_range(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, "serve", "--port", port, "--store", "memory:")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("holdfast: --port")
    assert " must be a number from 0 to 65535, not " in outcome.err


def test_a_port_in_use_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = str(free_port())
    store = sqlite_url(tmp_path)
    with Terminal("serve", "--port", port, "--store", store) as terminal:
        terminal.expect("listening on")
        outcome = in_process(capsys, "serve", "--port", port, "--store", store)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == (
        f"holdfast: cannot listen on 127.0.0.1:{port}: Address already in use; stop the program "
        "that uses it, or choose another port with --port\n"
    )


def test_serve_does_not_listen_beyond_loopback_without_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(
        capsys, "serve", "--host", "0.0.0.0", "--port", "0", "--store", sqlite_url(tmp_path)
    )
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "holdfast keys create" in outcome.err


def test_the_simulator_starts_and_stops_in_a_terminal() -> None:
    with Terminal("sim", "--port", "0") as terminal:
        terminal.expect("holdfast sim listening on http://127.0.0.1:")
        terminal.type("\x03")
        assert terminal.wait().code == 0


def test_an_address_of_another_machine_prints_what_to_do() -> None:
    outcome = in_own_process("serve", "--store", "memory:", "--port", "0", "--host", "192.0.2.1")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert outcome.err.endswith("; choose an address of this machine with --host\n")
