"""Setting up a channel, and platform simulators that a person operates."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.channels.settings import ChannelSettings
from holdfast.cli.app import app
from holdfast.cli.output.terminal import CommandFailed
from holdfast.simulator.platforms.console import PLATFORMS, PlatformConsole
from tests.cli.terminals import in_process


@pytest.mark.parametrize("kind", ["telegram", "slack", "signal"])
def test_what_is_appended_is_a_channel_and_is_appended_once(kind: str, tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text("[server]\nport = 1\n")
    command = ["channels", "add", "work", "--kind", kind, "--model", "gpt-5"]
    first = CliRunner().invoke(app, [*command, "--write", str(config)])
    assert first.exit_code == 0, first.output
    (values,) = tomllib.loads(config.read_text())["channel"]
    assert ChannelSettings(**values).kind == kind
    assert ("oauth_config" in first.output) == (kind == "slack"), "Slack prints its manifest"
    again = CliRunner().invoke(app, [*command, "--write", str(config)])
    assert "already" in str(again.exception)
    assert len(tomllib.loads(config.read_text())["channel"]) == 1


def test_an_unknown_platform_and_a_bad_name_are_rejected() -> None:
    unknown = CliRunner().invoke(app, ["channels", "add", "work", "--kind", "fax"])
    assert unknown.exit_code == 2
    bad = CliRunner().invoke(app, ["channels", "add", "a/b", "--kind", "telegram"])
    assert "name must be a word" in str(bad.exception)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_platform_simulator_says_how_to_connect_to_it(platform: str) -> None:
    (table,) = tomllib.loads("\n".join(PlatformConsole(platform, 1).table()))
    assert table == ("webhook" if platform == "webhooks" else "channel")


def test_a_platform_simulator_runs_until_it_is_ended() -> None:
    command = [sys.executable, "-m", "holdfast.cli", "sim", "--platform", "telegram", "--port", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("holdfast sim listening on http://127.0.0.1:")
        assert process.poll() is None, "the end of the input ends only the messages"
        process.terminate()


@pytest.mark.parametrize(
    "options",
    [
        ("b", "--kind", "signal", "--account", '+49"1'),
        ("b", "--kind", "signal", "--account", "{0}\n"),
        ("grinning-\U0001f600", "--kind", "telegram"),
        ("b", "--kind", "telegram", "--model", "a\x7f\\"),
    ],
)
def test_odd_values_are_written_as_they_are(options: tuple[str, ...], tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text("")
    made = CliRunner().invoke(app, ["channels", "add", *options, "--write", str(config)])
    assert made.exit_code == 0, made.output
    (channel,) = tomllib.loads(config.read_text("utf-8"))["channel"]
    assert channel["name"] == options[0]
    assert options[-1] in channel.values()


@pytest.mark.parametrize("text", [b'[channel]\nname = "a"\n', b"channel = []\n", b"# \xe4\n", b"="])
def test_a_file_to_which_no_channel_can_be_added_stays_as_it_is(
    text: bytes, tmp_path: Path
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_bytes(text)
    arguments = ["channels", "add", "b", "--kind", "telegram", "--write", str(config)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, CommandFailed), result.exception
    assert config.read_bytes() == text


def test_a_configuration_file_that_does_not_exist_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "none.toml"
    options = ("--kind", "telegram", "--write", str(config))
    outcome = in_process(capsys, "channels", "add", "b", *options)
    assert outcome.code == 1
    assert outcome.err == f"holdfast: there is no file {config}; write one with `holdfast init`\n"
