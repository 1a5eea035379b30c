"""One configuration for every command: file, environment, and the gateway or store they select."""

import json
import re
from pathlib import Path

import pytest

from holdfast.cli.commands.init import TEMPLATE
from holdfast.settings import load
from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import free_port, running_gateway
from tests.cli.terminals import in_pipe, in_process


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with a port and a store of its own."""
    path = tmp_path / "holdfast.toml"
    store = tmp_path / "own.db"
    path.write_text(f'[server]\nport = {free_port()}\n[store]\nurl = "sqlite:///{store}"\n')
    return path


def port_of(config: Path) -> str:
    return str(load(config, environment={}).server.port)


@pytest.mark.parametrize("by_variable", [False, True], ids=["flag", "variable"])
def test_every_command_uses_the_gateway_and_store_of_the_configuration(
    config: Path, tmp_path: Path, by_variable: bool
) -> None:
    env = {"HOLDFAST_CONFIG": str(config)} if by_variable else {}
    flag = () if by_variable else ("--config", str(config))
    store = f"used store sqlite:///{tmp_path / 'own.db'}"
    created = in_pipe("keys", "create", "--json", *flag, env=env)
    new = f"holdfast: {tmp_path / 'own.db'} is a new store\n"
    assert (created.code, created.err) == (0, f"{new}holdfast: {store}\n")
    key = json.loads(created.out)["key"]
    assert (tmp_path / "own.db").exists()
    port = port_of(config)
    with running_gateway(
        f"sqlite:///{tmp_path / 'own.db'}", "--port", port, "--config", str(config)
    ):
        env |= {"HOLDFAST_API_KEY": key}
        gateway = f"holdfast: used gateway http://127.0.0.1:{port}\n"
        for command in ("status", "sessions list", "sessions export --all"):
            outcome = in_pipe(*command.split(), *flag, env=env)
            assert (outcome.code, outcome.err) == (0, gateway), command
        told = in_pipe("chat", "me", *flag, said="hello\n", env=env)
        assert (told.code, told.err) == (0, gateway)
        assert "You said: 'hello'" in told.out
    for command in ("doctor", f"backup {tmp_path / 'copy.db'}", "keys list"):
        outcome = in_pipe(*command.split(), *flag, env=env)
        assert (outcome.code, outcome.err) == (0, f"holdfast: {store}\n"), command


def test_a_url_flag_beats_the_configuration(config: Path) -> None:
    outcome = in_pipe("status", "--config", str(config), "--url", "http://127.0.0.1:1")
    assert outcome.code == 1
    assert "no gateway at http://127.0.0.1:1 " in outcome.err


def test_a_gateways_secrets_are_not_needed_to_talk_to_it(config: Path) -> None:
    config.write_text(config.read_text() + '[[key]]\nkey_env = "NOT_SET_HERE"\n')
    outcome = in_pipe("status", "--config", str(config))
    assert f"no gateway at http://127.0.0.1:{port_of_text(config)} " in outcome.err
    served = in_pipe("serve", "--config", str(config))
    assert (served.code, "NOT_SET_HERE is not set" in served.err) == (2, True)


def port_of_text(config: Path) -> str:
    found = re.search(r"port = (\d+)", config.read_text())
    assert found is not None
    return found[1]


@pytest.mark.parametrize("command", ["serve", "status", "keys list", "config show", "doctor"])
def test_an_unknown_variable_is_an_error_with_the_nearest_name(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE_ULR", "memory:")
    outcome = in_process(capsys, *command.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == (
        "holdfast: environment variable HOLDFAST_STORE_ULR is not a setting; "
        "did you mean HOLDFAST_STORE_URL?\n"
    )


def test_a_variable_that_the_configuration_names_is_known(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text('[[key]]\nkey_env = "HOLDFAST_MY_KEY"\n')
    settings = load(path, environment={"HOLDFAST_MY_KEY": "secret"})
    assert settings.keys[0].key == "secret"


def test_init_writes_a_configuration_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "holdfast.toml"
    assert in_process(capsys, "init", str(path)).code == 0
    assert load(path, environment={}) == load(environment={})
    again = in_process(capsys, "init", str(path))
    assert (again.code, again.err) == (
        1,
        f"holdfast: {path} exists; add --force to replace it\n",
    )
    assert in_process(capsys, "init", str(path), "--force").code == 0


def test_every_line_of_the_written_configuration_is_a_setting(tmp_path: Path) -> None:
    text = TEMPLATE.format(path="x", store=f"sqlite:///{tmp_path / 'a.db'}")
    active = [line.removeprefix("# ") for line in text.splitlines() if is_setting(line)]
    # Of two examples of one field, the last one counts here.
    lines: dict[str, str] = {}
    section = ""
    for line in active:
        section = line if line.startswith("[") else section
        lines[section + line.partition("=")[0]] = line
    path = tmp_path / "holdfast.toml"
    path.write_text("\n".join(lines.values()))
    settings = load(path, environment={"OPENAI_API_KEY": "sk-x"})
    assert settings.upstreams[0].name == "openai"
    assert settings.store.url.startswith("postgresql://")
    assert settings.log.area_levels() == {"request": "info"}


def is_setting(line: str) -> bool:
    return re.match(r"(# )?(\[|\w+ = )", line) is not None


def test_config_check_finds_a_reachable_upstream_and_a_writable_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_KEY", "sk-any")
    path = tmp_path / "holdfast.toml"
    with ProviderSimulator() as simulator:
        port = free_port()
        path.write_text(
            f'[server]\nport = {port}\n[store]\nurl = "sqlite:///{tmp_path / "new.db"}"\n'
            f'[[upstream]]\nname = "sim"\nurl = "{simulator.base_url}"\nkey_env = "SIM_KEY"\n'
        )
        outcome = in_process(capsys, "config", "check", "--config", str(path), "--json")
    assert outcome.code == 0, outcome
    checks = json.loads(outcome.out)["checks"]
    assert [check["subject"] for check in checks] == [
        f"store sqlite:///{tmp_path / 'new.db'}",
        f"server 127.0.0.1:{port}",
        "upstream sim",
    ]
    assert not (tmp_path / "new.db").exists()


def test_config_check_names_a_rejected_key_and_an_unreachable_upstream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_KEY", "sk-wrong")
    path = tmp_path / "holdfast.toml"
    with ProviderSimulator({"keys": ["sk-right"]}) as simulator:
        path.write_text(
            '[store]\nurl = "memory:"\n'
            f'[[upstream]]\nname = "a"\nurl = "{simulator.base_url}"\nkey_env = "WRONG_KEY"\n'
            '[[upstream]]\nname = "b"\nurl = "http://127.0.0.1:1/v1"\n'
        )
        outcome = in_process(capsys, "config", "check", "--config", str(path))
    assert outcome.code == 1
    assert f"configuration: {path}\n" in outcome.out
    assert "failed\tupstream a\tthe key of WRONG_KEY is not accepted" in outcome.out
    assert "failed\tupstream b\t" in outcome.out
    assert "sk-wrong" not in outcome.out


def test_config_check_names_a_store_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "holdfast.toml"
    (tmp_path / "file").write_text("")
    path.write_text(f'[store]\nurl = "sqlite:///{tmp_path / "file" / "x.db"}"\n')
    outcome = in_process(capsys, "config", "check", "--config", str(path))
    assert outcome.code == 1
    assert "failed\tstore " in outcome.out
