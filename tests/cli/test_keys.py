"""`holdfast keys` and `holdfast config`, in a terminal and in a pipe."""

import asyncio
import json
from pathlib import Path

import pytest

import holdfast
from tests.cli.terminals import in_own_process, in_pipe, in_process, in_terminal, lines_of


async def _make(store: str) -> None:
    async with holdfast.open(store):
        pass


def test_keys_are_created_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    asyncio.run(_make(store))
    assert "no keys" in in_process(capsys, "keys", "list", "--store", store).out
    made = in_process(capsys, "keys", "create", "--tenant", "acme", "--store", store, "--json")
    key = json.loads(made.out)
    assert key["key"].startswith("hf_")
    shown = in_terminal("keys", "list", "--store", store, columns=80)
    assert shown.code == 0
    assert any(line.startswith(key["id"]) and "live" in line for line in lines_of(shown))
    assert key["key"] not in shown.out
    revoked = in_own_process("keys", "revoke", key["id"], "--store", store)
    assert (revoked.code, revoked.out) == (0, f"{key['id']} is revoked\n")
    listed = in_pipe("keys", "list", "--store", store)
    assert listed.out.splitlines()[1].split("\t") == [key["id"], "acme", "-", "-", "revoked"]


def test_keys_of_the_configuration_are_not_listed_but_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    asyncio.run(_make(store))
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[store]\nurl = "{store}"\n[[key]]\nkey_env = "MY_KEY"\n')
    listed = in_process(capsys, "keys", "list", "--config", str(config))
    assert (listed.code, listed.out) == (0, "no keys in the store; the configuration has 1\n")


@pytest.mark.parametrize(
    "command",
    [("keys", "revoke", "key_nope"), ("keys", "create", "--tenant", "bad\ttenant")],
    ids=" ".join,
)
def test_a_failed_key_command_prints_one_line(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, *command, "--store", f"sqlite:///{tmp_path / 'keys.db'}")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)


def test_config_show_prints_in_a_terminal_and_in_a_pipe(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text('[store]\nurl = "postgresql://me:secret@db/holdfast"\n')
    shown = in_terminal("config", "show", "--config", str(config))
    assert shown.code == 0
    assert "secret" not in shown.out
    piped = in_pipe("config", "show", "--json", env={"HOLDFAST_CONFIG": str(config)})
    assert json.loads(piped.out)["store"]["url"] == "postgresql://me:********@db/holdfast"
